//! The devices of the node: which are present, who waits for one, and which workers, model servers
//! and training tasks have them. Who gets which is decided in `devices` of `neptune-agent-core`.

use std::collections::{BTreeMap, BTreeSet};

use neptune_agent_core::{
    desired::{Desired, WantedTask},
    devices::{
        allocate::{InFlight, WantedDevices, allocate, holds},
        offered::{OfferedUnit, report},
    },
    domain::{
        device::{DeviceHolder, DeviceUnit},
        problem::Problem,
        training::TaskProblem,
    },
    plan::devices::GrantedDevices,
    worker::{container::RunnableWorkers, counts::Counts},
};
use neptune_wire::{
    DeviceRequests, NodeName, ObjectKey, OfferedDevice, TaskId, TrainingReason, WorkerName,
};
use tracing::info;

use super::{containers::Containers, model_servers::ModelServers};

/// A worker or a model server with its object and what it requests.
type Request<'a> = (&'a WorkerName, &'a ObjectKey, &'a DeviceRequests);

/// The devices of the node, and who waits for them.
pub struct NodeDevices {
    units: Vec<OfferedUnit>,
    /// The places of those that wait, in the order in which they began to.
    places: BTreeMap<WorkerName, u64>,
    arrivals: u64,
    pub granted: GrantedDevices,
    /// The units of training tasks whose containers run or are started.
    tasks: BTreeMap<TaskId, InFlight>,
}

impl NodeDevices {
    pub fn new(units: Vec<OfferedUnit>) -> Self {
        log(&[], &units);
        Self {
            units,
            places: BTreeMap::new(),
            arrivals: 0,
            granted: GrantedDevices::new(),
            tasks: BTreeMap::new(),
        }
    }

    /// Records which units are present.
    pub fn set_units(&mut self, units: Vec<OfferedUnit>) {
        log(&self.units, &units);
        self.units = units;
    }

    /// Decides who gets which units. Returns whether another problem is to be reported.
    pub fn decide(
        &mut self,
        requests: &[Request<'_>],
        desired: &Desired,
        containers: &mut Containers,
        node: &NodeName,
    ) -> bool {
        let wanted = requests.iter().map(|(worker, owner, requests)| WantedDevices {
            worker,
            owner,
            requests,
            place: self.places.get(*worker).copied(),
        });
        let wanted: Vec<WantedDevices<'_>> = wanted.collect();
        let in_flight = self.in_flight(desired, containers);
        let holders = &containers.device_holders;
        let allocation = allocate(&self.units, &wanted, holders, &in_flight, node);
        let owners: BTreeMap<&WorkerName, &ObjectKey> =
            requests.iter().map(|(worker, owner, _)| (*worker, *owner)).collect();
        let is_waiting = |worker: &WorkerName| allocation.get(worker).is_some_and(Result::is_err);
        self.places.retain(|worker, _| is_waiting(worker));
        let mut is_changed = false;
        let granted = allocation.into_iter().map(|(worker, units)| {
            if units.is_err() && !self.places.contains_key(&worker) {
                self.arrivals += 1;
                self.places.insert(worker.clone(), self.arrivals);
            }
            let units = units.map_err(|why| why.problem(&self.units, owners[&worker], node));
            let attempts = containers.attempts_of(&worker);
            is_changed |= attempts.set_device_problem(units.as_ref().err());
            (worker, units)
        });
        self.granted = granted.collect();
        is_changed
    }

    /// The numbers that the agent reports.
    pub fn report(
        &self,
        desired: &Desired,
        containers: &Containers,
        node: &NodeName,
    ) -> Vec<OfferedDevice> {
        let in_flight = self.in_flight(desired, containers);
        let held = self.held(containers, node).flat_map(|it| &it.units);
        let used = held.chain(in_flight.iter().flat_map(|step| &step.units));
        report(&self.units, &used.map(String::as_str).collect())
    }

    /// The containers that have units.
    fn held<'a>(
        &'a self,
        containers: &'a Containers,
        node: &'a NodeName,
    ) -> impl Iterator<Item = &'a DeviceHolder> {
        let is_wanted = |worker: &WorkerName| self.granted.contains_key(worker);
        containers.device_holders.iter().filter(move |it| holds(it, node, is_wanted))
    }

    /// The units of steps in flight and of training tasks.
    fn in_flight(&self, desired: &Desired, containers: &Containers) -> Vec<InFlight> {
        let owner = |worker: &WorkerName| {
            let wanted = desired.workers.get(worker).map(|wanted| &wanted.owner);
            wanted.or_else(|| desired.part_named(worker).map(|(key, _)| key)).cloned()
        };
        let steps = containers.attempts.iter().filter(|(_, attempts)| !attempts.units.is_empty());
        let steps = steps.map(|(worker, attempts)| InFlight {
            worker: Some(worker.clone()),
            owner: owner(worker),
            units: attempts.units.clone(),
        });
        steps.chain(self.tasks.values().cloned()).collect()
    }

    /// Keeps the units of these training tasks only.
    pub fn retain_tasks(&mut self, may_run: impl Fn(&TaskId) -> bool) {
        self.tasks.retain(|task, _| may_run(task));
    }

    /// The units of a training task whose container is to be started, if nobody has them.
    ///
    /// # Errors
    /// Why it has to wait.
    pub fn grant_task(
        &mut self,
        wanted: &WantedTask,
        containers: &Containers,
        desired: &Desired,
        node: &NodeName,
    ) -> Result<Vec<DeviceUnit>, TaskProblem> {
        let requests = &wanted.container.program.devices;
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let name = &wanted.task.container;
        self.tasks.remove(&wanted.task.id);
        let mut in_flight = self.in_flight(desired, containers);
        in_flight.extend(self.granted.iter().filter_map(|(worker, units)| {
            let units = units.as_ref().ok()?.iter().map(|unit| unit.name.clone()).collect();
            Some(InFlight { worker: Some(worker.clone()), owner: None, units })
        }));
        let own = WantedDevices { worker: name, owner: &wanted.owner, requests, place: None };
        // A container of it that an earlier process started keeps its units.
        let holders = self.held(containers, node).cloned().map(|holder| {
            if holder.task.as_ref() != Some(&wanted.task.id.0) {
                return holder;
            }
            DeviceHolder { worker: Some(name.clone()), node: node.to_string(), ..holder }
        });
        let holders: Vec<DeviceHolder> = holders.collect();
        let mut allocation = allocate(&self.units, &[own], &holders, &in_flight, node);
        let units = allocation.remove(name).unwrap_or_else(|| Ok(Vec::new()));
        let units = units.map_err(|why| {
            let Problem { message, .. } = why.problem(&self.units, &wanted.owner, node);
            TaskProblem::new(TrainingReason::ContainerRefused, message)
        })?;
        let step = InFlight {
            worker: None,
            owner: Some(wanted.owner.clone()),
            units: units.iter().map(|unit| unit.name.clone()).collect(),
        };
        self.tasks.insert(wanted.task.id.clone(), step);
        Ok(units)
    }
}

/// The workers and model servers of the node whose containers need devices. A finished worker needs
/// none.
pub fn requests<'a>(
    desired: &'a Desired,
    resolved: &'a RunnableWorkers<'a>,
    counts: &Counts,
    servers: &'a ModelServers,
) -> Vec<Request<'a>> {
    let workers = resolved.iter().filter_map(|(name, worker)| {
        let (wanted, container) = (desired.workers.get(*name)?, &worker.as_ref().ok()?.container);
        let finished = counts.finished(&wanted.uid, name);
        let is_finished = finished
            .is_some_and(|run| run.is_end_of(&container.hash, wanted.worker.restarted_at.as_ref()));
        (!is_finished).then_some((*name, &wanted.owner, &container.spec.devices))
    });
    let servers = servers.device_requests(desired);
    let all = workers.chain(servers);
    all.filter(|(_, _, requests)| !requests.is_empty()).collect()
}

/// Logs the units that appeared and those that are gone.
fn log(before: &[OfferedUnit], after: &[OfferedUnit]) {
    let present = |units: &[OfferedUnit]| -> BTreeSet<String> {
        let present = units.iter().filter(|unit| unit.is_present());
        present.map(|unit| unit.name.clone()).collect()
    };
    let (before, after) = (present(before), present(after));
    for device in after.difference(&before) {
        info!(device, "device present");
    }
    for device in before.difference(&after) {
        info!(device, "device gone");
    }
}
