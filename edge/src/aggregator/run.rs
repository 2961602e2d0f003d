//! Runs one aggregator: adopts or starts its container, starts it again with backoff when it
//! ends, and removes container and files when it is not wanted any more.

use std::{
    collections::HashMap,
    convert::Infallible,
    future::pending,
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
    supervision::{Claim, End, Exit, Limits, RestartPolicy},
};
use neptune_aggregator_client::AggregatorClient;
use neptune_edge_engine::supervisor::{Adopted, FoundContainer, NewContainer};
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
/// It runs until it is removed. An engine that does not answer is reported at once.
const LIMITS: Limits<Infallible> =
    Limits { deadline: None, check_interval: None, engine_timeout: Duration::ZERO };

/// Runs the container of one aggregator until it is not wanted any more.
pub struct AggregatorRun {
    node: TrainingNode,
    uid: String,
    /// `None`: container and files are removed.
    wanted: watch::Receiver<Option<WantedAggregator>>,
    status: AggregatorStatus,
}

impl AggregatorRun {
    /// Begins the run. It ends after the event [`AggregatorEvent::Removed`].
    pub fn begin(
        node: TrainingNode,
        uid: String,
        wanted: watch::Receiver<Option<WantedAggregator>>,
    ) {
        let status = AggregatorStatus::new(uid.clone(), node.events.clone());
        let run = Self { node, uid, wanted, status };
        tokio::spawn(run.run());
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
            ended = self.node.supervisor.watch(&id, LIMITS, pending) => {
                let Ok(end) = ended;
                Err(self.ended(&id, end).await)
            }
        }
    }

    /// Adopts or starts the container. Not to be cancelled: the engine would create a container that
    /// nobody knows.
    async fn start(
        &self,
        wanted: &WantedAggregator,
        pin: &KeyPin,
    ) -> Result<String, AggregatorProblem> {
        let TrainingNode { supervisor, context, instance, events, .. } = &self.node;
        let spec = container::spec(wanted, self.directory(), context);
        let claim = |labels: &HashMap<String, String>| self.claim(labels, (&spec, pin));
        let adopted = supervisor.adopt(AGGREGATOR, RestartPolicy::Always, claim).await;
        if let Some(Adopted::Running { container, .. }) = adopted.map_err(engine)? {
            info!(uid = self.uid, container = container.id, "aggregator adopted");
            return Ok(container.id);
        }
        supervisor.docker.pull_if_absent(&spec.image, events).await.map_err(engine)?;
        let new = NewContainer {
            name: container_name(&context.node, &wanted.content.container),
            labels: container::labels(wanted, (&spec, pin), context, instance),
            volume_labels: HashMap::new(),
            spec,
            max_file_bytes: u64::MAX,
            node: context.node.clone(),
            owner: wanted.owner.clone(),
        };
        let id = supervisor.start_new(&new).await.map_err(engine)?;
        info!(object = %wanted.owner, container = id, "aggregator started");
        Ok(id)
    }

    /// Whether a container is that of this specification and key, or another one of the aggregator.
    fn claim(&self, labels: &HashMap<String, String>, own: (&ContainerSpec, &KeyPin)) -> Claim {
        let TrainingNode { context, instance, .. } = &self.node;
        match AggregatorIdentity::from_labels(labels) {
            Some(identity) if identity.uid == self.uid && identity.is_of(context, instance) => {
                let is_current = identity.is_current(own, context, instance);
                if is_current { Claim::Current } else { Claim::Outdated }
            }
            _ => Claim::Foreign,
        }
    }

    /// Describes why the container ended, with the end of its log.
    async fn ended(&self, id: &str, end: End) -> AggregatorProblem {
        let how = match end {
            End::EngineLost(problem) => return engine(problem),
            End::Exited(Exit { out_of_memory: true, .. }) => {
                "was killed because of its memory limit".to_owned()
            }
            End::Exited(Exit { code, .. }) => format!("ended with exit code {code}"),
            End::WithEngine => "ended with the container engine".to_owned(),
            End::Removed => "was removed".to_owned(),
        };
        let log = self.node.supervisor.log(id).await;
        let end = if log.is_empty() { String::new() } else { format!(": {log}") };
        problem("ContainerRefused", format!("the container {how}{end}; starting it again"))
    }

    /// Removes the container and the files, and tries again until both are gone.
    async fn remove(self) {
        let mut failures = 0;
        loop {
            let is_own = |container: &FoundContainer| {
                uid_of(&self.node, container).as_ref() == Some(&self.uid)
            };
            let removed = self.node.supervisor.remove_unwanted(&labels(), is_own).await;
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

/// The labels of aggregators.
pub fn labels() -> [String; 1] {
    [AGGREGATOR.to_owned()]
}

/// The UID of an aggregator of this node; `None` for another container.
pub fn uid_of(node: &TrainingNode, container: &FoundContainer) -> Option<String> {
    let identity = AggregatorIdentity::from_labels(&container.labels)?;
    identity.is_of(&node.context, &node.instance).then_some(identity.uid)
}

fn engine(failure: Problem) -> AggregatorProblem {
    problem(&format!("{:?}", failure.reason), failure.message)
}

fn problem(reason: &str, detail: String) -> AggregatorProblem {
    AggregatorProblem { reason: reason.to_owned(), detail }
}
