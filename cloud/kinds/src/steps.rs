//! The pure steps of a controller, one implementation per kind, and their values.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube_core::object::HasStatus;
use neptune_wire::{NodeName, ObjectKey};
use serde::Serialize;

use crate::{
    finding::Finding,
    fleet::{Generations, Requirements, Retained},
    kubernetes::workloads::{KubernetesObjects, OwnedObjects},
    reason::Reason,
    rollout::{planned::PlannedRollout, summary::Announcement},
    worker::config::seal::Seals,
};

/// A kind's steps as functions of values.
pub trait Steps:
    HasStatus<Status: Clone + Default + Serialize + Send + Sync + 'static> + Sized
{
    /// The inputs of `validate` from the cluster.
    type Facts: Send;

    /// A valid spec, with the parsed inputs of its plan.
    type Valid: Send;

    /// The part of a valid spec that `observe` needs. Kept per object, unlike the rest.
    type Placed: From<Self::Valid> + Send + Sync + 'static;

    /// The inputs of `next_status` from the nodes and the cluster.
    type Observation: Send;

    /// What the controller keeps of an object between two statuses, besides its results. It is dropped
    /// when an input of the plan may have changed.
    type Memory: Default + Send + 'static;

    /// The texts of the generic steps.
    const MESSAGES: ControllerMessages;

    /// Validates the spec.
    ///
    /// # Errors
    /// All findings, not only the first.
    fn validate(&self, facts: &Self::Facts) -> Result<Self::Valid, Vec<Finding>>;

    /// The desired state of the nodes and the API server for a valid spec.
    fn plan(&self, valid: &Self::Valid, fetch_image: &str) -> ObjectPlan;

    /// The objects that nodes retain while the spec is invalid.
    fn retained(&self, key: &ObjectKey) -> Retained;

    /// The same for kinds that need the facts for it.
    fn retained_by(&self, key: &ObjectKey, _facts: &Self::Facts) -> Retained {
        self.retained(key)
    }

    /// The nodes on which an invalid object retains nothing, because another object has priority
    /// there, such as for a port.
    fn yielded(&self, _facts: &Self::Facts) -> BTreeSet<NodeName> {
        BTreeSet::new()
    }

    /// Computes the next status.
    fn next_status(
        &self,
        previous: &Self::Status,
        inputs: &StatusInputs<Self::Observation>,
    ) -> Self::Status;

    /// When the status has to be computed again although nothing changes, by the clock of the fleet.
    fn recompute_at(_observed: &Self::Observation) -> Option<Timestamp> {
        None
    }

    /// Whether `next` need not be written.
    fn is_same_status(previous: &Self::Status, next: &Self::Status) -> bool;

    /// The generation that a status was computed for.
    fn observed_generation(status: &Self::Status) -> Option<i64>;

    /// The Events of a change of the status.
    fn events(previous: &Self::Status, next: &Self::Status) -> Vec<ObjectEvent>;

    /// The Event with the numbers of a status, which is published at most once a minute.
    fn summary_event(_status: &Self::Status) -> Option<ObjectEvent> {
        None
    }

    /// Whether a node gets another content of a Model that the object uses only with its rollout, also
    /// if other objects use the Model there.
    fn guards_models(&self) -> bool {
        false
    }

    /// What a user should know at apply time although the spec is valid.
    fn warnings(&self, _facts: &Self::Facts) -> Vec<String> {
        Vec::new()
    }

    /// The warnings of a valid spec about the nodes that lack something.
    fn node_warnings(&self, _facts: &Self::Facts, _valid: &Self::Valid) -> Vec<String> {
        Vec::new()
    }
}

/// The inputs of the next status.
#[derive(Debug, Clone)]
pub struct StatusInputs<'a, O> {
    /// The generation of the spec.
    pub generation: Option<i64>,
    /// What prevents the spec from being in effect.
    pub findings: &'a [Finding],
    /// The state that `observe` returned.
    pub observed: O,
    /// Whether every agent that matters had the time to report since the controller started: the
    /// time has passed, or the spec was valid since then.
    pub is_settled: bool,
    /// The wall-clock time of the reconcile, for conditions.
    pub now: Timestamp,
}

/// The texts of the generic steps that differ per kind.
pub struct ControllerMessages {
    /// The remedy if the object exceeds the size limit of a message.
    pub shorten: &'static str,
    /// The texts of kinds with a Deployment and a Service; `None` for others.
    pub workload: Option<WorkloadMessages>,
}

/// The texts about an object's Deployment and Service.
pub struct WorkloadMessages {
    /// The reason of the Event of their creation.
    pub created: &'static str,
    /// The noun for what the Deployment runs.
    pub what: &'static str,
    /// The field or object to rename if an object with the same name has another owner.
    pub rename: &'static str,
    /// The reason when the API server rejects them.
    pub refused: Reason,
}

/// The desired state of the nodes and of the API server for one object.
#[must_use]
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObjectPlan {
    /// The objects that each node needs for this object.
    pub requirements: Requirements,
    /// The values that have to be sealed in them, which needs random numbers.
    pub seals: Seals,
    /// The generations of the objects in them that other objects may require too.
    pub generations: Generations,
    /// What nodes retain instead, while the requirements cannot be planned.
    pub retained: Option<Retained>,
    /// What nodes keep unchanged. The plan has no requirements for these nodes.
    pub kept: Retained,
    /// The Deployment and the Service; `None` if no workload runs in the cluster.
    pub objects: Option<KubernetesObjects>,
    /// Whether the objects in the API server stay as they are, because they cannot be planned.
    pub keeps_objects: bool,
    /// Other objects that the object owns.
    pub owned: OwnedObjects,
    /// Whether the requirements lack the address of the Service because it does not exist yet. They
    /// are planned again when it does; until then nothing is published for the object.
    pub awaits_service: bool,
    /// Whether the status has to be written before anything else. Then the plan is made again.
    pub awaits_status: bool,
    /// What a rollout decided of it; `None` without one.
    pub rollout: Option<PlannedRollout>,
    /// The time after which the plan is made again, if nothing changes before.
    pub replan_after: Option<Duration>,
}

/// A Kubernetes Event to publish for the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectEvent {
    /// Whether a user may have to act.
    pub warning: bool,
    /// The reason in CamelCase.
    pub reason: String,
    /// Human-readable text of the Event.
    pub note: String,
}

impl ObjectEvent {
    /// An Event of type Normal.
    pub fn normal(reason: &str, note: impl Into<String>) -> Self {
        Self { warning: false, reason: reason.to_owned(), note: note.into() }
    }

    /// The Event of a rollout.
    pub fn of_rollout(announcement: Announcement) -> Self {
        let Announcement { is_warning, reason, message } = announcement;
        Self { warning: is_warning, reason, note: message }
    }

    /// An Event of type Warning.
    pub fn warning(reason: &str, note: impl Into<String>) -> Self {
        Self { warning: true, reason: reason.to_owned(), note: note.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::Steps;

    #[test]
    fn generation_of_a_status_is_the_observed_one() {
        each_kind!(K => {
            let mut status = <K as kube_core::object::HasStatus>::Status::default();
            assert_eq!(K::observed_generation(&status), None);
            status.observed_generation = Some(7);
            assert_eq!(K::observed_generation(&status), Some(7));
        });
    }
}
