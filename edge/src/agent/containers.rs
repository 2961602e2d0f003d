//! The node's containers: the observed state, the attempts per worker and model server, and the
//! steps in flight.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use neptune_agent_core::{
    desired::Desired,
    domain::{
        device::DeviceHolder,
        engine_observation::EngineObservation,
        observed_container::{ContainerState, ObservedContainer},
        outcome::StepOutcome,
        problem::Problem,
        step::Step,
        volume::ObservedVolume,
    },
    name_contest::NameContest,
    observer::EngineObserver,
    plan::attempts::Attempts,
    worker::container::RunnableWorkers,
};
use neptune_edge_engine::watch;
use neptune_program::random::random;
use neptune_wire::{ContentHash, NodeName, RestartTime, WorkerName};
use tokio::sync::Notify;
use tracing::{info, warn};

use super::executor::Executor;

/// The observed containers, the attempts, and the executor of steps.
pub struct Containers {
    pub observer: EngineObserver,
    pub attempts: BTreeMap<WorkerName, Attempts>,
    pub executor: Executor,
    /// The containers of all agents that have devices, as last observed.
    pub device_holders: Vec<DeviceHolder>,
    /// The volumes of the workers of this node, as last observed.
    pub volumes: Vec<ObservedVolume>,
    /// IDs of containers that the engine stopped on request, or that were alive when it stopped
    /// answering, with the number of the first observation after that.
    interrupted: BTreeMap<String, u64>,
    /// The steps in flight that may pull an image: the image, and how to end its pull.
    pulls: BTreeMap<WorkerName, (String, Arc<Notify>)>,
    /// Whether another agent uses the node's name on this engine.
    pub contest: NameContest,
}

impl Containers {
    pub fn new(executor: Executor, now: Instant) -> Self {
        Self {
            observer: EngineObserver::new(now),
            attempts: BTreeMap::new(),
            executor,
            device_holders: Vec::new(),
            volumes: Vec::new(),
            interrupted: BTreeMap::new(),
            pulls: BTreeMap::new(),
            contest: NameContest::default(),
        }
    }

    /// The attempts of a worker or a model server.
    pub fn attempts_of(&mut self, name: &WorkerName) -> &mut Attempts {
        self.attempts.entry(name.clone()).or_default()
    }

    /// The observed containers of a worker or a model server.
    pub fn observed_of(&self, name: &WorkerName) -> impl Iterator<Item = &ObservedContainer> {
        let observed = self.observer.containers().iter();
        observed.filter(move |container| container.identity.worker == *name)
    }

    /// Sets the spec hash that each worker's container must have. A changed worker starts without
    /// backoff.
    pub fn set_worker_targets(&mut self, resolved: &RunnableWorkers<'_>, desired: &Desired) {
        for (name, worker) in resolved {
            let wanted = desired.workers.get(*name);
            let attempts = self.attempts_of(name);
            if let Ok(worker) = worker {
                let restarted_at = wanted.and_then(|wanted| wanted.worker.restarted_at.as_ref());
                attempts.set_target(&worker.container.hash, restarted_at);
            }
        }
    }

    /// Sets the spec hash that a model server's container must have, and its last requested restart.
    pub fn set_target(
        &mut self,
        name: &WorkerName,
        hash: &ContentHash,
        restarted_at: Option<&RestartTime>,
    ) {
        self.attempts_of(name).set_target(hash, restarted_at);
    }

    /// Begins an observation if one is due.
    pub fn begin_observation(&mut self, node: &NodeName, now: Instant) {
        if let Some(seq) = self.observer.begin_observation(now) {
            let Executor { supervisor, events, .. } = &self.executor;
            watch::observe(Arc::clone(&supervisor.docker), node.clone(), seq, events.clone());
        }
    }

    /// Records whether the engine answers, with its version. Returns whether that changed.
    pub fn on_engine_status(&mut self, answer: Result<String, Problem>, now: Instant) -> bool {
        if answer.is_err() {
            let seq = self.observer.invalidate(now);
            let alive = self.observer.containers().iter().filter(|it| it.is_alive());
            self.interrupted.extend(alive.map(|it| (it.id.clone(), seq)));
        }
        let (version, problem) = match answer {
            Ok(version) => (Some(version), None),
            Err(problem) => (None, Some(problem.message)),
        };
        if !self.observer.on_engine_status(version, now) {
            return false;
        }
        match (self.observer.version(), problem) {
            (Some(version), _) => info!(version, "container engine available"),
            (None, problem) => warn!(problem, "container engine unavailable"),
        }
        true
    }

    /// Records the result of an observation. Returns whether the engine answered.
    pub fn on_observed(
        &mut self,
        seq: u64,
        result: Result<EngineObservation, Problem>,
        now: Instant,
        random_number: u64,
    ) -> bool {
        let is_answered = result.is_ok();
        let result = result.map(|observation| {
            self.device_holders = observation.device_holders;
            self.volumes = observation.volumes;
            observation.containers
        });
        self.observer.on_observed(seq, result, now, random_number);
        if !is_answered {
            return false;
        }
        let mut contest = std::mem::take(&mut self.contest);
        let containers = self.observer.containers();
        let may_appear = |worker: &WorkerName| self.may_appear(worker);
        contest.observe((seq, containers), may_appear, now, random_number);
        self.contest = contest;
        let has_exited = |id: &String| containers.iter().any(|it| it.id == *id && !it.is_alive());
        self.interrupted.retain(|id, since| seq < *since || has_exited(id));
        let undescribed = self.observer.undescribed();
        for (name, attempts) in &mut self.attempts {
            let is_settled = !attempts.busy && seq >= attempts.fresh_from;
            if is_settled {
                attempts.units.clear();
            }
            if is_settled && !undescribed.contains_key(name) {
                let observed =
                    containers.iter().filter(|container| container.identity.worker == *name);
                attempts.observe(&observed.collect::<Vec<_>>(), now, random());
            }
        }
        true
    }

    /// Records that containers changed, and which one the engine stopped on request.
    pub fn on_changed(&mut self, stopped: Option<String>, now: Instant) {
        let seq = self.observer.invalidate(now);
        self.interrupted.extend(stopped.map(|id| (id, seq)));
    }

    /// Whether this exited container did not end by itself, as far as the engine reports.
    pub fn is_interrupted(&self, id: &str) -> bool {
        self.interrupted.contains_key(id)
    }

    /// Whether a container may use files of which nothing is known.
    pub fn has_unknown_mounts(&self) -> bool {
        self.observer.containers().iter().any(|it| it.state == ContainerState::Unknown)
    }

    /// Whether a container of this worker may exist that no observation includes yet.
    pub fn may_appear(&self, worker: &WorkerName) -> bool {
        let Ok((_, seq)) = self.observer.latest() else { return true };
        let attempts = self.attempts.get(worker);
        attempts.is_some_and(|attempts| attempts.busy || seq < attempts.fresh_from)
    }

    /// Starts the steps. An [`AgentEvent::StepDone`](crate::event::AgentEvent::StepDone) reports
    /// the outcome of each.
    pub fn execute(&mut self, steps: Vec<Step>) {
        for step in steps {
            let attempts = self.attempts_of(step.worker());
            attempts.busy = true;
            if let Step::Stop { failed, .. } = &step {
                attempts.stopping(failed);
            }
            if let Step::Start { spec, .. } = &step {
                attempts.units = spec.units.iter().map(|unit| unit.name.clone()).collect();
            }
            let cancel_pull = Arc::new(Notify::new());
            if let Step::Start { identity, spec, may_pull: true, .. } = &step {
                let pull = (spec.image.clone(), Arc::clone(&cancel_pull));
                self.pulls.insert(identity.worker.clone(), pull);
            }
            self.executor.begin(step, cancel_pull);
        }
    }

    /// The images of steps in flight that may pull them.
    pub fn pulling(&self) -> impl Iterator<Item = &String> {
        self.pulls.values().map(|(image, _)| image)
    }

    /// Ends pulls of images that are no longer wanted: the worker has another image, or was removed.
    pub fn cancel_outdated_pulls(&mut self, desired: &Desired) {
        self.pulls.retain(|name, (image, cancel)| {
            let is_wanted = match desired.workers.get(name) {
                Some(wanted) => wanted.worker.program.image == *image,
                None => desired.part_named(name).is_some(),
            };
            if !is_wanted {
                info!(worker = %name, image, "image pull cancelled; no longer wanted");
                cancel.notify_one();
            }
            is_wanted
        });
    }

    /// Records the outcome of a step. `is_outdated`: the step was for a previous target, so that
    /// its failure does not count for the present one.
    pub fn on_step_done(
        &mut self,
        worker: &WorkerName,
        outcome: StepOutcome,
        spec: Option<(String, u32)>,
        is_outdated: bool,
        now: Instant,
    ) {
        self.pulls.remove(worker);
        let seq = self.observer.invalidate(now);
        match &outcome {
            StepOutcome::Started { id } => self.contest.started(worker, id, seq),
            StepOutcome::Failed(_) => self.contest.step_failed(worker),
            // Its exit code may be 0, but it did not end by itself.
            StepOutcome::Stopped { id, .. } => {
                self.interrupted.insert(id.clone(), seq);
            }
            _ => {}
        }
        let attempts = self.attempts_of(worker);
        attempts.done(outcome, spec, seq, now, random());
        if is_outdated {
            attempts.reset_failures();
        }
    }

    /// Drops the attempts of workers that are not desired and have neither container nor volume.
    pub fn forget_unknown(&mut self, desired: &Desired) {
        let (containers, volumes) = (self.observer.containers(), &self.volumes);
        self.attempts.retain(|name, attempts| {
            attempts.busy
                || !attempts.units.is_empty()
                || desired.contains(name)
                || containers.iter().any(|container| container.identity.worker == *name)
                || volumes.iter().any(|volume| volume.identity.worker == *name)
        });
    }

    /// Whether no step is in flight, and the observation of this number includes the results of all
    /// finished steps.
    pub fn is_idle(&self, seq: u64) -> bool {
        !self.attempts.values().any(|attempts| attempts.busy || attempts.fresh_from > seq)
    }
}
