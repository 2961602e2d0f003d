//! Supervises one aggregator: adopts or starts its container, starts it again with backoff when it
//! ends, and removes container and files when it is not wanted any more.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use neptune_agent_core::{
    aggregator::{self as container, AGGREGATOR, AggregatorIdentity},
    backoff::{ENGINE_CONNECT, WORKER_RESTART},
    domain::{
        aggregator::{AggregatorEvent, WantedAggregator},
        container::{ContainerSpec, container_name},
        problem::Problem,
    },
};
use neptune_aggregator_client::AggregatorClient;
use neptune_edge_engine::training::{NewContainer, TrainingState};
use neptune_program::random::random;
use neptune_wire::{AggregatorEndpoint, KeyPin, aggregator::AggregatorProblem};
use tokio::{sync::watch, task::spawn_blocking};
use tracing::{info, warn};

use super::{
    files,
    relay::{self, relay},
    status::AggregatorStatus,
};
use crate::{event::AgentEvent, training::job::TrainingNode};

/// A container that ran this long starts without backoff.
const STABLE: Duration = Duration::from_secs(60);

/// Runs the container of one aggregator until it is not wanted any more.
pub struct Supervisor {
    node: TrainingNode,
    uid: String,
    /// `None`: container and files are removed.
    wanted: watch::Receiver<Option<WantedAggregator>>,
    status: AggregatorStatus,
}

impl Supervisor {
    /// Starts the supervision. It ends after the event [`AggregatorEvent::Removed`].
    pub fn begin(
        node: TrainingNode,
        uid: String,
        wanted: watch::Receiver<Option<WantedAggregator>>,
    ) {
        let status = AggregatorStatus::new(uid.clone(), node.events.clone());
        let supervisor = Self { node, uid, wanted, status };
        tokio::spawn(supervisor.run());
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    async fn run(mut self) {
        let mut failures = 0;
        loop {
            let Some(wanted) = self.wanted.borrow_and_update().clone() else { break };
            let began = Instant::now();
            let Err(problem) = self.serve(&wanted).await else { continue };
            failures = if began.elapsed() > STABLE { 1 } else { failures + 1 };
            warn!(object = %wanted.owner, reason = problem.reason, problem = problem.detail, "aggregator");
            self.status.set(None, Some(problem)).await;
            tokio::select! {
                () = tokio::time::sleep(WORKER_RESTART.delay(failures, random())) => {}
                changed = self.wanted.changed() => {
                    // The sender is dropped only when the process exits.
                    if changed.is_err() {
                        return;
                    }
                    self.wanted.mark_changed();
                }
            }
        }
        self.remove().await;
    }

    /// Runs the container until another one is wanted.
    ///
    /// # Errors
    /// It cannot start, or ended.
    async fn serve(&mut self, wanted: &WantedAggregator) -> Result<(), AggregatorProblem> {
        let directory = self.directory();
        let (user, agent) = (container::user(&self.node.context), self.node.context.agent_user);
        let prepared = spawn_blocking(move || files::prepare(&directory, user, agent)).await;
        let key = prepared.expect("creating files does not panic").map_err(|error| {
            problem("DiskFull", format!("cannot create the files of the aggregator: {error}"))
        })?;
        let id = self.start(wanted, key.pin()).await?;
        self.status.set_key(&key).await;
        let url = format!("https://127.0.0.1:{}", wanted.content.port);
        let endpoint = AggregatorEndpoint { url: url.clone(), pin: key.pin().clone() };
        let client = AggregatorClient::new(&key, endpoint);
        let client = client.map_err(|error| relay::problem(&url, error))?;
        tokio::select! {
            () = relay(wanted, &mut self.wanted, &client, &mut self.status) => Ok(()),
            ended = self.node.docker.ended(&id) => match ended {
                Ok(()) => Err(self.ended(&id).await),
                Err(problem) => Err(engine(problem)),
            },
        }
    }

    /// Adopts or starts the container. Not to be cancelled: the engine would create a container that
    /// nobody knows.
    async fn start(
        &self,
        wanted: &WantedAggregator,
        pin: &KeyPin,
    ) -> Result<String, AggregatorProblem> {
        let TrainingNode { docker, context, instance, events, .. } = &self.node;
        let spec = container::spec(wanted, self.directory(), context);
        if let Some(id) = self.adopt((&spec, pin)).await.map_err(engine)? {
            return Ok(id);
        }
        if !docker.has_image(&spec.image).await.map_err(engine)? {
            docker.pull_image(&spec.image, events).await.map_err(engine)?;
        }
        let new = NewContainer {
            name: container_name(&context.node, &wanted.content.container),
            labels: container::labels(wanted, (&spec, pin), context, instance),
            spec,
            max_file_bytes: u64::MAX,
        };
        let id = docker.start_training(&new).await.map_err(engine)?;
        info!(object = %wanted.owner, container = id, "aggregator started");
        Ok(id)
    }

    /// Finds the running container of this specification and key, and removes others of the aggregator.
    async fn adopt(&self, own: (&ContainerSpec, &KeyPin)) -> Result<Option<String>, Problem> {
        let TrainingNode { docker, context, instance, .. } = &self.node;
        let mut adopted = None;
        for found in docker.labelled(AGGREGATOR).await? {
            let Some(identity) = AggregatorIdentity::of(&found.labels) else { continue };
            if identity.uid != self.uid || !identity.is_of(context, instance) {
                continue;
            }
            let is_current = adopted.is_none() && identity.is_current(own, context, instance);
            let is_running = is_current
                && matches!(docker.training_state(&found.id).await?, TrainingState::Running { .. });
            if is_running {
                info!(uid = self.uid, container = found.id, "aggregator adopted");
                adopted = Some(found.id);
            } else {
                docker.remove_training(&[found.id]).await?;
            }
        }
        Ok(adopted)
    }

    /// Describes why the container ended, from its state and its log.
    async fn ended(&self, id: &str) -> AggregatorProblem {
        let log = self.node.docker.training_log(id).await;
        let how = match self.node.docker.training_state(id).await {
            Ok(TrainingState::Exited { out_of_memory: true, .. }) => {
                "was killed because of its memory limit".to_owned()
            }
            Ok(TrainingState::Exited { code, .. }) => format!("ended with exit code {code}"),
            _ => "was removed".to_owned(),
        };
        let end = if log.is_empty() { String::new() } else { format!(": {log}") };
        problem("ContainerRefused", format!("the container {how}{end}; starting it again"))
    }

    /// Removes the container and the files, and tries again until both are gone.
    async fn remove(self) {
        let mut failures = 0;
        loop {
            let removed = remove(&self.node, |uid| uid == self.uid).await;
            let directory = self.directory();
            let removed = match removed {
                Ok(()) => {
                    let removed = spawn_blocking(move || files::remove(&directory)).await;
                    removed.expect("removing files does not panic").map_err(|it| it.to_string())
                }
                Err(problem) => Err(problem.message),
            };
            let Err(why) = removed else { break };
            failures += 1;
            warn!(uid = self.uid, why, "cannot remove an aggregator; retrying");
            tokio::time::sleep(ENGINE_CONNECT.delay(failures, random())).await;
        }
        info!(uid = self.uid, "aggregator removed");
        let event = AggregatorEvent::Removed;
        // The receiver is dropped only when the process exits.
        let _ = self.node.events.send(AgentEvent::Aggregator { uid: self.uid, event }).await;
    }

    fn directory(&self) -> PathBuf {
        files::directory(&self.node.context.data_dir, &self.uid)
    }
}

/// Removes the aggregators of this node with these UIDs.
pub async fn remove(node: &TrainingNode, is_removed: impl Fn(&str) -> bool) -> Result<(), Problem> {
    let found = node.docker.labelled(AGGREGATOR).await?;
    let ids = found.into_iter().filter_map(|found| {
        let identity = AggregatorIdentity::of(&found.labels)?;
        let is_own = identity.is_of(&node.context, &node.instance);
        (is_own && is_removed(&identity.uid)).then_some(found.id)
    });
    node.docker.remove_training(&ids.collect::<Vec<_>>()).await
}

fn engine(found: Problem) -> AggregatorProblem {
    problem(&format!("{:?}", found.reason), found.message)
}

fn problem(reason: &str, detail: String) -> AggregatorProblem {
    AggregatorProblem { reason: reason.to_owned(), detail }
}
