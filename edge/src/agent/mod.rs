//! The agent's loop. A turn handles the received events, plans, starts the steps of the plan and
//! reports. The state is split into parts, so that a method takes only the parts that it may
//! change:
//!
//! | part | owns |
//! |---|---|
//! | `DesiredState` | the desired state that the cloud sent |
//! | `CloudSession` | what was published, and when to publish next |
//! | `Containers` | the observed containers, the attempts, the steps in flight |
//! | `NodeArtifacts` | models, datasets, images and their downloads |
//! | `ImageCollector` | the images that this agent pulled |
//! | `WorkerPool` | workers: counters, messages, health, reloads |
//! | `Gateways` | gateways: their files |
//! | `NodeDevices` | devices: which are present, and who has or waits for them |
//! | `Training` | training tasks: their states and activities |
//! | `Aggregators` | aggregators: their supervision and reports |
//! | `NodeKey` | the key for connections to aggregators |
//! | `PeerService` | the exchange of contents with other nodes |
//! | `NodeValues` | Secrets and `ConfigMap`s of workers and model servers: opened values, files |
//! | `ModelServers` | model servers: rollouts and probes |
//! | `WorkerProbes` | probes of workers: their histories |

mod aggregators;
mod cloud_session;
mod containers;
mod desired_state;
mod devices;
mod download_gate;
mod dropped;
pub mod executor;
mod gateways;
mod image_collector;
mod log_requests;
mod model_reloads;
mod model_servers;
mod node_artifacts;
mod node_check;
pub mod node_key;
mod node_problems;
mod object_status;
mod on_event;
mod pending_messages;
mod rollout_log;
mod service_notifier;
pub mod training;
mod training_inputs;
mod values;
mod worker_pool;
mod worker_probes;
mod worker_runs;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use neptune_link::LinkEvent;
use neptune_program::listen::Refusals;
use neptune_wire::{NodeProblem, WorkerState};
use tokio::sync::mpsc;
use tracing::{debug, info, info_span, warn};

pub use self::{
    aggregators::Aggregators, cloud_session::CloudSession, containers::Containers,
    desired_state::DesiredState, devices::NodeDevices, dropped::DroppedMessages,
    gateways::Gateways, image_collector::ImageCollector, model_servers::ModelServers,
    node_artifacts::NodeArtifacts, node_key::NodeKey, service_notifier::ServiceNotifier,
    training::Training, values::NodeValues, worker_pool::WorkerPool,
};
use neptune_agent_core::{
    flood::FloodWatch,
    logs::requests::LogRequests,
    plan::{NodeFacts, NodePlan, remove_unwanted},
    probes::WorkerProbes,
    worker::{container::resolve_workers, plan::plan_workers},
};
use neptune_edge_broker::WorkerMessages;

use self::{model_reloads::ReloadContext, model_servers::ServerContext};
use crate::{Error, config::Config, event::AgentEvent, peers::PeerService, storage::Store};

/// Maximum events per turn. Their counters are stored in one transaction.
const MAX_EVENTS: usize = 256;
/// How long a stopping agent handles the messages of workers that were acknowledged.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a stopping agent waits for its last messages to reach the broker.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The state of the agent, in parts.
pub struct Agent {
    pub config: Config,
    pub store: Store,
    pub desired: DesiredState,
    pub cloud: CloudSession,
    pub containers: Containers,
    pub artifacts: NodeArtifacts,
    pub devices: NodeDevices,
    pub images: ImageCollector,
    pub workers: WorkerPool,
    /// The way of workers' messages, if the broker is this process.
    pub messages: Option<Arc<WorkerMessages>>,
    pub servers: ModelServers,
    pub probes: WorkerProbes,
    pub gateways: Gateways,
    pub peers: Option<PeerService>,
    pub key: NodeKey,
    pub values: NodeValues,
    pub training: Training,
    pub aggregators: Aggregators,
    pub log_requests: LogRequests,
    pub dropped: DroppedMessages,
    /// The connections that the servers of the agent refused.
    pub refusals: Refusals,
    pub flood: FloodWatch,
    pub schedule: LoopSchedule,
}

/// The time at which the loop plans next.
#[derive(Debug, Default)]
pub struct LoopSchedule {
    /// Whether an input of the plan changed since the last plan.
    is_plan_stale: bool,
    plan_at: Option<Instant>,
}

impl Agent {
    /// Runs until `stop` resolves.
    ///
    /// # Errors
    /// The embedded broker failed and cannot be restarted.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub async fn run(
        mut self,
        mut events: mpsc::Receiver<AgentEvent>,
        mut notifier: ServiceNotifier,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let mut stop = std::pin::pin!(stop);
        let mut received = Vec::new();
        self.apply_desired_state();
        loop {
            let turn = info_span!("turn", node = %self.config.node);
            let next_at = turn.in_scope(|| self.turn(received.drain(..)))?;
            let notify_at = notifier.on_turn(Instant::now(), || self.summary());
            let next_at = notify_at.map_or(next_at, |at| next_at.min(at));
            tokio::select! {
                () = &mut stop => break,
                count = events.recv_many(&mut received, MAX_EVENTS) => {
                    assert!(count > 0, "the agent holds a sender itself");
                }
                () = tokio::time::sleep_until(next_at.into()) => {}
            }
        }
        self.stop(events).await;
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    async fn stop(mut self, events: mpsc::Receiver<AgentEvent>) {
        info!("agent stopping; workers keep running");
        ServiceNotifier::stopping();
        if tokio::time::timeout(DRAIN_TIMEOUT, self.drain(events)).await.is_err() {
            warn!("messages of workers may be lost: they were not read in time");
        }
        self.store.check_now(Instant::now());
        self.workers.save_counts(&mut self.store);
        self.artifacts.datasets.save(&mut self.store, true, Instant::now());
        self.report(Instant::now());
        if self.cloud.resync.is_requested() {
            let (replica, counts) = (&self.desired.replica, &self.workers.counts);
            self.cloud.publish_sync(replica, counts, &mut self.store);
        }
        self.cloud.publisher.publish_offline();
        self.dropped.log_totals();
        self.cloud.publisher.link.close(CLOSE_TIMEOUT).await;
    }

    /// Handles the messages of workers that the broker acknowledged. A broker of another process does
    /// not say which these are: then what has arrived is handled.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    async fn drain(&mut self, mut events: mpsc::Receiver<AgentEvent>) {
        let mut is_last = true;
        if let Some(messages) = self.messages.clone()
            && messages.close()
        {
            is_last = false;
            tokio::spawn(async move { messages.send_last().await });
        }
        // Messages of containers that were not observed yet wait for an observation.
        while !is_last || !events.is_empty() || !self.workers.pending.is_empty() {
            if !self.workers.pending.is_empty() {
                self.containers.begin_observation(&self.config.node, Instant::now());
            }
            // The agent holds a sender itself.
            let Some(event) = events.recv().await else { return };
            if let AgentEvent::WorkerBroker(LinkEvent::Message(message)) = &event
                && WorkerMessages::is_last(&message.topic)
            {
                is_last = true;
            } else if let Err(error) = self.on_event(event) {
                warn!(%error, "event failed while the agent stops");
            }
        }
    }

    /// Runs one turn. Returns the time of the next one, unless an event triggers it earlier.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn turn(&mut self, events: impl Iterator<Item = AgentEvent>) -> Result<Instant, Error> {
        for event in events {
            self.on_event(event)?;
        }
        let now = Instant::now();
        self.cloud.set_batch_seconds(self.desired.replica.index().batch_seconds, now);
        let next_at = self.reconcile(now);
        let publish_at =
            self.cloud.is_up.then(|| self.cloud.publisher.publish_batch(now)).flatten();
        Ok(publish_at.map_or(next_at, |at| at.min(next_at)))
    }

    fn reconcile(&mut self, now: Instant) -> Instant {
        let check_at = self.check_node(now);
        self.containers.begin_observation(&self.config.node, now);
        if let Some(at) = self.containers.observer.initial_wait(now) {
            self.workers.save_counts(&mut self.store);
            return at.min(check_at);
        }
        if self.schedule.is_plan_due(now) {
            let plan = self.plan(now);
            self.execute(plan, now);
        }
        let train_at = self.train(now);
        let probe_at = self.servers.send_probes(&self.containers.executor.events, now);
        let worker_probe_at = self.send_worker_probes(now);
        self.workers.save_counts(&mut self.store);
        let save_at = self.artifacts.datasets.save(&mut self.store, false, now);
        let collect_at = self.collect_images(now);
        if self.cloud.is_up {
            self.cloud.publish_heartbeat(self.containers.observer.version(), now);
            self.report(now);
            let (replica, counts) = (&self.desired.replica, &self.workers.counts);
            self.cloud.publish_sync_if_due(replica, counts, &mut self.store, now);
        }
        let check_at = Some(check_at);
        let times = [
            check_at,
            self.schedule.plan_at,
            probe_at,
            worker_probe_at,
            train_at,
            save_at,
            collect_at,
            self.containers.observer.next_at(),
        ];
        let times = times.into_iter().chain(self.cloud.next_times()).flatten();
        times.min().unwrap_or(now + self.config.heartbeat)
    }

    /// Plans the steps to start now. Inputs, containers and their hashes are computed once, here.
    fn plan(&mut self, now: Instant) -> NodePlan {
        self.schedule.is_plan_stale = false;
        self.refresh_artifacts();
        let gate_at = self.gate_downloads(now);
        let context = Arc::clone(&self.containers.executor.context);
        let DesiredState { replica, desired } = &self.desired;
        let NodeArtifacts { models, datasets, downloads, images } = &mut self.artifacts;
        let inputs = self.gateways.inputs(models, datasets, self.values.of_workers());
        let resolved = resolve_workers(desired, inputs, &context);
        self.containers.set_worker_targets(&resolved, desired);
        worker_probes::observe(&mut self.probes, desired, &resolved, &mut self.containers, now);
        let reloads = self.workers.decide_reloads(
            &ReloadContext { desired, replica, resolved: &resolved, models, context: &context },
            &mut self.containers,
            now,
        );
        let mut servers = ServerContext {
            desired,
            context: &context,
            values: self.values.of_servers(),
            models,
            datasets,
            downloads,
            images,
            store: &mut self.store,
        };
        let decide_at = self.servers.decide(&mut servers, &mut self.containers, now);
        self.servers.set_targets(desired, &mut self.containers);
        self.workers.update_finished(desired, &self.containers, &self.values);
        let requests = devices::requests(desired, &resolved, &self.workers.counts, &self.servers);
        let node = &context.node;
        let devices_changed = self.devices.decide(&requests, desired, &mut self.containers, node);
        self.cloud.set_devices(self.devices.report(desired, &self.containers, node), now);
        let facts = NodeFacts {
            desired,
            is_complete: self.desired.is_complete(),
            keep: &replica.index().keep,
            instance: &self.cloud.publisher.node.agent.instance,
            context: &context,
            observed: self.containers.observer.latest(),
            undescribed: self.containers.observer.undescribed(),
            attempts: &self.containers.attempts,
            devices: &self.devices.granted,
            volumes: &self.containers.volumes,
            probes: &self.probes,
        };
        let may_collect = facts.is_complete && !self.containers.has_unknown_mounts();
        if let (true, Ok((containers, _))) = (may_collect, facts.observed) {
            let mounts = containers.iter().flat_map(|container| &container.sources);
            let mounts: Vec<_> = mounts.map(String::as_str).collect();
            datasets.replication().gc(&desired.datasets, &mounts);
        }
        let mut plan = NodePlan::default();
        remove_unwanted(&mut plan, &facts, now);
        plan_workers(&mut plan, &facts, &resolved, &reloads, &self.workers.counts, now);
        self.servers.plan(&mut plan, &facts, &self.artifacts.downloads, now);
        self.gateways.set_wanted(desired, &self.servers, &context);
        let values_at = self.values.provide_files(desired, &self.servers, &context, now);
        // The report of a model server names the problem in the next turn.
        let report_at = devices_changed.then_some(now);
        for at in [decide_at, gate_at, report_at, values_at].into_iter().flatten() {
            plan.schedule(at);
        }
        plan
    }

    fn execute(&mut self, mut plan: NodePlan, now: Instant) {
        if let Some(at) = self.containers.contest.yield_until(now) {
            plan.steps.clear();
            plan.schedule(at);
        }
        self.schedule.plan_at = plan.next_at;
        self.containers.execute(plan.steps);
        let mut health = plan.health;
        if let Some(credentials) = &self.containers.executor.credentials {
            for (worker, health) in &mut health {
                health.add_note(&credentials.notes.text(worker));
            }
        }
        self.gateways.add_notes(&mut health);
        self.values.mask_health(&mut health);
        // Workers do not need the keys, except those with Secrets, which name the problem.
        let no_keys = [self.key.get().err().cloned(), self.values.key_problem()];
        let is_of_key = |problem: &NodeProblem| no_keys.iter().flatten().any(|it| it == problem);
        let problems = self.cloud.problems().iter().filter(|problem| !is_of_key(problem));
        node_problems::add_to_workers(&mut health, &problems);
        self.workers.set_health(health);
    }

    fn report(&mut self, now: Instant) {
        let mut objects = object_status::object_statuses(
            &self.desired,
            &self.workers,
            &self.servers,
            &self.artifacts,
            &self.training,
            &self.aggregators,
        );
        self.cloud.publish_reports(&mut objects, &mut self.store, now);
    }

    fn refresh_artifacts(&mut self) {
        let NodeArtifacts { models, downloads, .. } = &mut self.artifacts;
        let is_source_unused = models.refresh(downloads, &mut self.store).unwrap_or_else(|error| {
            // The model is usable, and the next turn stores the record again. The store logs the
            // problem.
            debug!(%error, "failed to store the models in use");
            false
        });
        let desired = &self.desired.desired;
        let is_opened = self.values.open(desired, &self.servers, &self.config.node);
        if is_source_unused || is_opened {
            let needs = self.servers.needs(desired, self.values.of_servers());
            self.artifacts.sync_downloads(needs);
        }
        self.artifacts.datasets.refresh(&self.artifacts.downloads);
    }

    /// The agent's state in one line, for `systemctl status`.
    fn summary(&self) -> String {
        let health = self.workers.health();
        let running = health.values().filter(|health| health.state == WorkerState::Running);
        format!(
            "{}; {}; {} of {} workers running",
            if self.cloud.is_up { "connected" } else { "disconnected from the cloud" },
            self.containers.observer.version().unwrap_or("container engine unavailable"),
            running.count(),
            health.len(),
        )
    }
}

impl LoopSchedule {
    fn is_plan_due(&self, now: Instant) -> bool {
        self.is_plan_stale || self.plan_at.is_some_and(|at| at <= now)
    }
}
