//! The files of the node's gateways as values: what the agent writes, and the result.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use neptune_gateway_config::Document;
use neptune_wire::{ObjectKey, WorkerName};

/// The directories of a gateway on the node: `<data-dir>/gateways/<id>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GatewayDir(pub PathBuf);

impl GatewayDir {
    /// Returns the directory of the configuration file. The gateway's container has it read-only.
    pub fn config(&self) -> PathBuf {
        self.0.join("config")
    }

    /// The directory in which the gateway keeps its state.
    pub fn state(&self) -> PathBuf {
        self.0.join("state")
    }

    /// The directory of the copies of its secrets.
    pub fn secrets(&self) -> PathBuf {
        self.0.join("secrets")
    }

    /// Returns the path of the configuration file.
    pub fn config_file(&self) -> PathBuf {
        self.config().join("gateway.json")
    }

    /// The socket on which the gateway answers the agent.
    pub fn socket(&self) -> PathBuf {
        self.state().join(SOCKET)
    }

    /// Whether a container has mounted one of the directories.
    pub fn is_mounted(&self, mounted: &BTreeSet<PathBuf>) -> bool {
        mounted.iter().any(|path| path.starts_with(&self.0))
    }
}

/// Name of the gateway's socket in the directory of its state.
pub const SOCKET: &str = "gateway.sock";

/// The files that a gateway must have.
#[derive(Debug, Clone, PartialEq)]
pub struct GatewayFiles {
    /// Key of the `JointInferenceService` to which the gateway belongs.
    pub service: ObjectKey,
    pub worker: WorkerName,
    /// The configuration as the controller sent it.
    pub config: Document,
    /// The version that its model server serves, if the agent knows it.
    pub model_version: Option<String>,
    /// The file with the cloud's token, if the service names one.
    pub token: Option<SecretName>,
    /// The file with certificate authorities, if the service names one.
    pub ca: Option<SecretName>,
    /// The files with the certificate that clients see, if the service names them.
    pub tls: Option<TlsNames>,
    /// Path on the node of the directory for captured samples, if the service captures any.
    pub capture: Option<PathBuf>,
}

/// The files with a certificate and its key.
#[derive(Debug, Clone, PartialEq)]
pub struct TlsNames {
    pub cert: SecretName,
    pub key: SecretName,
}

/// The name of a file in the node's directory of secrets, or why it is invalid.
pub type SecretName = Result<String, String>;

/// The files of all gateways of the node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WantedGateways {
    /// Increases with every change.
    pub revision: u64,
    pub gateways: BTreeMap<GatewayDir, GatewayFiles>,
    /// The paths that containers have mounted. `None`: nothing may be removed now.
    pub mounted: Option<BTreeSet<PathBuf>>,
}

/// The result of writing the files of this revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WrittenGateways {
    pub revision: u64,
    pub gateways: BTreeMap<GatewayDir, WrittenFiles>,
}

/// The result of writing the files of one gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenFiles {
    /// Why the configuration could not be written.
    pub written: Result<(), String>,
    /// The directory for captured samples, with all links resolved, if it can be used.
    pub capture: Option<PathBuf>,
    /// What is wrong with the secrets and with that directory, with the remedy.
    pub notes: Vec<String>,
}

/// Checks the name of a file in the directory of secrets.
///
/// # Errors
/// The reason as text.
pub fn secret_name(name: &str) -> SecretName {
    let is_plain = !name.starts_with('.')
        && Path::new(name).file_name().is_some_and(|file| file == name)
        && !name.chars().any(char::is_control);
    if is_plain && name.len() <= 255 {
        Ok(name.to_owned())
    } else {
        Err(format!(
            "{name:?} is not the plain name of a file; correct tokenFile or caFile of the endpoint, \
             or gateway.tls"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_is_mounted_if_a_container_has_one_of_its_directories() {
        let dir = GatewayDir("/data/gateways/a".into());
        assert!(dir.is_mounted(&[dir.config()].into()) && dir.is_mounted(&[dir.state()].into()));
        assert!(!dir.is_mounted(&["/data/gateways/ab/config".into(), "/data".into()].into()));
    }

    #[test]
    fn secret_is_a_plain_file_name() {
        for name in ["llm", "llm.token", "a b", "A-1_x"] {
            assert_eq!(secret_name(name).as_deref(), Ok(name));
        }
        let long = "x".repeat(256);
        for name in ["", ".", "..", "../llm", "a/b", "/etc/shadow", "a/", ".hidden", "a\n", &long] {
            assert!(secret_name(name).is_err(), "{name:?} was accepted");
        }
    }
}
