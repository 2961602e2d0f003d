//! Decides which container gets which units of devices.
//!
//! The containers themselves state what they have, in their labels, so that nothing is lost with the
//! agent. A unit is held by any container that is alive or being removed, whichever agent created it,
//! by the last container of a worker that is still wanted, and by a step in flight. A worker keeps the
//! units of its own container. The others get free units in the order in which they began to wait: all
//! that they request or none, so that two of them never wait for each other. Nobody is evicted.

use std::collections::{BTreeMap, BTreeSet};

use neptune_wire::{DeviceRequests, NodeName, ObjectKey, WorkerName};

use crate::{
    devices::{messages::Shortage, offered::OfferedUnit},
    domain::device::{DeviceHolder, DeviceUnit},
};

/// A worker or a model server whose container needs devices.
#[derive(Debug, Clone)]
pub struct WantedDevices<'a> {
    pub worker: &'a WorkerName,
    pub owner: &'a ObjectKey,
    pub requests: &'a DeviceRequests,
    /// Its place among those that wait, if it waits already.
    pub place: Option<u64>,
}

/// The units of a step that may create or start a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlight {
    /// `None`: not of a worker or a model server.
    pub worker: Option<WorkerName>,
    pub owner: Option<ObjectKey>,
    pub units: Vec<String>,
}

/// The units of each worker, or why it gets none.
pub type Allocation = BTreeMap<WorkerName, Result<Vec<DeviceUnit>, Shortage>>;

/// Who has a unit.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Holder<'a> {
    /// The worker of this node.
    worker: Option<&'a WorkerName>,
    owner: Option<&'a ObjectKey>,
}

/// Decides the units of all wanted workers of a node. `containers` are those of all agents.
pub fn allocate(
    units: &[OfferedUnit],
    wanted: &[WantedDevices<'_>],
    containers: &[DeviceHolder],
    in_flight: &[InFlight],
    node: &NodeName,
) -> Allocation {
    let mut table = Table::new(wanted, (containers, in_flight), node);
    let mut allocation = Allocation::new();
    // Running containers come before ended ones, whose units another one may have by now.
    for only_alive in [true, false] {
        for worker in wanted {
            let own = table.own(worker.worker, only_alive);
            if !allocation.contains_key(worker.worker)
                && let Ok(chosen) = table.choose(units, worker, |name| own.contains(name))
            {
                table.give(&chosen, worker);
                allocation.insert(worker.worker.clone(), Ok(chosen));
            }
        }
    }
    let waits = |it: &&WantedDevices<'_>| !allocation.contains_key(it.worker);
    let mut waiting: Vec<&WantedDevices<'_>> = wanted.iter().filter(waits).collect();
    waiting.sort_by_key(|it| (it.place.unwrap_or(u64::MAX), it.worker));
    for worker in waiting {
        let chosen = table.choose(units, worker, |_| true);
        if let Ok(chosen) = &chosen {
            table.give(chosen, worker);
        }
        allocation.insert(worker.worker.clone(), chosen);
    }
    allocation
}

/// Whether this container still has its units. `is_wanted`: a worker of this node that is not finished.
pub fn holds(
    container: &DeviceHolder,
    node: &NodeName,
    is_wanted: impl Fn(&WorkerName) -> bool,
) -> bool {
    !container.has_ended || container.worker_of(node).is_some_and(is_wanted)
}

struct Table<'a> {
    alive: BTreeMap<&'a str, Vec<Holder<'a>>>,
    /// The units of ended containers of workers that are still wanted.
    ended: BTreeMap<&'a str, Vec<Holder<'a>>>,
    given: BTreeMap<String, Holder<'a>>,
}

impl<'a> Table<'a> {
    fn new(
        wanted: &[WantedDevices<'a>],
        (containers, in_flight): (&'a [DeviceHolder], &'a [InFlight]),
        node: &NodeName,
    ) -> Self {
        let workers: BTreeSet<&WorkerName> = wanted.iter().map(|it| it.worker).collect();
        let mut table =
            Self { alive: BTreeMap::new(), ended: BTreeMap::new(), given: BTreeMap::new() };
        for container in containers {
            if !holds(container, node, |worker| workers.contains(worker)) {
                continue;
            }
            let holder =
                Holder { worker: container.worker_of(node), owner: container.owner.as_ref() };
            let map = if container.has_ended { &mut table.ended } else { &mut table.alive };
            for unit in &container.units {
                map.entry(unit).or_default().push(holder);
            }
        }
        for step in in_flight {
            let holder = Holder { worker: step.worker.as_ref(), owner: step.owner.as_ref() };
            for unit in &step.units {
                table.alive.entry(unit).or_default().push(holder);
            }
        }
        table
    }

    /// The units that containers of this worker have.
    fn own(&self, worker: &WorkerName, only_alive: bool) -> BTreeSet<&'a str> {
        let is_own = |holders: &[Holder<'_>]| holders.iter().any(|it| it.worker == Some(worker));
        let ended = (!only_alive).then_some(&self.ended);
        let all = [Some(&self.alive), ended].into_iter().flatten().flatten();
        all.filter(|(_, holders)| is_own(holders)).map(|(unit, _)| *unit).collect()
    }

    /// Another one that has this unit. The ended container of one counts only if no live one of the
    /// worker has the unit.
    fn other(&self, unit: &str, worker: &WorkerName) -> Option<Holder<'a>> {
        let is_other = |holder: &Holder<'_>| holder.worker != Some(worker);
        let alive = self.alive.get(unit).map(Vec::as_slice).unwrap_or_default();
        let mut live = alive.iter().copied().chain(self.given.get(unit).copied());
        if let Some(other) = live.find(is_other) {
            return Some(other);
        }
        let ended = self.ended.get(unit).map(Vec::as_slice).unwrap_or_default();
        ended.iter().copied().find(|holder| alive.is_empty() && is_other(holder))
    }

    /// The units of a worker, among those that `is_candidate` accepts.
    fn choose(
        &self,
        units: &[OfferedUnit],
        wanted: &WantedDevices<'a>,
        is_candidate: impl Fn(&str) -> bool,
    ) -> Result<Vec<DeviceUnit>, Shortage> {
        let mut chosen = Vec::new();
        for (resource, number) in wanted.requests {
            let requested = usize::try_from(*number).unwrap_or(usize::MAX);
            let offered: Vec<&OfferedUnit> =
                units.iter().filter(|unit| unit.resource == *resource).collect();
            if offered.len() < requested {
                let resource = resource.clone();
                return Err(Shortage::TooFew { resource, requested: *number });
            }
            let present = offered.iter().filter_map(|unit| unit.unit.as_ref().ok());
            let is_free = |unit: &&DeviceUnit| self.other(&unit.name, wanted.worker).is_none();
            let free = present.clone().filter(is_free).filter(|unit| is_candidate(&unit.name));
            let free: Vec<&DeviceUnit> = free.take(requested).collect();
            if free.len() == requested {
                chosen.extend(free.into_iter().cloned());
                continue;
            }
            let missing = offered.iter().find_map(|unit| unit.unit.as_ref().err());
            if let Some(path) = missing.filter(|_| present.clone().count() < requested) {
                return Err(Shortage::Missing { resource: resource.clone(), path: path.clone() });
            }
            let others = present.clone().filter_map(|unit| self.other(&unit.name, wanted.worker));
            let others: Vec<Holder<'_>> = others.collect();
            return Err(Shortage::Busy {
                resource: resource.clone(),
                in_use: others.len(),
                present: present.count(),
                by: others.iter().map(|holder| holder.owner.cloned()).collect(),
            });
        }
        Ok(chosen)
    }

    fn give(&mut self, chosen: &[DeviceUnit], wanted: &WantedDevices<'a>) {
        let holder = Holder { worker: Some(wanted.worker), owner: Some(wanted.owner) };
        self.given.extend(chosen.iter().map(|unit| (unit.name.clone(), holder)));
    }
}

#[cfg(test)]
mod tests;
