//! The devices of a worker or a model server in the plan: it starts with the units that were allocated
//! to it, is replaced if they changed, and is stopped while it has to wait for them.

use std::{collections::BTreeMap, time::Instant};

use neptune_wire::{WorkerName, WorkerReason};

use crate::{
    domain::{
        container::TargetContainer, device::DeviceUnit, observed_container::ObservedContainer,
        problem::Problem,
    },
    plan::{NodeFacts, NodePlan, attempts::Attempts},
};

/// The units of each worker and model server that requests devices, or why it has to wait.
pub type GrantedDevices = BTreeMap<WorkerName, Result<Vec<DeviceUnit>, Problem>>;

impl<'a> NodeFacts<'a> {
    /// The units of a container; empty if it requests none.
    ///
    /// # Errors
    /// Why it has to wait for them.
    pub fn devices_of(
        &self,
        name: &WorkerName,
        container: &TargetContainer,
    ) -> Result<&'a [DeviceUnit], Problem> {
        if container.spec.devices.is_empty() {
            return Ok(&[]);
        }
        match self.devices.get(name) {
            Some(Ok(units)) => Ok(units),
            Some(Err(problem)) => Err(problem.clone()),
            None => Err(Problem {
                reason: WorkerReason::Starting,
                message: "the devices of the container are chosen".to_owned(),
            }),
        }
    }
}

impl NodePlan {
    /// Removes the containers of a worker or a model server that waits for devices, so that what they
    /// have is free.
    pub fn release_devices(
        &mut self,
        facts: &NodeFacts<'_>,
        name: &WorkerName,
        attempts: &Attempts,
        now: Instant,
    ) {
        let containers = facts.containers(name);
        self.remove(name, containers.iter().map(|it| it.id.clone()).collect(), attempts, now);
    }
}

impl ObservedContainer {
    /// Whether the container has exactly these units, and none was connected again since.
    pub fn has_devices(&self, units: &[DeviceUnit]) -> bool {
        let has = |unit: &DeviceUnit| self.devices.get(&unit.name) == Some(&unit.identity);
        self.devices.len() == units.len() && units.iter().all(has)
    }
}
