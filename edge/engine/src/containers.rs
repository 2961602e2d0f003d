//! Observes the containers of the node's workers and model servers, and reads logs.

use std::time::Duration;

use bollard::{container::LogOutput, errors::Error as DockerError, query_parameters as query};
use futures::{StreamExt as _, stream};
use neptune_agent_core::domain::{
    broker_login::PASSWORD_DIGEST,
    device::{DeviceHolder, labelled_units},
    engine_observation::EngineObservation,
    observed_container::{
        ContainerExit, ContainerIdentity, ContainerState, Observation, ObservedContainer,
        UndescribedContainer, VERSION,
    },
    problem::Problem,
};
use neptune_wire::NodeName;
use tokio::time::timeout;

use crate::{
    docker::{Docker, status_code},
    inspect::{ContainerDetails, ContainerSummary, Lifecycle},
};

/// The end of a log: the number of its lines, and the maximum length in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogTail {
    pub lines: &'static str,
    pub max_bytes: usize,
}

/// What is read of the log of a worker that exited.
const WORKER_LOG: LogTail = LogTail { lines: "5", max_bytes: 600 };
/// Timeout of describing one container. A lock of the engine may make it wait indefinitely.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of reading a log. The engine's client limits only the head of the response.
pub(crate) const LOG_TIMEOUT: Duration = Duration::from_secs(5);
/// Containers that are described at a time, so that one that hangs delays few.
const CONCURRENT: usize = 8;

impl Docker {
    /// The containers with this node's labels, also those that an agent with another data directory
    /// created, those of all agents that have devices, and the volumes of the node. A container that
    /// the engine cannot describe, or not in time, does not affect the others.
    ///
    /// # Errors
    /// The engine does not list its containers.
    pub async fn observe(&self, node: &NodeName) -> Result<EngineObservation, Problem> {
        let listed = self.socket().list(&self.observed_labels(node)).await;
        let listed = listed.map_err(|error| self.problem(&error))?;
        let device_holders = listed.iter().filter_map(device_holder).collect();
        let observed = listed.into_iter().map(|summary| self.observe_one(summary, node));
        let observed = stream::iter(observed).buffered(CONCURRENT).collect();
        let (observed, volumes): (Vec<Option<Observation>>, _) =
            futures::join!(observed, timeout(DESCRIBE_TIMEOUT, self.volumes(node)));
        let containers = observed.into_iter().flatten().collect();
        Ok(EngineObservation { containers, device_holders, volumes: volumes.unwrap_or_default() })
    }

    /// `None` if the container is not of this node, or does not exist any more.
    async fn observe_one(&self, summary: ContainerSummary, node: &NodeName) -> Option<Observation> {
        let is_stopped = summary.is_stopped();
        let mut labels = summary.labels.unwrap_or_default();
        let mut listed = ObservedContainer {
            id: summary.id,
            identity: ContainerIdentity::from_labels(&labels, node)?,
            state: ContainerState::Unknown,
            started_at: String::new(),
            sources: Vec::new(),
            version: labels.remove(VERSION),
            address: None,
            password: labels.remove(PASSWORD_DIGEST).and_then(|text| text.parse().ok()),
            devices: labelled_units(&labels),
        };
        let problem = match timeout(DESCRIBE_TIMEOUT, self.details(&listed.id)).await {
            Ok(Ok(details)) => return Some(Ok(self.described(listed, details?).await)),
            // Its data is damaged, as after a power failure. A new container is the remedy.
            Ok(Err(error)) if status_code(&error).is_some() && is_stopped => {
                listed.state = ContainerState::Unusable;
                return Some(Ok(listed));
            }
            Ok(Err(error)) => self.problem(&error).message,
            Err(_) => format!("no answer for {} s", DESCRIBE_TIMEOUT.as_secs()),
        };
        let id: String = listed.id.chars().take(12).collect();
        let problem = format!(
            "the engine does not describe container {id} ({problem}); it is asked again; if it \
             does not recover, remove the container (docker rm -f {id})"
        );
        Some(Err(Box::new(UndescribedContainer { listed, problem })))
    }

    /// `None` if the container does not exist any more.
    pub(crate) async fn details(&self, id: &str) -> Result<Option<ContainerDetails>, DockerError> {
        match self.socket().inspect(id).await {
            // Podman fails in the middle of a response if the container is removed meanwhile.
            Err(error) if status_code(&error).is_some() => self.socket().inspect(id).await,
            result => result,
        }
    }

    async fn described(
        &self,
        listed: ObservedContainer,
        details: ContainerDetails,
    ) -> ObservedContainer {
        let inspected = details.state;
        let state = match inspected.lifecycle() {
            Lifecycle::Running => ContainerState::Running,
            Lifecycle::Paused => ContainerState::Paused,
            Lifecycle::Removing => ContainerState::Removing,
            Lifecycle::Exited => ContainerState::Exited(ContainerExit {
                exit_code: inspected.exit_code,
                out_of_memory: inspected.oom_killed,
                log_tail: self.log_tail(&listed.id, WORKER_LOG).await,
            }),
            Lifecycle::Unusable => ContainerState::Unusable,
        };
        let address = details.network_settings.and_then(|networks| networks.address());
        let mounts = details.mounts.unwrap_or_default();
        let sources = mounts.into_iter().filter_map(|mount| mount.source).collect();
        let started_at = inspected.started_at;
        ObservedContainer { state, started_at, address, sources, ..listed }
    }

    /// The last lines of a log, as far as the engine sends them in time.
    pub(crate) async fn log_tail(&self, id: &str, tail: LogTail) -> String {
        if !self.reads_logs {
            return format!("not reported (--report-logs=false); run docker logs {id} on the node");
        }
        let mut text = String::new();
        // What was read before the timeout is used.
        let _ = timeout(LOG_TIMEOUT, self.read_tail(id, tail, &mut text)).await;
        let visible = text
            .trim()
            .chars()
            .map(|c| if c == '\n' { '|' } else { c })
            .filter(|c| !c.is_control());
        visible.collect()
    }

    async fn read_tail(&self, id: &str, tail: LogTail, text: &mut String) {
        let options =
            query::LogsOptionsBuilder::new().stdout(true).stderr(true).tail(tail.lines).build();
        let Ok(client) = self.client() else { return };
        let mut lines = std::pin::pin!(client.logs(id, Some(options)));
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
    }
}

/// The container, if it has units of devices.
pub(crate) fn device_holder(summary: &ContainerSummary) -> Option<DeviceHolder> {
    DeviceHolder::from_labels(&summary.id, summary.labels.as_ref()?, summary.has_ended())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashMap;

    use neptune_agent_core::fixtures::container_identity;
    use serde_json::json;

    use super::*;
    use crate::tests::fake_engine::{Answers, engine};

    /// The containers that an engine with these answers shows, by ID.
    async fn observed(answers: Answers, reads_logs: bool) -> HashMap<String, Observation> {
        let (docker, _directory) = engine(answers);
        let docker = docker.with_logs(reads_logs);
        let observed = docker.observe(&container_identity().node).await.unwrap().containers;
        let id = |one: &Observation| match one {
            Ok(container) => container.id.clone(),
            Err(undescribed) => undescribed.listed.id.clone(),
        };
        observed.into_iter().map(|one| (id(&one), one)).collect()
    }

    fn listed<const N: usize>(containers: [(&str, &str); N]) -> serde_json::Value {
        let labels = container_identity().labels();
        let one = |(id, state)| json!({"Id": id, "State": state, "Labels": labels});
        containers.map(one).into_iter().collect()
    }

    #[tokio::test]
    async fn container_that_cannot_be_described_does_not_hide_the_others() {
        let answers: Answers = |path| {
            let state = |status: &str| json!({"State": {"Status": status}});
            let damaged = json!({"message": "getting graph driver info: layer not known"});
            if path.contains("/containers/json") {
                let all = [
                    ("hangs", "running"),
                    ("damaged", "exited"),
                    ("refused", "running"),
                    ("silent-log", "exited"),
                    ("healthy", "running"),
                ];
                return Some((200, listed(all)));
            }
            match path.split('/').rev().nth(1)? {
                "damaged" | "refused" => Some((500, damaged)),
                "silent-log" if path.ends_with("/json") => Some((200, state("exited"))),
                "healthy" => Some((200, state("running"))),
                _ => None,
            }
        };
        let observed = observed(answers, true).await;
        assert_eq!(observed.len(), 5);
        let state = |id: &str| observed[id].as_ref().unwrap().state.clone();
        assert_eq!(state("healthy"), ContainerState::Running);
        assert_eq!(state("damaged"), ContainerState::Unusable, "a new one is the remedy");
        assert!(
            matches!(state("silent-log"), ContainerState::Exited(exit) if exit.log_tail.is_empty())
        );
        for (id, why) in [("hangs", "no answer for 5 s"), ("refused", "layer not known")] {
            let undescribed = observed[id].as_ref().unwrap_err();
            assert_eq!(undescribed.listed.identity, container_identity());
            let text = &undescribed.problem;
            assert!(text.contains(why) && text.contains(&format!("docker rm -f {id}")), "{text}");
        }
    }

    #[tokio::test]
    async fn log_stays_on_the_node_if_it_is_not_to_be_reported() {
        let answers: Answers = |path| {
            let log = path.contains("/logs").then(|| json!("a name of a patient"));
            let list = || listed([("failed", "exited")]);
            let details = || json!({"State": {"Status": "exited", "ExitCode": 1}});
            let body = log.unwrap_or_else(|| {
                if path.contains("/containers/json") { list() } else { details() }
            });
            Some((200, body))
        };
        let observed = observed(answers, false).await;
        let ContainerState::Exited(exit) = &observed["failed"].as_ref().unwrap().state else {
            unreachable!("{observed:?}")
        };
        let expected = "not reported (--report-logs=false); run docker logs failed on the node";
        assert_eq!(exit.log_tail, expected);
    }
}
