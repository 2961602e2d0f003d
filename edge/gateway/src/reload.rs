//! Reads the configuration and the token again when their files change.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use neptune_program::served_key::certified_key;
use tracing::{error, info, warn};

use crate::{
    config::{Config, Tls},
    error::Error,
    gateway::{Gateway, Service},
    upstream::read_token,
};

/// The longest file of a certificate or key in bytes.
const MAX_PEM: u64 = 1024 * 1024;

/// The files, as they were read last.
#[derive(Debug)]
pub struct Files {
    config: PathBuf,
    content: Vec<u8>,
    /// The problem of the token file that was logged last.
    token_problem: Option<String>,
    /// The token file that was read last.
    token: Option<WrittenFile>,
    /// The content of the certificate and of its key that was read last.
    certificate: Option<(Vec<u8>, Vec<u8>)>,
}

/// A file in one state: another one after each write.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WrittenFile {
    path: PathBuf,
    inode: u64,
    modified: (i64, i64),
}

impl WrittenFile {
    fn from_path(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Some(Self { path: path.to_owned(), inode: metadata.ino(), modified })
    }
}

impl Files {
    /// The files of a configuration.
    pub fn new(config: &Path) -> Self {
        Self {
            config: config.to_owned(),
            content: Vec::new(),
            token_problem: None,
            token: None,
            certificate: None,
        }
    }

    /// Reads the configuration.
    ///
    /// # Errors
    /// It cannot be read, or is not valid.
    pub fn read_config(&mut self) -> Result<Config, Error> {
        let path = || self.config.clone();
        let content =
            fs::read(&self.config).map_err(|source| Error::ReadConfig { path: path(), source })?;
        let config = Config::parse(&content);
        let config = config.map_err(|source| Error::Config { path: path(), source });
        self.content = content;
        config
    }

    fn is_changed(&self) -> bool {
        // A file that is being replaced may be absent for a moment.
        fs::read(&self.config).is_ok_and(|content| content != self.content)
    }

    /// Gives the cloud's client the token of the file. A file that was written closes the breaker, also
    /// with the same token: its writer expects that it is tried.
    pub fn refresh_token(&mut self, gateway: &Gateway) {
        if self.load_token(&gateway.service()) {
            gateway.decisions().reset_breaker();
        }
    }

    /// Whether the file was written, or its token is another one than the client's. The client has it
    /// then.
    fn load_token(&mut self, service: &Service) -> bool {
        let Some(cloud) = &service.cloud else { return false };
        let file = service.config.cloud.as_ref().and_then(|cloud| cloud.token_file.as_deref());
        let Some(file) = file else { return false };
        let now = WrittenFile::from_path(file);
        let before = std::mem::replace(&mut self.token, now.clone());
        let is_written =
            before.zip(now).is_some_and(|(before, now)| before.path == now.path && before != now);
        let set = match read_token(file) {
            Ok(token) => cloud.set_token(Some(&token)).map_err(str::to_owned),
            Err(problem) => Err(problem.to_string()),
        };
        match set {
            Ok(is_other) => {
                self.token_problem = None;
                return is_other || is_written;
            }
            // The token that was read before stays in use.
            Err(problem) if self.token_problem.as_ref() != Some(&problem) => {
                warn!("token file {}: {problem}", file.display());
                self.token_problem = Some(problem);
            }
            Err(_) => {}
        }
        false
    }
}

impl Files {
    /// Uses the certificate of the configuration. One that cannot be used is logged and reported,
    /// and the one before stays; without any, handshakes fail.
    pub fn refresh_certificate(&mut self, gateway: &Gateway) {
        let service = gateway.service();
        let Some(tls) = &service.config.tls else {
            gateway.tls.require(false);
            gateway.set_certificate_problem(None);
            self.certificate = None;
            return;
        };
        gateway.tls.require(true);
        let problem = match read_certificate(tls) {
            Err(problem) => {
                self.certificate = None;
                problem
            }
            Ok(read) if self.certificate.as_ref() == Some(&read) => return,
            Ok(read) => {
                let set = gateway.tls.set(&read.0, &read.1);
                self.certificate = Some(read);
                match set {
                    Ok(()) => {
                        info!("the certificate {} is presented", tls.cert_file.display());
                        gateway.set_certificate_problem(None);
                        return;
                    }
                    Err(why) => format!(
                        "tls.certFile {} and tls.keyFile {}: {why}",
                        tls.cert_file.display(),
                        tls.key_file.display()
                    ),
                }
            }
        };
        let problem = if gateway.tls.has_certificate() {
            problem
        } else {
            format!("{problem}, so no client can connect")
        };
        if gateway.certificate_problem().as_ref() != Some(&problem) {
            error!("{problem}; correct the files of gateway.tls, which are read again");
            gateway.set_certificate_problem(Some(problem));
        }
    }

    /// Checks that the certificate of a configuration can be used.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn check_certificate(config: &Config) -> Result<(), Error> {
        let Some(tls) = &config.tls else { return Ok(()) };
        let (chain, key) = read_certificate(tls).map_err(Error::Certificate)?;
        let checked = certified_key(&chain, &key).map(drop);
        checked.map_err(|why| Error::Certificate(format!("tls: {why}")))
    }
}

/// The content of both files.
fn read_certificate(tls: &Tls) -> Result<(Vec<u8>, Vec<u8>), String> {
    let read = |field: &str, path: &Path| {
        let problem = |error: String| format!("{field} {}: {error}", path.display());
        let file = fs::File::open(path).map_err(|error| problem(error.to_string()))?;
        let mut content = Vec::new();
        let read = file.take(MAX_PEM).read_to_end(&mut content);
        match read.map_err(|error| problem(error.to_string()))? as u64 {
            MAX_PEM => Err(problem(format!("it has {MAX_PEM} bytes or more"))),
            _ => Ok(content),
        }
    };
    Ok((read("tls.certFile", &tls.cert_file)?, read("tls.keyFile", &tls.key_file)?))
}

/// Applies what changed. An invalid configuration is logged and reported, and the one in force
/// stays.
pub fn refresh(gateway: &Gateway, files: &mut Files) {
    if files.is_changed() {
        let before = gateway.service();
        match files.read_config().and_then(Service::new) {
            Ok(service) => {
                let (old, new) = (&before.config, &service.config);
                let addresses = |config: &Config| {
                    (config.listen, config.metrics_listen.clone(), config.grpc_listen)
                };
                if addresses(old) != addresses(new) {
                    warn!("another listen, metricsListen or grpcListen needs a restart");
                }
                // Before the first request can use it.
                service.inherit_token(&before);
                let is_other_token = files.load_token(&service);
                gateway.apply(service);
                gateway.set_configuration_problem(None);
                if is_other_token {
                    gateway.decisions().reset_breaker();
                }
                info!("the configuration {} was read again", files.config.display());
            }
            Err(problem) => {
                error!("{problem}; the configuration before stays in force");
                // Not the path, which is that in the container.
                let problem = match problem {
                    Error::Config { source, .. } => source.to_string(),
                    other => other.to_string(),
                };
                gateway.set_configuration_problem(Some(problem));
            }
        }
    }
    files.refresh_token(gateway);
    files.refresh_certificate(gateway);
}
