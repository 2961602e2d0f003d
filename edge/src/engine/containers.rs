//! Observes, creates, starts and removes containers. Containers without this node's labels are
//! never changed.

use std::collections::HashMap;

use bollard::{container::LogOutput, errors::Error as DockerError, query_parameters as query};
use futures::StreamExt as _;
use neptune_wire::{NodeName, WorkerReason};

use crate::{
    domain::{
        broker_login::{BrokerLogin, PASSWORD_DIGEST},
        container::{ContainerSpec, container_name},
        observed_container::{
            ContainerExit, ContainerIdentity, ContainerState, ObservedContainer, VERSION,
        },
        outcome::StepOutcome,
        problem::Problem,
    },
    engine::{
        create::create_request,
        docker::{Docker, labels_of, status_code},
        inspect::{ContainerDetails, Lifecycle},
    },
};

/// The end of a log: the number of its lines, and the maximum length in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogTail {
    pub lines: &'static str,
    pub max_bytes: usize,
}

/// What is read of the log of a worker that exited.
const WORKER_LOG: LogTail = LogTail { lines: "5", max_bytes: 600 };

impl Docker {
    /// The containers with this node's labels, also those that an agent with another data directory
    /// created.
    pub async fn observe(&self, node: &NodeName) -> Result<Vec<ObservedContainer>, Problem> {
        self.list(node).await.map_err(|error| self.problem(&error))
    }

    async fn list(&self, node: &NodeName) -> Result<Vec<ObservedContainer>, DockerError> {
        let mut containers = Vec::new();
        for summary in self.socket().list(&labels_of(node)).await? {
            let mut labels = summary.labels.unwrap_or_default();
            let Some(identity) = ContainerIdentity::of(&labels, node) else { continue };
            let version = labels.remove(VERSION);
            let password = labels.remove(PASSWORD_DIGEST).and_then(|text| text.parse().ok());
            if let Some(details) = self.details(&summary.id).await? {
                let container = self.container(summary.id, identity, details).await?;
                containers.push(ObservedContainer { version, password, ..container });
            }
        }
        Ok(containers)
    }

    /// `None` if the container does not exist any more.
    pub(super) async fn details(&self, id: &str) -> Result<Option<ContainerDetails>, DockerError> {
        match self.socket().inspect(id).await {
            // Podman fails in the middle of a response if the container is removed meanwhile.
            Err(error) if status_code(&error).is_some() => self.socket().inspect(id).await,
            result => result,
        }
    }

    async fn container(
        &self,
        id: String,
        identity: ContainerIdentity,
        details: ContainerDetails,
    ) -> Result<ObservedContainer, DockerError> {
        let inspected = details.state;
        let state = match inspected.lifecycle() {
            Lifecycle::Running => ContainerState::Running,
            Lifecycle::Paused => ContainerState::Paused,
            Lifecycle::Removing => ContainerState::Removing,
            Lifecycle::Exited => ContainerState::Exited(ContainerExit {
                exit_code: inspected.exit_code,
                out_of_memory: inspected.oom_killed,
                log_tail: self.log_tail(&id, WORKER_LOG).await?,
            }),
            Lifecycle::Unusable => ContainerState::Unusable,
        };
        let mounts = details.mounts.unwrap_or_default();
        let sources = mounts.into_iter().filter_map(|mount| mount.source).collect();
        Ok(ObservedContainer {
            id,
            identity,
            state,
            started_at: inspected.started_at,
            sources,
            version: None,
            password: None,
        })
    }

    pub(super) async fn log_tail(&self, id: &str, tail: LogTail) -> Result<String, DockerError> {
        let options =
            query::LogsOptionsBuilder::new().stdout(true).stderr(true).tail(tail.lines).build();
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
            // One line may be longer than the maximum: keep its end.
            let excess = text.len().saturating_sub(tail.max_bytes);
            if excess > 0 {
                text.drain(..text.ceil_char_boundary(excess));
            }
        }
        let visible = text
            .trim()
            .chars()
            .map(|c| if c == '\n' { '|' } else { c })
            .filter(|c| !c.is_control());
        Ok(visible.collect())
    }

    /// Removes the containers of these IDs, then creates and starts one. The image and the mounted
    /// paths must exist. `login`: of a worker at the embedded broker.
    pub async fn start(
        &self,
        identity: &ContainerIdentity,
        (spec, login): (&ContainerSpec, Option<&BrokerLogin>),
        remove: &[String],
    ) -> StepOutcome {
        match self.replace(identity, (spec, login), remove).await {
            Ok(outcome) => outcome,
            Err(error) => StepOutcome::Failed(self.problem(&error)),
        }
    }

    async fn replace(
        &self,
        identity: &ContainerIdentity,
        (spec, login): (&ContainerSpec, Option<&BrokerLogin>),
        remove: &[String],
    ) -> Result<StepOutcome, DockerError> {
        let client = self.client()?;
        self.remove_all(remove).await?;
        let name = container_name(&identity.node, &identity.worker);
        let create = async || {
            let options = query::CreateContainerOptionsBuilder::new().name(&name).build();
            client.create_container(Some(options), create_request(identity, spec, login)).await
        };
        let mut created = create().await;
        // Docker returns 409; Podman returns 500 for every error.
        if let Err(error) = &created
            && status_code(error).is_some()
            && self.details(&name).await?.is_some()
        {
            let unobserved = self.of_this_agent(identity).await?;
            if unobserved.is_empty() {
                return Ok(StepOutcome::Failed(name_taken(&name)));
            }
            self.remove_all(&unobserved).await?;
            created = create().await;
        }
        let created = created?;
        client.start_container(&created.id, None::<query::StartContainerOptions>).await?;
        Ok(StepOutcome::Started { id: created.id })
    }

    /// The containers of this worker that this agent created. A process of it that was killed may
    /// have left a request, which the engine finishes after the containers were observed.
    async fn of_this_agent(&self, own: &ContainerIdentity) -> Result<Vec<String>, DockerError> {
        let listed = self.socket().list(&labels_of(&own.node)).await?;
        let is_own = |labels: HashMap<String, String>| {
            let identity = ContainerIdentity::of(&labels, &own.node);
            identity.is_some_and(|it| it.worker == own.worker && it.instance == own.instance)
        };
        let own = listed
            .into_iter()
            .filter_map(|summary| summary.labels.is_some_and(is_own).then_some(summary.id));
        Ok(own.collect())
    }

    /// Stops and removes the containers of these IDs. A container that does not exist counts as
    /// removed.
    pub async fn remove(&self, ids: &[String]) -> StepOutcome {
        match self.remove_all(ids).await {
            Ok(()) => StepOutcome::Removed,
            Err(error) => StepOutcome::Failed(self.problem(&error)),
        }
    }

    pub(super) async fn remove_all(&self, ids: &[String]) -> Result<(), DockerError> {
        let client = self.client()?;
        for id in ids {
            // Uses the container's stop timeout, or 10 s. An error of the engine is ignored here:
            // the forced removal below succeeds or returns it again.
            let stopped = client.stop_container(id, None::<query::StopContainerOptions>).await;
            if let Err(error) = stopped
                && status_code(&error).is_none()
            {
                return Err(error);
            }
            let force = query::RemoveContainerOptionsBuilder::new().force(true).v(true).build();
            let removed = client.remove_container(id, Some(force)).await;
            match removed {
                // 404, 409: another client removed it, or is removing it. Podman returns 500 for
                // that.
                Err(error) if matches!(status_code(&error), Some(404 | 409)) => {}
                Err(error)
                    if status_code(&error).is_some() && self.details(id).await?.is_none() => {}
                removed => removed?,
            }
        }
        Ok(())
    }
}

fn name_taken(name: &str) -> Problem {
    Problem {
        reason: WorkerReason::ContainerRefused,
        message: format!(
            "container {name} already exists and was not created by this node's agent; remove it (docker rm {name}) or rename it (docker rename {name} OTHER)"
        ),
    }
}
