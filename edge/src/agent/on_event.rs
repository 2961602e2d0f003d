//! Dispatches each event to the part of the agent that handles it. Handlers change state; steps are
//! left to the plan.

use std::time::Instant;

use jiff::Timestamp;
use neptune_agent_core::{
    domain::{engine_observation::EngineObservation, outcome::StepOutcome, problem::Problem},
    logs::tails::withhold,
    training::volumes::KeptTrainings,
};
use neptune_edge_engine::event::EngineEvent;
use neptune_link::{LinkEvent, Message};
use neptune_program::random::{random, unique_id};
use neptune_share::peers::ContentEvent;
use neptune_wire::{Topic, WorkerName, WorkerReason, replica::RejectedMessage};
use tracing::{debug, error, warn};

use super::{Agent, worker_pool::NodeView};
use crate::{
    Error, event::AgentEvent, model_server::instance::InstanceInputs,
    storage::replica::ReceiveOutcome,
};

impl Agent {
    /// # Errors
    /// The embedded broker failed, or the data directory is an earlier copy.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub(super) fn on_event(&mut self, event: AgentEvent) -> Result<(), Error> {
        let now = Instant::now();
        let changes_no_plan = matches!(
            event,
            AgentEvent::WorkerBroker(_)
                | AgentEvent::OwnAddress(_)
                | AgentEvent::Engine(
                    EngineEvent::ImagePulled { .. } | EngineEvent::ImagesCollected(_)
                )
                | AgentEvent::ClearsPublished(_)
                | AgentEvent::Training { .. }
                | AgentEvent::TrainingSwept(_)
                | AgentEvent::Aggregator { .. }
                | AgentEvent::AggregatorsSwept
                | AgentEvent::Content(_)
                | AgentEvent::LogRead { .. }
                | AgentEvent::WorkerProbeDone { .. }
        );
        self.schedule.is_plan_stale |= !changes_no_plan;
        match event {
            AgentEvent::Cloud(LinkEvent::Message(message)) => self.on_cloud_message(&message)?,
            AgentEvent::Cloud(LinkEvent::Up) => {
                self.cloud.find_address(&self.containers.executor.events);
                if self.cloud.publisher.event_bus.is_some() {
                    self.on_worker_broker_connected();
                }
            }
            AgentEvent::Cloud(LinkEvent::Down { .. }) => self.cloud.on_disconnected(),
            AgentEvent::WorkerBroker(LinkEvent::Message(message)) => {
                self.on_worker_message(&message);
            }
            AgentEvent::WorkerBroker(LinkEvent::Up) => self.on_worker_broker_connected(),
            // The plan reads the counts from the datasets' channels, and the notes from the broker.
            AgentEvent::WorkerBroker(LinkEvent::Down { .. })
            | AgentEvent::DatasetChanged
            | AgentEvent::WorkerNotesChanged => {}
            AgentEvent::Engine(event) => self.on_engine_event(event, now),
            AgentEvent::StepDone { worker, outcome, spec } => {
                self.on_step_done(&worker, outcome, spec, now);
            }
            AgentEvent::LocalModel { key, content_key, event } => {
                self.artifacts.models.on_event(&key, &content_key, event);
            }
            AgentEvent::Download { source, event } => {
                self.artifacts.downloads.on_event(&source, event);
            }
            AgentEvent::Content(event) => self.on_content(event),
            AgentEvent::ProbeDone { key, version, run, answer } => {
                self.servers.on_probe_done(&key, &version, &run, answer, now);
            }
            AgentEvent::WorkerProbeDone { worker, run, answer } => {
                self.schedule.is_plan_stale |= self.probes.record(&worker, &run, answer, now);
            }
            AgentEvent::Training { task, event } => {
                let desired = &self.desired.desired;
                self.training.on_event(&task, event, desired, &mut self.store, now);
            }
            AgentEvent::Aggregator { uid, event } => self.aggregators.on_event(&uid, event),
            AgentEvent::AggregatorsSwept => self.aggregators.on_swept(),
            AgentEvent::TrainingSwept(state) => self.training.on_swept(state),
            AgentEvent::GatewayFiles(written) => self.gateways.on_written(written),
            AgentEvent::DevicesChanged(units) => self.devices.set_units(units),
            AgentEvent::OwnAddress(address) => {
                self.workers.save_counts(&mut self.store);
                let totals = (&self.workers.counts, &mut self.store);
                let engine = self.containers.observer.version();
                let events = &self.containers.executor.events;
                let replica = &self.desired.replica;
                self.cloud.on_connected(address, replica, totals, engine, events, now);
            }
            AgentEvent::ClearsPublished(keys) => {
                self.cloud.on_clears_published(&keys, &mut self.store);
            }
            AgentEvent::LogRead { id, worker, result } => self.on_log_read(id, &worker, result),
            AgentEvent::BrokerFailed(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn on_engine_event(&mut self, event: EngineEvent, now: Instant) {
        match event {
            EngineEvent::Status(answer) => {
                if self.containers.on_engine_status(answer, now) {
                    // The node report names the engine.
                    self.cloud.heartbeat_at = self.cloud.heartbeat_at.map(|_| now);
                }
            }
            EngineEvent::ContainersChanged { stopped } => self.containers.on_changed(stopped, now),
            EngineEvent::ContainersObserved { seq, result } => {
                self.on_containers_observed(seq, result, now);
            }
            EngineEvent::ImagePulled { image, id } => {
                self.images.on_pulled(image, id, &mut self.store);
            }
            EngineEvent::ImagesCollected(result) => {
                self.images.on_collected(result, &mut self.store);
            }
            EngineEvent::ImagePull { image, event } => {
                self.artifacts.images.on_event(&image, event);
            }
        }
    }

    fn on_cloud_message(&mut self, message: &Message) -> Result<(), Error> {
        if let Ok(Topic::Request(node)) = Topic::parse(&self.config.prefix, &message.topic)
            && node == self.config.node
        {
            self.on_request(message);
            return Ok(());
        }
        let before = self.desired.progress();
        match self.desired.receive(message, &self.config, &mut self.store) {
            Ok(ReceiveOutcome::Changed(changes)) => {
                let removed = self.workers.on_changes(&changes, &self.desired);
                if removed.has_totals {
                    self.cloud.resync.request();
                }
                let events = &self.containers.executor.events;
                self.cloud.clear_removed(&changes, removed.keys, events);
                self.apply_desired_state();
            }
            Ok(ReceiveOutcome::Known) => {}
            Ok(ReceiveOutcome::Rejected(RejectedMessage::OlderIndex)) => {
                self.cloud.resync.request();
            }
            Ok(ReceiveOutcome::Rejected(RejectedMessage::Invalid(why))) => {
                self.dropped.add_from_cloud(&message.topic, &why);
                return Ok(());
            }
            // The object is still missing, so that a sync requests it again.
            Err(error) => {
                error!(%error, topic = message.topic, "failed to store desired state; requesting it again");
            }
        }
        if self.cloud.publisher.event_bus.is_some() {
            self.workers.save_counts(&mut self.store);
            let counts = &self.workers.counts;
            self.cloud.acknowledge(&message.topic, before, &self.desired, counts, &mut self.store);
        }
        self.check_restored_copy()
    }

    /// Becomes a new instance if the data directory is an earlier copy. The identity is part of the
    /// links and of the last will, so the agent starts again.
    fn check_restored_copy(&mut self) -> Result<(), Error> {
        let identity = &self.cloud.publisher.node.agent;
        let newer = self.desired.replica.index().newer_start.as_ref();
        let Some(newer) = newer.filter(|newer| identity.is_outdated(newer)) else { return Ok(()) };
        let path = self.config.data_dir.clone();
        let new = unique_id().map_err(|source| Error::DataDir { path, source })?;
        self.store.replace_instance(&new, &self.workers.counts.rebased())?;
        Err(Error::RestoredCopy {
            instance: identity.instance.0.clone(),
            epoch: identity.epoch,
            newest: newer.epoch,
        })
    }

    /// Applies the stored objects to the artifacts and the model servers.
    pub(super) fn apply_desired_state(&mut self) {
        self.desired.recompute();
        if let Some((peers, roster)) = self.peers.as_ref().zip(self.desired.roster()) {
            peers.set_roster(roster);
        }
        let desired = &self.desired.desired;
        self.containers.cancel_outdated_pulls(desired);
        self.artifacts.models.set_wanted(&desired.models);
        self.artifacts.datasets.set_wanted(&desired.datasets, &self.store);
        self.servers.set_wanted(&desired.servers, &self.store);
        self.training.set_wanted(&desired.training);
        let keep = self.desired.is_complete().then(|| self.desired.replica.index().keep.clone());
        self.training.keep_volumes(KeptTrainings { uids: desired.training.uids.clone(), keep });
        self.aggregators.set_wanted(&desired.aggregators, self.desired.is_complete());
        self.values.open(desired, &self.servers, &self.config.node);
        let needs = self.servers.needs(desired, self.values.of_servers());
        self.artifacts.sync_downloads(needs);
        self.schedule.is_plan_stale = true;
    }

    /// Publishes all reloads again, because the broker may have lost its retained messages.
    fn on_worker_broker_connected(&mut self) {
        self.workers.reloads.resend_all();
        self.schedule.is_plan_stale = true;
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn on_worker_message(&mut self, message: &Message) {
        let node = NodeView {
            instance: &self.cloud.publisher.node.agent.instance,
            prefix: &self.config.prefix,
            desired: &self.desired,
            containers: &self.containers,
            models: &self.artifacts.models,
            secret_dir: &self.config.secret_dir,
        };
        let effect = self.workers.on_message(message, &node, &mut self.dropped, Timestamp::now());
        self.schedule.is_plan_stale |= effect.needs_plan;
        if effect.needs_sync {
            self.cloud.resync.request();
        }
    }

    fn on_containers_observed(
        &mut self,
        seq: u64,
        mut result: Result<EngineObservation, Problem>,
        now: Instant,
    ) {
        if let Ok(observation) = &mut result {
            let containers = observation.containers.iter_mut().filter_map(|it| it.as_mut().ok());
            withhold(containers, &self.desired.desired, &self.config.remote_logs);
        }
        if !self.containers.on_observed(seq, result, now, random()) {
            return;
        }
        if let Some(credentials) = &self.containers.executor.credentials {
            let containers = &self.containers;
            credentials.set_observed(containers.observer.containers(), |worker| {
                containers.may_appear(worker)
            });
        }
        self.workers.observe_runs(&self.desired.desired, &self.containers);
        for message in self.workers.pending.drain() {
            self.on_worker_message(&message);
        }
        self.gc(seq);
    }

    /// Removes files and state that nothing refers to any more, while no step is in flight.
    fn gc(&mut self, seq: u64) {
        let desired = &self.desired.desired;
        self.containers.forget_unknown(desired);
        if !self.containers.is_idle(seq) {
            return;
        }
        let observed = self.containers.observer.containers();
        self.workers.forget_unknown(desired, observed);
        if self.containers.has_unknown_mounts() {
            return;
        }
        let mounts = observed.iter().flat_map(|container| &container.sources);
        self.artifacts.downloads.gc(&mounts.map(String::as_str).collect());
        let data_dir = &self.containers.executor.context.data_dir;
        self.servers.gc(observed, data_dir);
        self.gateways.gc(observed, data_dir);
        self.values.gc(observed, &self.containers.executor.context);
        self.workers.reloads.gc(&self.desired.desired, observed, &self.containers.executor.context);
    }

    fn on_content(&mut self, event: ContentEvent) {
        match event {
            // A content that an object names is being fetched already.
            ContentEvent::Requested(digest) => debug!(%digest, "a peer waits for a content"),
            ContentEvent::Damaged(digest, path) => {
                let path = path.display();
                warn!(%digest, %path, "a stored content is damaged; downloading it again");
                if let Some(peers) = &self.peers {
                    peers.counters().on_damaged();
                }
                self.artifacts.downloads.replace_damaged(&digest);
                self.schedule.is_plan_stale = true;
            }
        }
    }

    fn on_step_done(
        &mut self,
        worker: &WorkerName,
        outcome: StepOutcome,
        spec: Option<(String, u32)>,
        now: Instant,
    ) {
        if let StepOutcome::Started { id } = &outcome {
            self.probes.started(worker, id);
        }
        let failure = match &outcome {
            StepOutcome::Failed(problem) => Some(problem.reason),
            _ => None,
        };
        let part = self.desired.desired.part_named(worker);
        let server = part.map(|(key, _)| key);
        if let StepOutcome::Placed(Ok(versions)) = &outcome
            && !server.is_some_and(|key| self.servers.set_placed(key, versions))
        {
            self.workers.reloads.set_placed(worker, versions);
        }
        let downloads = &mut self.artifacts.downloads;
        let inputs = InstanceInputs {
            downloads,
            values: self.values.of_servers(),
            context: &self.containers.executor.context,
        };
        let is_outdated = spec.as_ref().zip(part).is_some_and(|((hash, _), (key, part))| {
            self.servers.get(key).is_some_and(|it| it.is_outdated(part, hash, &inputs))
        });
        self.containers.on_step_done(worker, outcome, spec, is_outdated, now);
        let wanted = self.desired.desired.workers.get(worker);
        match (failure, wanted) {
            (Some(WorkerReason::ModelUnavailable), Some(wanted)) => {
                if let Some(model) = &wanted.model {
                    self.artifacts.models.refetch(model, downloads);
                }
            }
            (Some(WorkerReason::ModelUnavailable), None) => {
                if let Some(key) = server {
                    self.servers.refetch_models(key, downloads);
                }
            }
            (Some(WorkerReason::DatasetUnavailable), Some(wanted)) => {
                if let Some(dataset) = &wanted.dataset {
                    self.artifacts.datasets.refetch(dataset, downloads);
                }
            }
            _ => {}
        }
    }
}
