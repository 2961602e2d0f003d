//! The client of the Docker engine: connection, version, container events and error messages.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

use bollard::{
    API_DEFAULT_VERSION, errors::Error as DockerError, models::EventMessage,
    query_parameters as query,
};
use futures::{Stream, StreamExt as _};
use neptune_agent_core::{
    devices::engine_support::EngineFacts,
    domain::{
        observed_container::{INSTANCE, MANAGED, NODE},
        problem::Problem,
    },
};
use neptune_wire::{AgentInstance, NodeName, WorkerReason};

use crate::inspect::EngineSocket;

/// Timeout of any single response. Creating a container on a slow disk takes long.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(120);

/// A Docker engine on this machine.
pub struct Docker {
    socket: String,
    /// The file with the credentials for registries.
    pub(crate) registry_config: Option<PathBuf>,
    /// Whether the logs of containers are read.
    pub(crate) reads_logs: bool,
    /// Whether the last lines of trainings and aggregators may leave the node.
    pub(crate) reports_trainings: bool,
    /// Whether workers may request devices, so that the containers of all agents matter.
    offers_devices: bool,
    client: OnceLock<bollard::Docker>,
}

impl Docker {
    /// The engine behind a Unix socket. Connects on first use.
    pub fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_string_lossy().into_owned(),
            registry_config: None,
            reads_logs: true,
            reports_trainings: true,
            offers_devices: false,
            client: OnceLock::new(),
        }
    }

    /// Uses the credentials for registries in this file, which is read at each pull. `None`: pulls
    /// are anonymous.
    #[must_use]
    pub fn with_registry_config(self, registry_config: Option<PathBuf>) -> Self {
        Self { registry_config, ..self }
    }

    /// Whether the logs of containers are read.
    #[must_use]
    pub fn with_logs(self, reads_logs: bool) -> Self {
        Self { reads_logs, ..self }
    }

    /// Whether the last lines of trainings and aggregators may leave the node.
    #[must_use]
    pub fn with_training_logs(self, reports_trainings: bool) -> Self {
        Self { reports_trainings, ..self }
    }

    /// Whether workers may request devices, so that the containers of all agents matter.
    #[must_use]
    pub fn with_devices(self, offers_devices: bool) -> Self {
        Self { offers_devices, ..self }
    }

    /// The labels of the containers that are observed for this node.
    pub(crate) fn observed_labels(&self, node: &NodeName) -> Vec<String> {
        if self.offers_devices { labels_of_all() } else { labels_of(node) }
    }

    pub(crate) fn client(&self) -> Result<&bollard::Docker, DockerError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let seconds = RESPONSE_TIMEOUT.as_secs();
        #[expect(clippy::disallowed_methods, reason = "the one connection to Docker")]
        let client =
            bollard::Docker::connect_with_unix(&self.socket, seconds, API_DEFAULT_VERSION)?;
        Ok(self.client.get_or_init(|| client))
    }

    pub(crate) fn socket(&self) -> EngineSocket<'_> {
        EngineSocket { path: &self.socket, timeout: RESPONSE_TIMEOUT }
    }

    /// The engine's name and version, such as `docker 20.10.24`.
    pub async fn version(&self) -> Result<String, Problem> {
        let version = async { self.client()?.version().await };
        let version = version.await.map_err(|error| self.problem(&error))?;
        // Podman implements Docker's API, and lists itself among the components.
        let parts = version.components.unwrap_or_default();
        let is_podman = parts.iter().any(|part| part.name.starts_with("Podman"));
        let name = if is_podman { "podman" } else { "docker" };
        Ok(format!("{name} {}", version.version.unwrap_or_default()))
    }

    /// What decides about the devices that the engine can pass on.
    ///
    /// # Errors
    /// The engine does not answer.
    pub async fn facts(&self) -> Result<EngineFacts, Problem> {
        let version = self.version().await?;
        let info = self.socket().info().await.map_err(|error| self.problem(&error))?;
        Ok(EngineFacts {
            version,
            has_cdi: info.cdi_spec_dirs.is_some_and(|dirs| !dirs.is_empty()),
            runtimes: info.runtimes.unwrap_or_default().into_keys().collect(),
        })
    }

    /// Yields an item whenever one of this node's containers changed, until the connection is lost.
    /// Includes the events since `since`, in Unix seconds.
    pub fn changes(
        &self,
        node: &NodeName,
        since: i64,
    ) -> Result<impl Stream<Item = Result<ContainerChange, Problem>>, Problem> {
        let client = self.client().map_err(|error| self.problem(&error))?;
        // Without `health_status` and `exec_*`, which occur every few seconds. Podman's filters
        // have other names: `died` for the event `die`, and `remove` for `destroy`.
        let events = [
            "create", "start", "stop", "die", "died", "destroy", "remove", "oom", "pause",
            "unpause",
        ];
        let filters = HashMap::from([
            ("label".to_owned(), self.observed_labels(node)),
            ("type".to_owned(), vec!["container".to_owned()]),
            ("event".to_owned(), events.map(str::to_owned).to_vec()),
        ]);
        let options =
            query::EventsOptionsBuilder::new().since(&since.to_string()).filters(&filters).build();
        let problem = |error: DockerError| self.problem(&error);
        Ok(client.events(Some(options)).map(move |event| event.map(change).map_err(problem)))
    }

    pub(crate) fn problem(&self, error: &DockerError) -> Problem {
        let message = plain(error);
        match status_code(error) {
            Some(_) => Problem {
                reason: WorkerReason::ContainerRefused,
                message: format!("Docker rejected the request: {message}"),
            },
            None => Problem {
                reason: WorkerReason::DockerUnavailable,
                message: format!(
                    "Docker does not answer on {}: {message}; start it, or set --docker-host to its socket",
                    self.socket
                ),
            },
        }
    }
}

/// A change of a container of this node.
#[derive(Debug)]
pub struct ContainerChange {
    /// The ID of the container, if the engine stopped it on request.
    pub stopped: Option<String>,
}

fn change(event: EventMessage) -> ContainerChange {
    let is_stop = event.action.as_deref() == Some("stop");
    let id = event.actor.and_then(|actor| actor.id);
    ContainerChange { stopped: id.filter(|_| is_stop) }
}

/// The labels of the containers of all agents.
pub(crate) fn labels_of_all() -> Vec<String> {
    let (managed, yes) = MANAGED;
    vec![format!("{managed}={yes}")]
}

pub(crate) fn labels_of(node: &NodeName) -> Vec<String> {
    let (managed, yes) = MANAGED;
    vec![format!("{managed}={yes}"), format!("{NODE}={node}")]
}

/// The labels of the containers that a data directory created.
pub(crate) fn labels_of_instance(instance: &AgentInstance) -> Vec<String> {
    let (managed, yes) = MANAGED;
    vec![format!("{managed}={yes}"), format!("{INSTANCE}={}", instance.0)]
}

pub(crate) fn status_code(error: &DockerError) -> Option<u16> {
    match error {
        DockerError::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

pub(crate) fn plain(error: &DockerError) -> String {
    match error {
        DockerError::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        DockerError::SocketNotFoundError(_) => "the socket does not exist".to_owned(),
        other => {
            // Without its causes the error is only "error in the client".
            let mut text = other.to_string();
            let mut cause = std::error::Error::source(other);
            while let Some(inner) = cause {
                text = format!("{text}: {inner}");
                cause = inner.source();
            }
            text
        }
    }
}
