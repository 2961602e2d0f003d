//! The agent's eyes on the node: Docker, the models, the workers' words.

use std::{sync::Arc, time::Instant};

use jiff::Timestamp;
use neptune_link::Message;
use neptune_wire::{ObjectKey, WorkerName, WorkerReason};
use tracing::{error, info, warn};

use crate::{
    agent::{Agent, executor::Executor},
    domain::{
        artifact::LocalModelEvent, observed_container::ObservedContainer, outcome::StepOutcome,
        problem::Problem,
    },
    engine::watch,
    random::random,
    worker::{
        container::worker_container,
        inputs::NodeInputs,
        message::{self, MessageContext, MessageError},
    },
};

impl Agent {
    pub(super) fn worker_said(&mut self, message: &Message) {
        let known = MessageContext {
            desired: &self.state.desired,
            shown: self.state.engine.shown().ok().map(|(containers, _)| containers),
            counts: &self.counts,
        };
        match message::parse(message, &self.config.prefix, &known) {
            Ok(said) => {
                let wanted = said.wanted.clone();
                let container = said.container.unwrap_or_default().to_owned();
                let counts = said.counts.as_ref().map(|(run, counters)| (run.as_str(), *counters));
                self.counts.observe(
                    &said.wanted.owner,
                    &said.wanted.uid,
                    &said.worker,
                    &said.info,
                    counts,
                );
                let left_out = match said.models {
                    Ok(models) => {
                        self.heard_of_models(&wanted, &container, models, Timestamp::now())
                    }
                    Err(why) => vec![why.to_string()],
                };
                for why in left_out {
                    self.state.rejected.add_from_worker(&message.topic, &why);
                }
            }
            // It can be quicker than the engine's word of its container.
            Err(MessageError::NoContainer { worker, .. }) if self.is_awaited(&worker) => {
                if let Some(oldest) = self.state.unheard.keep(message.clone()) {
                    self.state.rejected.add_from_worker(
                        &oldest.topic,
                        &"too many wait for their containers to be seen",
                    );
                }
            }
            Err(why) => self.state.rejected.add_from_worker(&message.topic, &why),
        }
    }

    /// Whether a container of this worker may be there that no look has shown yet.
    fn is_awaited(&self, worker: &WorkerName) -> bool {
        let Ok((_, seq)) = self.state.engine.shown() else { return true };
        let track = self.state.tracks.get(worker);
        track.is_some_and(|track| track.busy || seq < track.fresh_from)
    }

    pub(super) fn model_found(
        &mut self,
        key: &ObjectKey,
        content_key: &str,
        found: LocalModelEvent,
    ) {
        self.models.found(key, content_key, found);
    }

    /// Takes note of what the depot has.
    pub(super) fn refresh_models(&mut self) {
        match self.models.refresh(&self.depot, &mut self.store) {
            Ok(true) => self.stock(),
            Ok(false) => {}
            // It is here all the same, and is stored the next time.
            Err(error) => error!(%error, "models cannot be recorded"),
        }
    }

    pub(super) fn engine_said(&mut self, answer: Result<String, Problem>, now: Instant) {
        let (version, problem) = match answer {
            Ok(version) => (Some(version), None),
            Err(problem) => (None, Some(problem.message)),
        };
        if !self.state.engine.answered(version, now) {
            return;
        }
        match (self.state.engine.version(), problem) {
            (Some(version), _) => info!(version, "Docker answers"),
            (None, problem) => warn!(problem, "Docker is not there"),
        }
        // The node's report names the engine.
        self.state.heartbeat_at = self.state.heartbeat_at.map(|_| now);
    }

    pub(super) fn look_at_docker(&mut self, now: Instant) {
        if let Some(seq) = self.state.engine.look(now) {
            let Executor { docker, events, .. } = &self.executor;
            watch::observe(Arc::clone(docker), self.config.node.clone(), seq, events.clone());
        }
    }

    pub(super) fn observed(
        &mut self,
        seq: u64,
        result: Result<Vec<ObservedContainer>, Problem>,
        now: Instant,
    ) {
        let is_shown = result.is_ok();
        self.state.engine.looked(seq, result, now, random());
        if !is_shown {
            return;
        }
        let containers = self.state.engine.containers();
        for (name, track) in &mut self.state.tracks {
            if !track.busy && seq >= track.fresh_from {
                let own = containers.iter().filter(|container| container.identity.worker == *name);
                track.observe(&own.collect::<Vec<_>>(), now, random());
            }
        }
        for message in self.state.unheard.take() {
            self.worker_said(&message);
        }
        self.tidy(seq);
    }

    /// Forgets what nothing refers to any more, when nothing is being done.
    pub(super) fn tidy(&mut self, seq: u64) {
        let containers = self.state.engine.containers();
        let desired = &self.state.desired;
        self.state.tracks.retain(|name, track| {
            track.busy
                || desired.names(name)
                || containers.iter().any(|container| container.identity.worker == *name)
        });
        if self.state.tracks.values().any(|track| track.busy || track.fresh_from > seq) {
            return;
        }
        let sources = containers
            .iter()
            .flat_map(|container| &container.sources)
            .map(String::as_str)
            .collect();
        self.depot.collect(&sources);
        self.tidy_versions();
        self.tidy_workers();
    }

    pub(super) fn done(
        &mut self,
        worker: &WorkerName,
        outcome: StepOutcome,
        spec: Option<(String, u32)>,
        now: Instant,
    ) {
        let seq = self.state.engine.changed(now);
        let lost = match &outcome {
            StepOutcome::Failed(problem) => Some(problem.reason),
            _ => None,
        };
        if let StepOutcome::Placed(Ok(versions)) = &outcome {
            self.placed(worker, versions);
        }
        let is_outdated = spec.as_ref().is_some_and(|(hash, _)| self.is_outdated(worker, hash));
        let track = self.state.tracks.entry(worker.clone()).or_default();
        track.done(outcome, spec, seq, now, random());
        if is_outdated {
            // How it went says nothing of what is to run now.
            track.forgive();
        }
        let wanted = self.state.desired.workers.get(worker);
        match (lost, wanted) {
            (Some(WorkerReason::ModelUnavailable), Some(wanted)) => {
                self.models.look_again(&wanted.model, &mut self.depot);
            }
            (Some(WorkerReason::ModelUnavailable), None) => self.look_for_served(worker),
            (Some(WorkerReason::DatasetUnavailable), Some(wanted)) => {
                if let Some(dataset) = &wanted.dataset {
                    self.datasets.look_again(dataset, &mut self.depot);
                }
            }
            _ => {}
        }
    }

    /// Tells each track what its worker should be, so that a changed worker is tried at once.
    pub(super) fn aim(&mut self) {
        let supplies = NodeInputs { models: self.models.views(), datasets: self.datasets.views() };
        for (name, wanted) in &self.state.desired.workers {
            let track = self.state.tracks.entry(name.clone()).or_default();
            if let Ok(uses) = supplies.of(wanted, &self.state.desired) {
                track.aim(&worker_container(wanted, uses, &self.executor.site).hash());
            }
        }
    }
}
