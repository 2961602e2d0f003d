//! Runs the program: makes the key and reports its pin, or opens the data directory and serves until
//! SIGTERM.

use std::{fs, io, path::Path, sync::Arc};

use neptune_pinned_tls::TlsKey;
use neptune_program::stop_signal;
use tracing::info;

use crate::{aggregator::Aggregator, cli::Cli, error::Error, fetch, http::server, work};

/// The key in the data directory.
const KEY: &str = "tls.key";

/// Makes the key of this data directory unless it exists, and writes its pin to the file `report`.
///
/// # Errors
/// A file cannot be read or written.
pub fn report_pin(data_dir: &Path, report: &Path) -> Result<(), Error> {
    fs::create_dir_all(data_dir).map_err(Error::file(data_dir))?;
    let key = TlsKey::load_or_generate(&data_dir.join(KEY))?;
    fs::write(report, &key.pin().0).map_err(Error::file(report))?;
    info!(pin = key.pin().0, "key is ready");
    Ok(())
}

/// Serves until SIGTERM or SIGINT, and then stops at once: all state is on the disk.
///
/// # Errors
/// The key, the data directory or the address cannot be used.
pub async fn run(cli: Cli) -> Result<(), Error> {
    if let Some(report) = &cli.report_pin {
        return report_pin(&cli.data_dir, report);
    }
    let stop = stop_signal().map_err(|error| Error::Start(error.to_string()))?;
    let aggregator = Arc::new(Aggregator::open(&cli.data_dir)?);
    let key = match &cli.key_file {
        // A missing file of this flag is an error: nobody would know a new key.
        Some(path) => read_key(path)?,
        None => TlsKey::load_or_generate(&cli.data_dir.join(KEY))?,
    };
    let controller = cli.controller_pin.unwrap_or_else(|| key.pin().clone());
    let listener = server::bind(cli.listen)?;
    let address = listener.local_addr().unwrap_or(cli.listen);
    info!(%address, pin = key.pin().0, "serving");
    tokio::select! {
        () = server::serve(listener, key, controller, Arc::clone(&aggregator)) => {}
        () = work::run(aggregator, fetch::client()?) => {}
        () = stop => {}
    }
    info!("stopping");
    Ok(())
}

fn read_key(path: &Path) -> Result<TlsKey, Error> {
    match fs::read_to_string(path) {
        Ok(pem) => Ok(TlsKey::from_pem(&pem, &path.display().to_string())?),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
            Err(Error::KeyMissing(path.to_owned()))
        }
        Err(source) => Err(Error::file(path)(source)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_transfer::durable;

    use super::*;

    #[test]
    fn reported_pin_is_that_of_the_key_until_the_directory_is_lost() {
        let volume = tempfile::tempdir().unwrap();
        let (data, report) = (volume.path().join("data"), volume.path().join("report"));
        let reported = || {
            report_pin(&data, &report).unwrap();
            fs::read_to_string(&report).unwrap()
        };
        let first = reported();
        assert_eq!(reported(), first);
        assert_eq!(read_key(&data.join(KEY)).unwrap().pin().0, first);
        fs::remove_dir_all(&data).unwrap();
        let error = read_key(&data.join(KEY)).unwrap_err().to_string();
        assert!(error.contains("tls.key does not exist") && error.contains("delete the Pod"));
        assert_ne!(reported(), first);
    }

    #[test]
    fn key_that_a_kill_left_incomplete_is_not_used() {
        let data = tempfile::tempdir().unwrap();
        let key = TlsKey::generate();
        let half = &key.to_pem()[..key.to_pem().len() / 2];
        // The temporary file of a key whose program was killed while it wrote.
        let temporary = durable::temporary(&data.path().join(KEY));
        fs::write(&temporary, half).unwrap();
        let report = data.path().join("report");
        report_pin(data.path(), &report).unwrap();
        let held = read_key(&data.path().join(KEY)).unwrap();
        assert_eq!(fs::read_to_string(&report).unwrap(), held.pin().0);
        assert_ne!(held.pin(), key.pin());
        assert!(!temporary.exists());
    }
}
