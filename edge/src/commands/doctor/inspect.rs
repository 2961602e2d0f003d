//! Collects the facts about the node: data directory, disk, brokers, clock, names and certificates.
//! Does not disturb a running agent, and leaves no files.

use std::{
    fs::{self, File, TryLockError},
    io,
    net::SocketAddr,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use neptune_agent_core::domain::{
    gateway_files::secret_name, listen_address::reachable, node_context::KEY_FILE,
};
use neptune_link::{Link, LinkEvent, LinkOptions};
use neptune_pinned_tls::TlsKey;
use neptune_wire::Replica;
use rustix::fs::{Access, access, statvfs};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tokio::{net::TcpStream, process::Command};

use crate::{
    commands::doctor::facts::{
        CertificateFacts, Checked, DataState, DatabaseState, DiskFacts, NeededSecret, SecretAccess,
        SecretDir, SecretFile,
    },
    gateway::secrets,
    storage::Store,
};

/// The data directory, and the stored desired state.
pub fn data(path: &Path) -> (Checked<DataState>, Option<Replica>) {
    let owner = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => metadata.uid(),
        Ok(_) => return (Err("it is not a directory".to_owned()), None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let can_create = access(nearest(path), Access::WRITE_OK | Access::EXEC_OK);
            let can_create = can_create.map_err(|error| error.to_string());
            return (Ok(DataState::Absent { can_create }), None);
        }
        Err(error) => return (Err(error.to_string()), None),
    };
    let (database, replica) = database(path);
    let state =
        DataState::Present { owner, can_write: write(path), is_in_use: is_in_use(path), database };
    (Ok(state), replica)
}

/// The pin of the node's key in this data directory; `None` if there is no key yet.
pub fn key_pin(data_dir: &Path) -> Checked<Option<String>> {
    let path = data_dir.join(KEY_FILE);
    let shown = path.display().to_string();
    match fs::read_to_string(&path) {
        Ok(pem) => match TlsKey::from_pem(&pem, &shown) {
            Ok(key) => Ok(Some(key.pin().0.clone())),
            Err(error) => Err(error.to_string()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{shown}: {error}")),
    }
}

/// The directory of secrets and its files. Their content is not read.
pub fn secret_dir(path: &Path) -> Checked<Option<SecretDir>> {
    let directory = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => metadata,
        Ok(_) => return Err("it is not a directory".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(|error| error.to_string())? {
        let entry = entry.map_err(|error| error.to_string())?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Links are followed: a mounted Secret consists of them.
        let Ok(metadata) = fs::metadata(entry.path()) else { continue };
        if metadata.is_file() && !name.starts_with('.') {
            let is_readable = access(entry.path(), Access::READ_OK).is_ok();
            files.push(SecretFile { name, access: secret_access(&metadata), is_readable });
        }
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Some(SecretDir { access: secret_access(&directory), files }))
}

fn secret_access(metadata: &fs::Metadata) -> SecretAccess {
    SecretAccess { owner: metadata.uid(), mode: metadata.mode() & 0o7777 }
}

/// Checks whether the agent could read a secret.
pub fn needed_secret(dir: &Path, (name, used_by): (String, String)) -> NeededSecret {
    let problem = secret_name(&name).and_then(|name| secrets::read(dir, &name)).err();
    NeededSecret { name, used_by, problem }
}

/// The nearest ancestor directory that exists.
fn nearest(path: &Path) -> &Path {
    path.ancestors().find(|above| above.is_dir()).unwrap_or(Path::new("/"))
}

/// Writes and removes a file. This detects missing permissions, a read-only mount and a full disk.
fn write(dir: &Path) -> Checked<()> {
    remove_leftovers(dir);
    let path = dir.join(".doctor");
    let written = fs::write(&path, "x");
    // On a full disk the file exists although nothing was written.
    let removed = fs::remove_file(&path);
    written.and(removed).map_err(|error| error.to_string())
}

/// Removes the files of earlier versions, whose names had a process ID, and which stayed when the
/// process was killed or the disk was full.
fn remove_leftovers(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(".doctor-") {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether an agent has the lock. An agent that starts at the same moment exits and is restarted.
pub fn is_in_use(dir: &Path) -> bool {
    let lock = File::open(dir.join("lock")).map(|file| file.try_lock());
    matches!(lock, Ok(Err(TryLockError::WouldBlock)))
}

fn database(dir: &Path) -> (DatabaseState, Option<Replica>) {
    let written = match fs::metadata(dir.join("neptune.db")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return (DatabaseState::Absent, None);
        }
        // Left empty by a power cut after its creation: the agent initializes it.
        Ok(metadata) if metadata.len() == 0 => return (DatabaseState::Absent, None),
        result => result.and_then(|metadata| metadata.modified()).ok(),
    };
    let read = |store: Store| Ok((store.replica()?, store.problems()?));
    match Store::read_only(dir).and_then(read) {
        Ok((replica, problems)) => {
            let written = written.and_then(|at| Timestamp::try_from(at).ok());
            let objects = replica.objects().len();
            (DatabaseState::Valid { objects, written, problems }, Some(replica))
        }
        Err(error) => (DatabaseState::Invalid(error.to_string()), None),
    }
}

/// The file system of a directory, which need not exist yet.
pub fn disk(path: &Path, reserve: u64) -> Checked<DiskFacts> {
    let stat = statvfs(nearest(path)).map_err(|error| error.to_string())?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Ok(DiskFacts { free: bytes(stat.f_bavail), size: bytes(stat.f_blocks), reserve })
}

/// The file system of a directory that exists.
pub fn directory(path: &Path) -> Checked<DiskFacts> {
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !metadata.is_dir() {
        return Err("it is not a directory".to_owned());
    }
    disk(path, 0)
}

/// Connects, subscribes and disconnects. Has no time limit.
pub async fn broker(options: LinkOptions) -> Checked<()> {
    // The finding contains the address already.
    let address = format!("{}: ", options.url);
    let (link, mut events) = Link::start(options).map_err(|error| error.to_string())?;
    let answer = loop {
        match events.next().await {
            Some(LinkEvent::Up) => break Ok(()),
            Some(LinkEvent::Down { reason }) => {
                break Err(reason.strip_prefix(&address).unwrap_or(&reason).to_owned());
            }
            Some(LinkEvent::Message(_)) => {}
            None => break Err("the connection was closed".to_owned()),
        }
    };
    link.close(Duration::ZERO).await;
    answer
}

/// Whether no process listens on this address.
pub async fn is_free(address: SocketAddr) -> bool {
    TcpStream::connect(address).await.is_err()
}

/// Whether a program listens for peers on this address.
///
/// # Errors
/// None does, and none can.
pub async fn peer_listener(listen: SocketAddr) -> Checked<bool> {
    if !is_free(reachable(listen)).await {
        return Ok(true);
    }
    neptune_share::peers::bind(listen).map(|_| false).map_err(|error| error.to_string())
}

/// Whether the clock is synchronized according to systemd, with any NTP client.
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
    let resolved = tokio::net::lookup_host((host, 0)).await.map_err(|error| error.to_string())?;
    let mut addresses: Vec<_> = resolved.map(|address| address.ip()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.is_empty() { Err("the host has no address".to_owned()) } else { Ok(addresses) }
}

/// The certificates of a PEM file, in its order.
pub fn certificates(path: &PathBuf) -> Checked<Vec<CertificateFacts>> {
    let pem = fs::read(path).map_err(|error| error.to_string())?;
    CertificateDer::pem_slice_iter(&pem)
        .map(|der| certificate(&der.map_err(|error| format!("invalid PEM: {error}"))?))
        .collect()
}

fn certificate(der: &CertificateDer<'_>) -> Checked<CertificateFacts> {
    let invalid = |why: String| format!("invalid certificate: {why}");
    let (_, read) = x509_parser::parse_x509_certificate(der).map_err(|e| invalid(e.to_string()))?;
    let time = |seconds| Timestamp::from_second(seconds).map_err(|e| invalid(e.to_string()));
    Ok(CertificateFacts {
        subject: read.subject().to_string(),
        not_before: time(read.validity().not_before.timestamp())?,
        not_after: time(read.validity().not_after.timestamp())?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use neptune_wire::{NodeProblem, NodeProblemReason};

    use super::*;

    #[test]
    fn certificates_are_read_in_order_of_the_file() {
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = |name: &str, year: i32| {
            let mut wanted = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
            wanted.distinguished_name.push(rcgen::DnType::CommonName, name);
            wanted.not_after = rcgen::date_time_ymd(year, 1, 2);
            wanted.self_signed(&key).unwrap().pem()
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), format!("{}\n{}", pem("first", 2031), pem("second", 2032))).unwrap();
        let parsed = certificates(&file.path().to_owned()).unwrap();
        let shown: Vec<_> =
            parsed.iter().map(|one| format!("{} {:.0}", one.subject, one.not_after)).collect();
        assert_eq!(shown, ["CN=first 2031-01-02T00:00:00Z", "CN=second 2032-01-02T00:00:00Z"]);
        fs::write(file.path(), "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n")
            .unwrap();
        let why = certificates(&file.path().to_owned()).unwrap_err();
        assert!(why.starts_with("invalid"), "{why}");
    }

    #[test]
    fn database_is_read_unchanged_while_agent_runs() {
        let dir = tempfile::tempdir().unwrap();
        let files = |dir: &Path| -> Vec<_> {
            let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<_> = names.collect();
            names.sort();
            names
        };
        assert!(matches!(database(dir.path()), (DatabaseState::Absent, None)));
        let mut store = Store::open(dir.path()).unwrap();
        store.start_epoch("x").unwrap();
        let reason = NodeProblemReason::NodeNameInUse;
        let in_use = [NodeProblem { reason, message: "another agent".into() }];
        store.save_problems(&in_use).unwrap();
        let lock = File::create(dir.path().join("lock")).unwrap();
        lock.try_lock().unwrap();
        let names = files(dir.path());
        fs::write(dir.path().join(".doctor-7"), "left by an earlier version").unwrap();
        let (state, replica) = data(dir.path());
        assert!(replica.is_some());
        let Ok(DataState::Present { can_write: Ok(()), is_in_use: true, database: stored, .. }) =
            state
        else {
            panic!("{state:?}")
        };
        let DatabaseState::Valid { objects: 0, written: Some(_), problems } = stored else {
            panic!("{stored:?}")
        };
        assert_eq!(problems, in_use);
        assert_eq!(files(dir.path()), names);
        drop((store, lock));
        assert!(!is_in_use(dir.path()));
        fs::write(dir.path().join("neptune.db"), "not a database, but long enough for one")
            .unwrap();
        assert!(matches!(database(dir.path()), (DatabaseState::Invalid(_), None)));
    }
}
