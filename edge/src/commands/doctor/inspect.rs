//! Inspects the node: engine, disk, brokers, clock, host names and certificates. Does not disturb a
//! running agent and leaves nothing behind. Assesses nothing.

use std::{
    fs::{self, File, TryLockError},
    io,
    net::SocketAddr,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use neptune_link::{Link, LinkEvent, LinkOptions};
use neptune_wire::Replica;
use rustix::fs::{Access, access, statvfs};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tokio::{net::TcpStream, process::Command};

use crate::{
    commands::doctor::facts::{CertificateFacts, Checked, DataState, Database, DiskFacts},
    storage::Store,
};

/// The data directory, and what the node was told.
pub fn data(path: &Path) -> (Checked<DataState>, Option<Replica>) {
    let owner = match fs::metadata(path) {
        Ok(found) if found.is_dir() => found.uid(),
        Ok(_) => return (Err("it is no directory".to_owned()), None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let can_be_made = access(nearest(path), Access::WRITE_OK | Access::EXEC_OK);
            let can_be_made = can_be_made.map_err(|error| error.to_string());
            return (Ok(DataState::Absent { can_be_made }), None);
        }
        Err(error) => return (Err(error.to_string()), None),
    };
    let (database, replica) = database(path);
    let state =
        DataState::Present { owner, written: write(path), is_in_use: is_in_use(path), database };
    (Ok(state), replica)
}

/// The nearest directory above that is there.
fn nearest(path: &Path) -> &Path {
    path.ancestors().find(|above| above.is_dir()).unwrap_or(Path::new("/"))
}

/// Only writing tells whether one may: rights, a read-only mount and a full disk all come out.
fn write(dir: &Path) -> Checked<()> {
    let path = dir.join(format!(".doctor-{}", std::process::id()));
    let written = fs::write(&path, "x").and_then(|()| fs::remove_file(&path));
    written.map_err(|error| error.to_string())
}

/// Whether an agent holds the lock. An agent that starts in this very moment ends, and is started
/// again.
fn is_in_use(dir: &Path) -> bool {
    let lock = File::open(dir.join("lock")).map(|file| file.try_lock());
    matches!(lock, Ok(Err(TryLockError::WouldBlock)))
}

fn database(dir: &Path) -> (Database, Option<Replica>) {
    let written = match fs::metadata(dir.join("neptune.db")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return (Database::Absent, None),
        // Made and not yet filled when the power went: the agent fills it.
        Ok(found) if found.len() == 0 => return (Database::Absent, None),
        found => found.and_then(|found| found.modified()).ok(),
    };
    let replica = Store::read_only(dir).and_then(|store| store.replica());
    match replica {
        Ok(replica) => {
            let written = written.and_then(|at| Timestamp::try_from(at).ok());
            (Database::Whole { objects: replica.objects().len(), written }, Some(replica))
        }
        Err(error) => (Database::Unusable(error.to_string()), None),
    }
}

/// The file system of a directory that may not be there yet.
pub fn disk(path: &Path, reserve: u64) -> Checked<DiskFacts> {
    let found = statvfs(nearest(path)).map_err(|error| error.to_string())?;
    let of = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok(DiskFacts { free: of(found.f_bavail), size: of(found.f_blocks), reserve })
}

/// Connects and subscribes as the options say, and says goodbye. Waits for as long as it takes.
pub async fn broker(options: LinkOptions) -> Checked<()> {
    // Who asks knows the address, and says it.
    let address = format!("{}: ", options.url);
    let (link, mut events) = Link::start(options).map_err(|error| error.to_string())?;
    let answer = loop {
        match events.next().await {
            Some(LinkEvent::Up) => break Ok(()),
            Some(LinkEvent::Down { reason }) => {
                break Err(reason.strip_prefix(&address).unwrap_or(&reason).to_owned());
            }
            Some(LinkEvent::Message(_)) => {}
            None => break Err("the link ended".to_owned()),
        }
    };
    link.close(Duration::ZERO).await;
    answer
}

/// Whether nobody listens there.
pub async fn is_free(address: SocketAddr) -> bool {
    TcpStream::connect(address).await.is_err()
}

/// What systemd says of the clock, whichever program keeps it.
pub async fn is_synchronized() -> Option<bool> {
    if Path::new("/run/systemd/timesync/synchronized").exists() {
        return Some(true);
    }
    let mut command = Command::new("timedatectl");
    command.args(["show", "--property=NTPSynchronized", "--value"]).kill_on_drop(true);
    let output = command.output().await.ok()?;
    match output.stdout.trim_ascii() {
        b"yes" => Some(true),
        b"no" => Some(false),
        _ => None,
    }
}

/// The addresses of a host, as this machine's programs get them.
pub async fn addresses(host: &str) -> Checked<Vec<std::net::IpAddr>> {
    let found = tokio::net::lookup_host((host, 0)).await.map_err(|error| error.to_string())?;
    let mut addresses: Vec<_> = found.map(|address| address.ip()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.is_empty() { Err("it has no address".to_owned()) } else { Ok(addresses) }
}

/// The certificates of a PEM file, in its order.
pub fn certificates(path: &PathBuf) -> Checked<Vec<CertificateFacts>> {
    let pem = fs::read(path).map_err(|error| error.to_string())?;
    CertificateDer::pem_slice_iter(&pem)
        .map(|der| certificate(&der.map_err(|error| format!("broken PEM: {error}"))?))
        .collect()
}

fn certificate(der: &CertificateDer<'_>) -> Checked<CertificateFacts> {
    let broken = |why: String| format!("broken certificate: {why}");
    let (_, read) = x509_parser::parse_x509_certificate(der).map_err(|e| broken(e.to_string()))?;
    let time = |seconds| Timestamp::from_second(seconds).map_err(|e| broken(e.to_string()));
    Ok(CertificateFacts {
        subject: read.subject().to_string(),
        from: time(read.validity().not_before.timestamp())?,
        to: time(read.validity().not_after.timestamp())?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    #[test]
    fn certificates_are_read_in_file_order() {
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = |name: &str, year: i32| {
            let mut wanted = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
            wanted.distinguished_name.push(rcgen::DnType::CommonName, name);
            wanted.not_after = rcgen::date_time_ymd(year, 1, 2);
            wanted.self_signed(&key).unwrap().pem()
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), format!("{}\n{}", pem("first", 2031), pem("second", 2032))).unwrap();
        let found = certificates(&file.path().to_owned()).unwrap();
        let shown: Vec<_> =
            found.iter().map(|one| format!("{} {:.0}", one.subject, one.to)).collect();
        assert_eq!(shown, ["CN=first 2031-01-02T00:00:00Z", "CN=second 2032-01-02T00:00:00Z"]);
        fs::write(file.path(), "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n")
            .unwrap();
        let why = certificates(&file.path().to_owned()).unwrap_err();
        assert!(why.starts_with("broken"), "{why}");
    }

    #[test]
    fn database_is_read_beside_an_agent_without_changing_it() {
        let dir = tempfile::tempdir().unwrap();
        let before = |dir: &Path| -> Vec<_> {
            let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<_> = names.collect();
            names.sort();
            names
        };
        assert!(matches!(database(dir.path()), (Database::Absent, None)));
        let mut store = Store::open(dir.path()).unwrap();
        store.start_epoch("x").unwrap();
        let held = File::create(dir.path().join("lock")).unwrap();
        held.try_lock().unwrap();
        let names = before(dir.path());
        let (state, replica) = data(dir.path());
        assert!(replica.is_some());
        let Ok(DataState::Present { written: Ok(()), is_in_use: true, database: whole, .. }) =
            state
        else {
            panic!("{state:?}")
        };
        assert!(matches!(whole, Database::Whole { objects: 0, written: Some(_) }));
        assert_eq!(before(dir.path()), names);
        drop((store, held));
        assert!(!is_in_use(dir.path()));
        fs::write(dir.path().join("neptune.db"), "no database at all, but long enough for one")
            .unwrap();
        assert!(matches!(database(dir.path()), (Database::Unusable(_), None)));
    }
}
