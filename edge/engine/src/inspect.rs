//! Lists and inspects containers, and parses only the fields that the agent uses. bollard's types
//! are not used: Podman has states that Docker's schema does not contain, such as `stopped`, and
//! one container in such a state would make the whole list fail.

use std::{collections::HashMap, fmt::Write as _, io::ErrorKind, net::IpAddr, time::Duration};

use bollard::errors::Error as DockerError;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::net::UnixStream;

/// A container as the engine's list describes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ContainerSummary {
    pub id: String,
    #[serde(default)]
    pub labels: Option<HashMap<String, String>>,
    #[serde(default, rename = "ImageID")]
    pub image_id: String,
    #[serde(default)]
    pub state: String,
}

impl ContainerSummary {
    /// Whether the engine knows that its processes ended, or never began.
    pub fn is_stopped(&self) -> bool {
        self.has_ended() || self.state == "created"
    }

    /// Whether the engine knows that its processes ended.
    pub fn has_ended(&self) -> bool {
        matches!(self.state.as_str(), "exited" | "stopped" | "dead")
    }

    /// Whether its processes have begun, and may still run.
    pub fn has_started(&self) -> bool {
        !self.has_ended()
            && !matches!(self.state.as_str(), "created" | "configured" | "initialized")
    }
}

/// What the agent reads of the engine's description of one container.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ContainerDetails {
    pub state: InspectedState,
    #[serde(default)]
    pub mounts: Option<Vec<InspectedMount>>,
    /// When it was created.
    #[serde(default)]
    pub created: String,
    #[serde(default)]
    pub network_settings: Option<InspectedNetworks>,
}

/// The networks of a container.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct InspectedNetworks {
    pub networks: Option<HashMap<String, InspectedNetwork>>,
}

/// A container's place in a network.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct InspectedNetwork {
    /// Empty in the network of the node, and while the container does not run.
    #[serde(rename = "IPAddress")]
    pub ip_address: String,
}

impl InspectedNetworks {
    /// The container's address in its network; `None` in that of the node.
    pub fn address(&self) -> Option<IpAddr> {
        let networks = self.networks.as_ref()?;
        networks.values().find_map(|network| network.ip_address.parse().ok())
    }
}

/// What the agent reads of the engine's description of a program that it started in a container.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct InspectedExec {
    pub running: bool,
    /// Absent while it runs.
    #[serde(default)]
    pub exit_code: Option<i64>,
}

/// What the agent reads of the engine's description of itself.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct EngineInfo {
    /// The directories of CDI specs. Empty or absent: the engine has no CDI, or it is off.
    #[serde(default, rename = "CDISpecDirs")]
    pub cdi_spec_dirs: Option<Vec<String>>,
    #[serde(default)]
    pub runtimes: Option<HashMap<String, serde_json::Value>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct InspectedState {
    pub status: String,
    pub exit_code: i64,
    #[serde(rename = "OOMKilled")]
    pub oom_killed: bool,
    pub started_at: String,
    pub finished_at: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct InspectedMount {
    pub source: Option<String>,
}

/// What a state means for the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifecycle {
    Running,
    Paused,
    Removing,
    Exited,
    /// Created and never started, or in a state that only recreating it solves.
    Unusable,
}

impl InspectedState {
    pub fn lifecycle(&self) -> Lifecycle {
        match self.status.as_str() {
            "running" | "stopping" => Lifecycle::Running,
            "paused" => Lifecycle::Paused,
            "removing" => Lifecycle::Removing,
            // `stopped` is Podman's state until its cleanup process has finished; permanent if that
            // was killed.
            "exited" | "stopped" => Lifecycle::Exited,
            _ => Lifecycle::Unusable,
        }
    }
}

/// An engine's socket, and the timeout of a response.
#[derive(Debug, Clone, Copy)]
pub struct EngineSocket<'a> {
    pub path: &'a str,
    pub timeout: Duration,
}

impl EngineSocket<'_> {
    /// All containers with these labels, running or not.
    pub async fn list(&self, labels: &[String]) -> Result<Vec<ContainerSummary>, DockerError> {
        let filters = serde_json::json!({ "label": labels }).to_string();
        self.get(&format!("/containers/json?all=true&filters={}", encoded(&filters))).await
    }

    /// The container of this ID or name; `None` if it does not exist.
    pub async fn inspect(&self, container: &str) -> Result<Option<ContainerDetails>, DockerError> {
        self.inspect_as(container).await
    }

    /// The container of this ID or name, with other fields; `None` if it does not exist.
    pub async fn inspect_as<T: DeserializeOwned>(
        &self,
        container: &str,
    ) -> Result<Option<T>, DockerError> {
        let path = format!("/containers/{}/json", encoded(container));
        match self.get(&path).await {
            Ok(details) => Ok(Some(details)),
            Err(DockerError::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The program of this ID in a container; `None` if the engine does not know it.
    pub async fn exec(&self, id: &str) -> Result<Option<InspectedExec>, DockerError> {
        match self.get(&format!("/exec/{}/json", encoded(id))).await {
            Ok(exec) => Ok(Some(exec)),
            Err(DockerError::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What the engine states of itself.
    pub async fn info(&self) -> Result<EngineInfo, DockerError> {
        self.get("/info").await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, DockerError> {
        let response = tokio::time::timeout(self.timeout, self.request(path));
        let (status_code, body) =
            response.await.map_err(|_| DockerError::RequestTimeoutError)??;
        if (200..300).contains(&status_code) {
            return Ok(serde_json::from_slice(&body)?);
        }
        Err(DockerError::DockerResponseServerError { status_code, message: message(&body) })
    }

    async fn request(&self, path: &str) -> Result<(u16, Bytes), DockerError> {
        let stream = UnixStream::connect(self.path).await.map_err(|error| match error.kind() {
            ErrorKind::NotFound => DockerError::SocketNotFoundError(self.path.to_owned()),
            _ => error.into(),
        })?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // The task ends when the sender is dropped.
        tokio::spawn(connection);
        let request = Request::get(path).header(HOST, "docker").body(Empty::<Bytes>::new())?;
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }
}

/// Percent-encodes a text for one part of a URL.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut url, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            url.push(char::from(byte));
        } else {
            let _ = write!(url, "%{byte:02X}");
        }
        url
    })
}

fn message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct ErrorBody {
        message: String,
    }
    let error: Option<ErrorBody> = serde_json::from_slice(body).ok();
    error.map_or_else(|| String::from_utf8_lossy(body).into_owned(), |error| error.message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn lifecycle(status: &str) -> Lifecycle {
        let details = serde_json::json!({"State": {"Status": status, "Running": false}});
        serde_json::from_value::<ContainerDetails>(details).unwrap().state.lifecycle()
    }

    #[test]
    fn each_state_of_docker_and_podman_has_a_lifecycle() {
        for (status, expected) in [
            ("created", Lifecycle::Unusable),
            ("running", Lifecycle::Running),
            ("paused", Lifecycle::Paused),
            ("restarting", Lifecycle::Unusable),
            ("removing", Lifecycle::Removing),
            ("exited", Lifecycle::Exited),
            ("dead", Lifecycle::Unusable),
            // Only Podman has these.
            ("stopping", Lifecycle::Running),
            ("stopped", Lifecycle::Exited),
            ("configured", Lifecycle::Unusable),
            ("initialized", Lifecycle::Unusable),
            ("unknown", Lifecycle::Unusable),
            ("", Lifecycle::Unusable),
        ] {
            assert_eq!(lifecycle(status), expected, "{status:?}");
        }
    }

    #[test]
    fn fields_missing_in_response_are_empty() {
        let bare: ContainerDetails =
            serde_json::from_str(r#"{"State": {}, "Mounts": null}"#).unwrap();
        assert!(bare.mounts.is_none() && bare.state.exit_code == 0);
        let summary: ContainerSummary =
            serde_json::from_str(r#"{"Id": "a", "State": "stopped"}"#).unwrap();
        assert!(summary.labels.is_none() && summary.is_stopped());
    }

    #[test]
    fn filter_is_percent_encoded() {
        assert_eq!(encoded(r#"{"a":["b=c-1"]}"#), "%7B%22a%22%3A%5B%22b%3Dc-1%22%5D%7D");
    }
}
