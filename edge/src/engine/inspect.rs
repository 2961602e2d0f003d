//! Lists and inspects containers, reading only the necessary fields. Does not use bollard's types:
//! Podman has states that Docker's schema does not know, such as `stopped`, and one container in
//! such a state would fail the whole list.

use std::{collections::HashMap, fmt::Write as _, io::ErrorKind, time::Duration};

use bollard::errors::Error as DockerError;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::net::UnixStream;

/// What of a container is listed.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ContainerSummary {
    pub id: String,
    #[serde(default)]
    pub labels: Option<HashMap<String, String>>,
}

/// A container by itself.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ContainerDetails {
    pub state: InspectedState,
    #[serde(default)]
    pub mounts: Option<Vec<InspectedMount>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct InspectedState {
    pub status: String,
    pub exit_code: i64,
    #[serde(rename = "OOMKilled")]
    pub oom_killed: bool,
    pub started_at: String,
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
    /// Made and never started, or something that only making it anew helps.
    Unusable,
}

impl InspectedState {
    pub fn lifecycle(&self) -> Lifecycle {
        match self.status.as_str() {
            "running" | "stopping" => Lifecycle::Running,
            "paused" => Lifecycle::Paused,
            "removing" => Lifecycle::Removing,
            // Podman's, until it has cleaned up behind it; for ever, if that process was killed.
            "exited" | "stopped" => Lifecycle::Exited,
            _ => Lifecycle::Unusable,
        }
    }
}

/// An engine's socket, and how long an answer may take.
#[derive(Debug, Clone, Copy)]
pub struct EngineSocket<'a> {
    pub path: &'a str,
    pub within: Duration,
}

impl EngineSocket<'_> {
    /// All containers with these labels, running or not.
    pub async fn list(&self, labels: &[String]) -> Result<Vec<ContainerSummary>, DockerError> {
        let filters = serde_json::json!({ "label": labels }).to_string();
        self.get(&format!("/containers/json?all=true&filters={}", encoded(&filters))).await
    }

    /// The container of this id or name; `None` if there is none.
    pub async fn inspect(&self, container: &str) -> Result<Option<ContainerDetails>, DockerError> {
        let path = format!("/containers/{}/json", encoded(container));
        match self.get(&path).await {
            Ok(details) => Ok(Some(details)),
            Err(DockerError::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, DockerError> {
        let asking = tokio::time::timeout(self.within, self.request(path));
        let (status_code, body) = asking.await.map_err(|_| DockerError::RequestTimeoutError)??;
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
        // It ends with the sender.
        tokio::spawn(connection);
        let request = Request::get(path).header(HOST, "docker").body(Empty::<Bytes>::new())?;
        let answer = sender.send_request(request).await?;
        let status = answer.status().as_u16();
        Ok((status, answer.into_body().collect().await?.to_bytes()))
    }
}

/// For a part of a URL.
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
    struct Refusal {
        message: String,
    }
    let refusal: Option<Refusal> = serde_json::from_slice(body).ok();
    refusal.map_or_else(|| String::from_utf8_lossy(body).into_owned(), |refusal| refusal.message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn lifecycle(status: &str) -> Lifecycle {
        let inspected = serde_json::json!({"State": {"Status": status, "Running": false}});
        serde_json::from_value::<ContainerDetails>(inspected).unwrap().state.lifecycle()
    }

    #[test]
    fn every_docker_and_podman_state_maps_to_a_lifecycle() {
        for (status, means) in [
            ("created", Lifecycle::Unusable),
            ("running", Lifecycle::Running),
            ("paused", Lifecycle::Paused),
            ("restarting", Lifecycle::Unusable),
            ("removing", Lifecycle::Removing),
            ("exited", Lifecycle::Exited),
            ("dead", Lifecycle::Unusable),
            // Podman's alone.
            ("stopping", Lifecycle::Running),
            ("stopped", Lifecycle::Exited),
            ("configured", Lifecycle::Unusable),
            ("initialized", Lifecycle::Unusable),
            ("unknown", Lifecycle::Unusable),
            ("", Lifecycle::Unusable),
        ] {
            assert_eq!(lifecycle(status), means, "{status:?}");
        }
    }

    #[test]
    fn fields_that_the_engine_omits_are_none() {
        let bare: ContainerDetails =
            serde_json::from_str(r#"{"State": {}, "Mounts": null}"#).unwrap();
        assert!(bare.mounts.is_none() && bare.state.exit_code == 0);
        let summary: ContainerSummary =
            serde_json::from_str(r#"{"Id": "a", "State": "stopped"}"#).unwrap();
        assert!(summary.labels.is_none());
    }

    #[test]
    fn filter_is_percent_encoded_in_the_url() {
        assert_eq!(encoded(r#"{"a":["b=c-1"]}"#), "%7B%22a%22%3A%5B%22b%3Dc-1%22%5D%7D");
    }
}
