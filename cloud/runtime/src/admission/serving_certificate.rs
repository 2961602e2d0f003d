//! The certificate that the webhook's server presents: set by `certificate_store`, or read from the
//! files that cert-manager renews. Reads those files.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use neptune_program::served_key::{ServedKey, server_config};
use rustls::ServerConfig;
use tokio::time::{MissedTickBehavior, interval};

use crate::error::Error;

/// Time between two reads of the files.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// The certificate that is presented. Until one is set, TLS handshakes fail.
#[derive(Debug, Default)]
pub struct ServingCertificate {
    key: Arc<ServedKey>,
    files: Option<CertificateFiles>,
}

/// A directory with `tls.crt` and `tls.key`.
#[derive(Debug)]
struct CertificateFiles {
    directory: PathBuf,
    /// The content that was read last.
    read: Mutex<Vec<u8>>,
}

impl ServingCertificate {
    /// Presents the certificate of a directory, also after its files change.
    ///
    /// # Errors
    /// [`Error::Certificate`] if the files cannot be used.
    pub fn from_files(directory: &Path) -> Result<Self, Error> {
        let files = CertificateFiles { directory: directory.to_owned(), read: Mutex::default() };
        let serving_certificate = Self { key: Arc::default(), files: Some(files) };
        serving_certificate.refresh()?;
        Ok(serving_certificate)
    }

    /// Presents another certificate from now on.
    ///
    /// # Errors
    /// Why it cannot be used; the previous one stays.
    pub fn set(&self, certificate: &str, key: &str) -> Result<(), String> {
        self.key.set(certificate.as_bytes(), key.as_bytes())
    }

    /// Presents changed files, indefinitely. How often they are read does not depend on clients.
    pub async fn follow_files(&self) {
        let mut ticks = interval(REFRESH_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_failing = false;
        loop {
            ticks.tick().await;
            let refreshed = self.refresh();
            if let Err(error) = &refreshed
                && !is_failing
            {
                tracing::warn!(%error, "cannot reload the webhook certificate; keeping the previous one");
            }
            is_failing = refreshed.is_err();
        }
    }

    /// Reads the files again, if any. While they do not match, the previous certificate stays.
    ///
    /// # Errors
    /// [`Error::Certificate`], once per content that cannot be used.
    fn refresh(&self) -> Result<(), Error> {
        let Some(files) = &self.files else { return Ok(()) };
        let error = |why: String| Error::Certificate { path: files.directory.clone(), why };
        let read = |name: &str| {
            std::fs::read(files.directory.join(name)).map_err(|why| error(format!("{name}: {why}")))
        };
        let (certificate, key) = (read("tls.crt")?, read("tls.key")?);
        let content = [&*certificate, &*key].concat();
        let mut last = files.read.lock().expect("nothing panics while it holds this lock");
        if *last == content {
            return Ok(());
        }
        *last = content;
        self.key.set(&certificate, &key).map_err(error)?;
        tracing::info!(directory = %files.directory.display(), "webhook certificate loaded");
        Ok(())
    }
}

/// The TLS configuration of the server.
pub fn tls(serving_certificate: &ServingCertificate) -> ServerConfig {
    server_config(Arc::clone(&serving_certificate.key), &[b"http/1.1"])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::unwrap_used)]
    use jiff::{SignedDuration, Timestamp};

    use super::*;
    use crate::admission::certificate::issue;

    fn write(directory: &Path, certificate: &str, key: &str) {
        std::fs::write(directory.join("tls.crt"), certificate).unwrap();
        std::fs::write(directory.join("tls.key"), key).unwrap();
    }

    fn first(serving_certificate: &ServingCertificate) -> Vec<u8> {
        serving_certificate.key.get().unwrap().cert[0].to_vec()
    }

    #[test]
    fn changed_files_are_reloaded_if_they_match() {
        let issued = || {
            let names = ["localhost".to_owned()];
            issue(&names, SignedDuration::from_hours(1), Timestamp::now()).unwrap()
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let error = ServingCertificate::from_files(path).unwrap_err().to_string();
        assert!(error.contains("--webhook-cert-dir") && error.contains("tls.crt"), "{error}");
        let (one, two) = (issued(), issued());
        write(path, &one.certificate, &one.key);
        let serving_certificate = ServingCertificate::from_files(path).unwrap();
        let before = first(&serving_certificate);
        write(path, &two.certificate, &one.key);
        assert!(serving_certificate.refresh().unwrap_err().to_string().contains("KeyMismatch"));
        assert!(serving_certificate.refresh().is_ok(), "each content is reported once");
        assert_eq!(first(&serving_certificate), before);
        write(path, &two.certificate, &two.key);
        serving_certificate.refresh().unwrap();
        assert_ne!(first(&serving_certificate), before);
        std::fs::remove_file(path.join("tls.crt")).unwrap();
        assert!(serving_certificate.refresh().is_err());
        assert_ne!(first(&serving_certificate), before);
    }
}
