//! The steps of a controller, one implementation per kind.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use kube::core::object::HasStatus;
use neptune_wire::{NodeName, ObjectKey};
use serde::Serialize;

use super::{context::Context, events::ObjectEvent, execute::ObjectPlan, state::Stateful};
use crate::{
    finding::Finding,
    fleet::{CounterReport, Retained},
    reason::Reason,
};

/// A kind's steps. `validate`, `plan`, `next_status` and `events` are pure; `facts` and `observe`
/// only read caches and the fleet.
pub trait Controller:
    Stateful + HasStatus<Status: Clone + Default + Serialize + Send + Sync + 'static>
{
    /// The inputs of `validate` from the cluster.
    type Facts: Send;

    /// A valid spec, with the parsed inputs of its plan.
    type Valid: Send;

    /// The part of a valid spec that `observe` needs. Held per object, unlike the rest.
    type Placed: From<Self::Valid> + Send + Sync + 'static;

    /// The inputs of `next_status` from the nodes and the cluster.
    type Observation: Send;

    /// What the controller keeps of an object between two statuses, besides its results. It is dropped
    /// when an input of the plan may have changed.
    type Memory: Default + Send + 'static;

    /// The texts of the generic steps.
    const MESSAGES: ControllerMessages;

    /// Collects the objects that the spec refers to.
    fn facts(&self, context: &Context) -> Self::Facts;

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

    /// Collects the observed state. `placed` is `None` while the spec is invalid.
    fn observe(
        &self,
        key: &ObjectKey,
        placed: Option<&Self::Placed>,
        context: &Context,
        now: Timestamp,
    ) -> Self::Observation;

    /// Computes the next status.
    fn next_status(
        &self,
        previous: &Self::Status,
        inputs: &StatusInputs<Self::Observation>,
    ) -> Self::Status;

    /// Whether `next` need not be written.
    fn is_same_status(previous: &Self::Status, next: &Self::Status) -> bool;

    /// The generation that a status was computed for.
    fn observed_generation(status: &Self::Status) -> Option<i64>;

    /// The Events of a change of the status.
    fn events(previous: &Self::Status, next: &Self::Status) -> Vec<ObjectEvent>;

    /// Enqueues the objects that depend on this one.
    fn enqueue_related(&self, _cause: Cause, _context: &Context) {}

    /// Enqueues this object because the agent of a node that it concerns changed, which `node` names.
    fn enqueue_by_agent(&self, _node: &NodeName, context: &Context) {
        context.enqueue(self);
    }

    /// Enqueues this object because a node reported something new of it: only its status may change.
    fn enqueue_by_report(&self, _node: &NodeName, context: &Context) {
        context.enqueue_unchanged(self);
    }

    /// Enqueues this object again if its plan follows from `next`, which replaced its status.
    fn enqueue_by_status(&self, _next: &Self::Status, _context: &Context) {}

    /// Enqueues the objects that read this one from the cache, if what they read differs. It runs at
    /// each change that the cache has, also of the status. `before` is what the cache had until then.
    fn enqueue_by_object(&self, _before: Option<&Self>, _context: &Context) {}

    /// Sets what a task beside the reconcile has to do, by the written status. `placed` is `None`
    /// while the spec is invalid.
    fn drive(&self, _key: &ObjectKey, _placed: Option<&Self::Placed>, _context: &Context) {}

    /// What a user should know at apply time although the spec is valid.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// The findings of the spec, as the conditions report them.
    fn findings(&self, context: &Context) -> Vec<Finding> {
        context.explain(self.validate(&self.facts(context)).err().unwrap_or_default())
    }
}

/// The inputs of the next status.
#[derive(Debug, Clone)]
pub struct StatusInputs<'a, O> {
    /// The generation of the spec.
    pub generation: Option<i64>,
    /// What prevents the spec from being in effect.
    pub findings: &'a [Finding],
    /// The observed state.
    pub observed: O,
    /// Counters that are not in the status yet.
    pub unreported: &'a [CounterReport],
    /// Whether every agent that matters had the time to report since the controller started: the
    /// time has passed, or the spec was valid since then.
    pub is_settled: bool,
    /// The current time.
    pub now: Timestamp,
}

/// Why the objects that depend on an object may have to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Its spec changed, or it was deleted.
    Spec,
    /// A node that it concerns changed.
    Node,
    /// Its Deployment or a Service of it changed.
    Workload,
}

/// The texts of the generic steps that differ per kind.
pub struct ControllerMessages {
    /// The remedy if the object exceeds the size limit of a message.
    pub shorten: &'static str,
    /// For kinds with a Deployment and a Service.
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
