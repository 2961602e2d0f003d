//! The plan of one turn: the steps to start now, and when to plan again. Workers are planned in
//! `worker/plan.rs`, model servers in `model_server/plan.rs`. This file has the part that both
//! share, and the removal of containers that no desired object owns.
//!
//! Such a container is removed if this data directory created it, because the desired state is
//! stored before it is applied. A container that an earlier data directory of this node created is
//! removed once the node has every object of its index, unless the index lists its owner in `keep`.

pub mod attempts;
pub mod devices;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Instant,
};

use neptune_wire::{AgentInstance, ObjectKey, RestartTime, WorkerName};

use crate::{
    desired::Desired,
    domain::{
        artifact::LocalArtifact,
        container::{ContainerSpec, TargetContainer},
        device::DeviceUnit,
        health::WorkerHealth,
        node_context::NodeContext,
        observed_container::{ContainerIdentity, ContainerState, ObservedContainer},
        probe::FailedProbe,
        step::Step,
        volume::ObservedVolume,
    },
    plan::{attempts::Attempts, devices::GrantedDevices},
    probes::WorkerProbes,
    volumes::{mounts::engine_volumes, unused::unused_volumes},
};

/// The inputs that the plans of all workers and model servers share.
pub struct NodeFacts<'a> {
    pub desired: &'a Desired,
    /// The node has received every object that its index lists.
    pub is_complete: bool,
    /// Objects whose containers are retained, including objects that this data directory never
    /// received.
    pub keep: &'a BTreeSet<ObjectKey>,
    pub instance: &'a AgentInstance,
    pub context: &'a NodeContext,
    /// The containers with the number of their observation, or why no observation exists.
    pub observed: Result<(&'a [ObservedContainer], u64), &'a str>,
    /// The workers and model servers with a container that the engine does not describe, and why.
    /// Nothing is decided about them; the others go on.
    pub undescribed: &'a BTreeMap<WorkerName, String>,
    pub attempts: &'a BTreeMap<WorkerName, Attempts>,
    pub devices: &'a GrantedDevices,
    pub probes: &'a WorkerProbes,
    /// The volumes of the engine that were created for workers and model servers of this node.
    pub volumes: &'a [ObservedVolume],
}

/// The steps to start now, the health per worker, and when to plan again. No steps: converged.
#[derive(Debug, Default, PartialEq)]
#[must_use]
pub struct NodePlan {
    pub steps: Vec<Step>,
    pub health: BTreeMap<WorkerName, WorkerHealth>,
    pub next_at: Option<Instant>,
}

/// The container that a worker or a model server must have.
pub struct Target<'a> {
    pub name: &'a WorkerName,
    pub owner: &'a ObjectKey,
    pub uid: &'a str,
    pub container: &'a TargetContainer,
    /// The units of devices that the container must have.
    pub devices: &'a [DeviceUnit],
    /// Replace the container although it has the right specification.
    pub restart: bool,
    /// The last restart that a person requested.
    pub restarted_at: Option<&'a RestartTime>,
    /// The volumes of the engine that it does not mount, but may need again.
    pub kept_volumes: &'a [String],
}

/// The progress of a worker or a model server towards its target.
#[derive(Debug, PartialEq)]
pub enum Convergence<'a> {
    /// The container with the wanted specification runs.
    Running(&'a ObservedContainer),
    /// The engine is removing a container; its event triggers the next plan.
    Removing,
    /// The next attempt is due later.
    BackingOff,
    /// A step starts the container.
    Starting,
}

impl<'a> NodeFacts<'a> {
    /// The observed containers of a worker or a model server.
    pub fn containers(&self, name: &WorkerName) -> Vec<&'a ObservedContainer> {
        let all = self.observed.map_or(&[][..], |(containers, _)| containers);
        all.iter().filter(|container| container.identity.worker == *name).collect()
    }

    /// Whether the observation is recent enough to act on, and no step is in flight.
    pub fn is_settled(&self, attempts: &Attempts) -> bool {
        !attempts.busy && self.observed.is_ok_and(|(_, seq)| seq >= attempts.fresh_from)
    }

    /// The volumes of a worker or a model server that may be removed, because they are not among the
    /// used ones.
    fn unused_volumes(&self, name: &WorkerName, used: &BTreeSet<&str>) -> Vec<String> {
        unused_volumes(self.volumes, name, used, |identity| self.may_remove(identity))
    }

    /// Whether a container that no desired object owns may be removed.
    fn may_remove(&self, identity: &ContainerIdentity) -> bool {
        let is_known = self.is_complete && !self.keep.contains(&identity.owner);
        is_known || identity.instance == *self.instance
    }
}

/// Adds the removal of containers that no desired object owns, and of their volumes.
pub fn remove_unwanted(plan: &mut NodePlan, facts: &NodeFacts<'_>, now: Instant) {
    let Ok((observed, _)) = facts.observed else { return };
    let of_volumes = facts.volumes.iter().map(|volume| &volume.identity.worker);
    let names = observed.iter().map(|container| &container.identity.worker).chain(of_volumes);
    let unwanted: BTreeSet<&WorkerName> =
        names.filter(|name| !facts.desired.contains(name)).collect();
    for name in unwanted {
        let idle = Attempts::default();
        let attempts = facts.attempts.get(name).unwrap_or(&idle);
        if !facts.is_settled(attempts) {
            continue;
        }
        let containers = facts.containers(name);
        let removable: Vec<_> =
            containers.iter().filter(|it| facts.may_remove(&it.identity)).collect();
        // A container that stays may use the volumes.
        let volumes = if removable.len() == containers.len() {
            facts.unused_volumes(name, &BTreeSet::new())
        } else {
            Vec::new()
        };
        let ids = removable.iter().map(|it| it.id.clone()).collect();
        plan.remove_with_volumes(name, (ids, volumes), attempts, now);
    }
}

impl NodePlan {
    /// Requests the next plan at this time at the latest.
    pub fn schedule(&mut self, at: Instant) {
        self.next_at = Some(self.next_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Adds the removal of these containers, or waits for the end of the backoff.
    pub fn remove(
        &mut self,
        name: &WorkerName,
        ids: Vec<String>,
        attempts: &Attempts,
        now: Instant,
    ) {
        self.remove_with_volumes(name, (ids, Vec::new()), attempts, now);
    }

    /// Adds the removal of these containers and then of these volumes, or waits for the end of the
    /// backoff.
    fn remove_with_volumes(
        &mut self,
        name: &WorkerName,
        (ids, volumes): (Vec<String>, Vec<String>),
        attempts: &Attempts,
        now: Instant,
    ) {
        if ids.is_empty() && volumes.is_empty() {
            return;
        }
        match attempts.next_try.filter(|at| *at > now) {
            Some(at) => self.schedule(at),
            None => self.steps.push(Step::Remove { worker: name.clone(), ids, volumes }),
        }
    }

    /// Adds the stop of a container because of a probe, or waits for the end of the backoff.
    pub fn stop(
        &mut self,
        name: &WorkerName,
        (container, failed): (&ObservedContainer, &FailedProbe),
        attempts: &Attempts,
        now: Instant,
    ) {
        match attempts.next_try.filter(|at| *at > now) {
            Some(at) => self.schedule(at),
            None => self.steps.push(Step::Stop {
                worker: name.clone(),
                id: container.id.clone(),
                failed: failed.clone(),
                at: now,
            }),
        }
    }

    /// Adds the update of a version directory, or waits for the end of the backoff.
    pub fn place(
        &mut self,
        name: &WorkerName,
        dir: PathBuf,
        versions: BTreeMap<String, LocalArtifact>,
        attempts: &Attempts,
        now: Instant,
    ) {
        match attempts.next_try.filter(|at| *at > now) {
            Some(at) => self.schedule(at),
            None => self.steps.push(Step::Place { worker: name.clone(), dir, versions }),
        }
    }

    /// Adds the steps towards the target: removes duplicates of a running container, or replaces
    /// other containers after the backoff.
    pub fn converge<'a>(
        &mut self,
        facts: &NodeFacts<'a>,
        target: &Target<'_>,
        attempts: &Attempts,
        now: Instant,
    ) -> Convergence<'a> {
        let containers = facts.containers(target.name);
        let running = target.running(&containers);
        let others =
            containers.iter().filter(|it| running.is_none_or(|running| running.id != it.id));
        let remove: Vec<String> = others.map(|it| it.id.clone()).collect();
        if let Some(running) = running {
            let mut used = engine_volumes(&target.container.spec.volumes);
            used.extend(target.kept_volumes.iter().map(String::as_str));
            let volumes = facts.unused_volumes(target.name, &used);
            self.remove_with_volumes(target.name, (remove, volumes), attempts, now);
            return Convergence::Running(running);
        }
        if containers.iter().any(|it| it.state == ContainerState::Removing) {
            return Convergence::Removing;
        }
        if let Some(at) = attempts.next_try.filter(|at| *at > now) {
            self.schedule(at);
            return Convergence::BackingOff;
        }
        self.steps.push(Step::Start {
            identity: target.identity(facts, attempts),
            spec: Box::new(target.spec()),
            remove,
            may_pull: attempts.may_pull(now),
        });
        Convergence::Starting
    }

    /// Removes containers other than the live ones of this object. Returns whether a live one
    /// exists.
    pub fn keep_alive(
        &mut self,
        facts: &NodeFacts<'_>,
        (name, uid): (&WorkerName, &str),
        attempts: &Attempts,
        now: Instant,
    ) -> bool {
        let (live, others): (Vec<_>, Vec<_>) = facts
            .containers(name)
            .into_iter()
            .partition(|container| container.is_alive() && container.identity.uid == uid);
        self.remove(name, others.into_iter().map(|it| it.id.clone()).collect(), attempts, now);
        !live.is_empty()
    }
}

impl Target<'_> {
    /// The specification with the chosen devices.
    fn spec(&self) -> ContainerSpec {
        ContainerSpec { units: self.devices.to_vec(), ..self.container.spec.clone() }
    }

    /// Returns the live container that has the target's specification; `None` if there is none.
    pub fn running<'a>(
        &self,
        containers: &[&'a ObservedContainer],
    ) -> Option<&'a ObservedContainer> {
        let is_target = |container: &&&ObservedContainer| {
            container.is_alive()
                && container.has_spec(&self.container.hash)
                && container.has_devices(self.devices)
                && container.has_restart(self.restarted_at)
                && !self.restart
        };
        containers.iter().find(is_target).copied()
    }

    /// The identity of the next container. A request that was withdrawn or replaced by an earlier one
    /// stays known, so that it restarts nothing when it comes back.
    fn identity(&self, facts: &NodeFacts<'_>, attempts: &Attempts) -> ContainerIdentity {
        let earlier =
            facts.containers(self.name).into_iter().filter(|it| it.identity.uid == self.uid);
        let known = earlier.filter_map(|it| it.identity.restarted_at.as_ref());
        ContainerIdentity {
            restarted_at: known.chain(self.restarted_at).max().cloned(),
            node: facts.context.node.clone(),
            instance: facts.instance.clone(),
            owner: self.owner.clone(),
            uid: self.uid.to_owned(),
            worker: self.name.clone(),
            restarts: attempts.restarts_of(&self.container.hash),
            spec_hash: self.container.hash.to_string(),
        }
    }
}
