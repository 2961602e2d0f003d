//! Talks to the Docker engine: shows this node's containers, makes, starts, stops and removes them.
//! What to do is decided elsewhere; nothing without this node's labels is ever changed here.

use std::{collections::HashMap, path::Path, sync::OnceLock, time::Duration};

use bollard::{
    API_DEFAULT_VERSION, container::LogOutput, errors::Error as DockerError,
    query_parameters as query,
};
use futures::{Stream, StreamExt as _};
use neptune_wire::{NodeName, WorkerReason};

use crate::{
    domain::{
        container::{ContainerSpec, container_name},
        observed_container::{
            ContainerExit, ContainerIdentity, ContainerState, MANAGED, NODE, ObservedContainer,
            VERSION,
        },
        outcome::StepOutcome,
        problem::Problem,
    },
    engine::{
        create::create_request,
        inspect::{ContainerDetails, EngineSocket, Lifecycle},
    },
};

/// For any single answer of the engine. Creating a container on a slow disk takes long.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);
/// A pull that shows no progress for so long is given up, to be tried again.
const PULL_STALLED: Duration = Duration::from_secs(10 * 60);
/// The last lines of a container that ended, and their longest form.
const LAST_LINES: &str = "5";
const LAST_WORDS: usize = 600;

/// A Docker engine on this machine.
pub struct Docker {
    socket: String,
    client: OnceLock<bollard::Docker>,
}

impl Docker {
    /// The engine behind a Unix socket. Nothing is connected yet.
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_string_lossy().into_owned(), client: OnceLock::new() }
    }

    fn client(&self) -> Result<&bollard::Docker, DockerError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let seconds = ANSWER_WITHIN.as_secs();
        #[expect(clippy::disallowed_methods, reason = "the one connection to Docker")]
        let client =
            bollard::Docker::connect_with_unix(&self.socket, seconds, API_DEFAULT_VERSION)?;
        Ok(self.client.get_or_init(|| client))
    }

    fn socket(&self) -> EngineSocket<'_> {
        EngineSocket { path: &self.socket, within: ANSWER_WITHIN }
    }

    /// The engine's name and version, if it answers.
    pub async fn version(&self) -> Result<String, Problem> {
        let version = async { self.client()?.version().await };
        let version = version.await.map_err(|error| self.problem(&error))?;
        // Podman speaks as Docker, and says so.
        let parts = version.components.unwrap_or_default();
        let is_podman = parts.iter().any(|part| part.name.starts_with("Podman"));
        let name = if is_podman { "podman" } else { "docker" };
        Ok(format!("{name} {}", version.version.unwrap_or_default()))
    }

    /// Resolves to an item whenever one of this node's containers changed, until the engine goes away.
    /// `since`, in Unix seconds, brings back what happened before the connection was there.
    pub fn changes(
        &self,
        node: &NodeName,
        since: i64,
    ) -> Result<impl Stream<Item = Result<(), Problem>>, Problem> {
        let client = self.client().map_err(|error| self.problem(&error))?;
        // Not `health_status` and `exec_*`, which come every few seconds. Podman filters by names of
        // its own, `died` for what it then calls `die`, and `remove` for `destroy`.
        let events =
            ["create", "start", "die", "died", "destroy", "remove", "oom", "pause", "unpause"];
        let filters = HashMap::from([
            ("label".to_owned(), labels_of(node)),
            ("type".to_owned(), vec!["container".to_owned()]),
            ("event".to_owned(), events.map(str::to_owned).to_vec()),
        ]);
        let options =
            query::EventsOptionsBuilder::new().since(&since.to_string()).filters(&filters).build();
        let problem = |error: DockerError| self.problem(&error);
        Ok(client.events(Some(options)).map(move |event| event.map(drop).map_err(problem)))
    }

    /// The containers that carry this node's labels, whatever data directory made them.
    pub async fn observe(&self, node: &NodeName) -> Result<Vec<ObservedContainer>, Problem> {
        self.list(node).await.map_err(|error| self.problem(&error))
    }

    async fn list(&self, node: &NodeName) -> Result<Vec<ObservedContainer>, DockerError> {
        let mut containers = Vec::new();
        for summary in self.socket().list(&labels_of(node)).await? {
            let mut labels = summary.labels.unwrap_or_default();
            let Some(identity) = ContainerIdentity::of(&labels, node) else { continue };
            let version = labels.remove(VERSION);
            if let Some(details) = self.details(&summary.id).await? {
                let container = self.container(summary.id, identity, details).await?;
                containers.push(ObservedContainer { version, ..container });
            }
        }
        Ok(containers)
    }

    /// `None` if there is no such container any more.
    async fn details(&self, id: &str) -> Result<Option<ContainerDetails>, DockerError> {
        match self.socket().inspect(id).await {
            // Podman fails in the middle of an answer on a container that goes just then.
            Err(error) if status(&error).is_some() => self.socket().inspect(id).await,
            answer => answer,
        }
    }

    async fn container(
        &self,
        id: String,
        identity: ContainerIdentity,
        details: ContainerDetails,
    ) -> Result<ObservedContainer, DockerError> {
        let shown = details.state;
        let state = match shown.standing() {
            Lifecycle::Runs => ContainerState::Running,
            Lifecycle::Paused => ContainerState::Paused,
            Lifecycle::Goes => ContainerState::Removing,
            Lifecycle::Ended => ContainerState::Ended(ContainerExit {
                exit_code: shown.exit_code,
                out_of_memory: shown.oom_killed,
                log_tail: self.last_words(&id).await?,
            }),
            Lifecycle::Unusable => ContainerState::Unusable,
        };
        let mounts = details.mounts.unwrap_or_default();
        let sources = mounts.into_iter().filter_map(|mount| mount.source).collect();
        Ok(ObservedContainer {
            id,
            identity,
            state,
            started_at: shown.started_at,
            sources,
            version: None,
        })
    }

    async fn last_words(&self, id: &str) -> Result<String, DockerError> {
        let options =
            query::LogsOptionsBuilder::new().stdout(true).stderr(true).tail(LAST_LINES).build();
        let mut text = String::new();
        let mut lines = std::pin::pin!(self.client()?.logs(id, Some(options)));
        while let Some(Ok(line)) = lines.next().await {
            let (LogOutput::StdErr { message }
            | LogOutput::StdOut { message }
            | LogOutput::Console { message }) = line
            else {
                continue;
            };
            text.push_str(&String::from_utf8_lossy(&message));
            // One line may be longer than all that is shown: keep the end.
            let excess = text.chars().count().saturating_sub(LAST_WORDS);
            if excess > 0 {
                text = text.chars().skip(excess).collect();
            }
        }
        let visible = text
            .trim()
            .chars()
            .map(|c| if c == '\n' { '|' } else { c })
            .filter(|c| !c.is_control());
        Ok(visible.collect())
    }

    /// Removes the containers of these ids, then makes and starts one. The image and what is mounted
    /// have to be there; if the image is not, nothing is removed.
    pub async fn start(
        &self,
        identity: &ContainerIdentity,
        spec: &ContainerSpec,
        remove: &[String],
        may_pull: bool,
    ) -> StepOutcome {
        match self.make(identity, spec, remove, may_pull).await {
            Ok(outcome) => outcome,
            Err(error) => StepOutcome::Failed(self.problem(&error)),
        }
    }

    async fn make(
        &self,
        identity: &ContainerIdentity,
        spec: &ContainerSpec,
        remove: &[String],
        may_pull: bool,
    ) -> Result<StepOutcome, DockerError> {
        let client = self.client()?;
        if !self.holds(&spec.image).await? {
            if !may_pull {
                return Ok(StepOutcome::ImageAbsent);
            }
            if let Err(problem) = self.pull_image(&spec.image).await {
                return Ok(StepOutcome::PullFailed(problem.message));
            }
        }
        self.clear(remove).await?;
        let name = container_name(&identity.node, &identity.worker);
        let options = query::CreateContainerOptionsBuilder::new().name(&name).build();
        let created =
            match client.create_container(Some(options), create_request(identity, spec)).await {
                Ok(created) => created,
                // Docker says 409, Podman 500 to whatever goes wrong.
                Err(error) if status(&error).is_some() && self.details(&name).await?.is_some() => {
                    return Ok(StepOutcome::Failed(name_taken(&name)));
                }
                Err(error) => return Err(error),
            };
        client.start_container(&created.id, None::<query::StartContainerOptions>).await?;
        Ok(StepOutcome::Started { id: created.id })
    }

    /// Stops and removes the containers of these ids. One that is gone already is as good as removed.
    pub async fn remove(&self, ids: &[String]) -> StepOutcome {
        match self.clear(ids).await {
            Ok(()) => StepOutcome::Removed,
            Err(error) => StepOutcome::Failed(self.problem(&error)),
        }
    }

    async fn clear(&self, ids: &[String]) -> Result<(), DockerError> {
        let client = self.client()?;
        for id in ids {
            // As long as the container was made to be given, or 10 s. What the engine refuses here, it
            // says again below, unless force helps.
            let stopped = client.stop_container(id, None::<query::StopContainerOptions>).await;
            if let Err(error) = stopped
                && status(&error).is_none()
            {
                return Err(error);
            }
            let force = query::RemoveContainerOptionsBuilder::new().force(true).v(true).build();
            let removed = client.remove_container(id, Some(force)).await;
            match removed {
                // 404, 409: somebody else removed it, or is about to. Podman says 500 to that.
                Err(error) if matches!(status(&error), Some(404 | 409)) => {}
                Err(error) if status(&error).is_some() && self.details(id).await?.is_none() => {}
                removed => removed?,
            }
        }
        Ok(())
    }

    /// Whether the image is on the node.
    pub async fn has_image(&self, image: &str) -> Result<bool, Problem> {
        self.holds(image).await.map_err(|error| self.problem(&error))
    }

    async fn holds(&self, image: &str) -> Result<bool, DockerError> {
        match self.client()?.inspect_image(image).await {
            Ok(_) => Ok(true),
            Err(error) if status(&error) == Some(404) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Has the image brought to the node. Dropping this ends it.
    pub async fn pull_image(&self, image: &str) -> Result<(), Problem> {
        self.pull(image).await.map_err(|why| Problem {
            reason: WorkerReason::ImageMissing,
            message: image_missing(image, &why),
        })
    }

    async fn pull(&self, image: &str) -> Result<(), String> {
        let mut options = query::CreateImageOptionsBuilder::new().from_image(image);
        // Without a tag the engine would pull every tag that there is.
        if !image.rsplit('/').next().unwrap_or(image).contains([':', '@']) {
            options = options.tag("latest");
        }
        let client = self.client().map_err(|error| error.to_string())?;
        let mut progress = client.create_image(Some(options.build()), None, None);
        loop {
            match tokio::time::timeout(PULL_STALLED, progress.next()).await {
                Ok(Some(Ok(_))) => {}
                Ok(Some(Err(error))) => return Err(plain(&error)),
                Ok(None) => return Ok(()),
                Err(_) => return Err(format!("no progress for {} s", PULL_STALLED.as_secs())),
            }
        }
    }

    fn problem(&self, error: &DockerError) -> Problem {
        let message = plain(error);
        match status(error) {
            Some(_) => Problem {
                reason: WorkerReason::ContainerRefused,
                message: format!("Docker refuses: {message}"),
            },
            None => Problem {
                reason: WorkerReason::DockerUnavailable,
                message: format!(
                    "Docker does not answer on {}: {message}; start it, or name its socket with --docker-host",
                    self.socket
                ),
            },
        }
    }
}

fn labels_of(node: &NodeName) -> Vec<String> {
    let (managed, yes) = MANAGED;
    vec![format!("{managed}={yes}"), format!("{NODE}={node}")]
}

fn status(error: &DockerError) -> Option<u16> {
    match error {
        DockerError::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

fn plain(error: &DockerError) -> String {
    match error {
        DockerError::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        DockerError::SocketNotFoundError(_) => "there is no such socket".to_owned(),
        other => {
            // The cause says more than "error in the client".
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

fn image_missing(image: &str, why: &str) -> String {
    format!(
        "image {image} is not on the node and cannot be pulled: {why}; load it on the node (docker load, docker import), or set workerSpec.image to one that the node can pull"
    )
}

fn name_taken(name: &str) -> Problem {
    Problem {
        reason: WorkerReason::ContainerRefused,
        message: format!(
            "a container named {name} exists that this node's agent did not make, and it is left alone; remove it (docker rm {name}) or rename it (docker rename {name} OTHER)"
        ),
    }
}
