//! The steps of a controller, one implementation per kind.

use k8s_openapi::jiff::Timestamp;
use kube::core::object::HasStatus;
use neptune_wire::ObjectKey;
use serde::Serialize;

use super::{context::Context, events::ObjectEvent, execute::Plan, state::Stateful};
use crate::{
    finding::Finding,
    fleet::{CounterReport, Retained},
    reason::Reason,
};

/// A kind's steps. `validate`, `plan`, `next_status` and `events` are pure; `facts` and `observe` only read caches and
/// the fleet.
pub trait Controller:
    Stateful + HasStatus<Status: Clone + Default + Serialize + Send + Sync + 'static>
{
    /// What `validate` reads of the cluster.
    type Facts: Send;

    /// A valid spec with all that its plan needs, parsed.
    type Valid: Send + Sync + 'static;

    /// What `next_status` reads of the nodes and the cluster.
    type Observation: Send;

    /// The texts of the generic steps.
    const MESSAGES: ControllerMessages;

    /// Collects what the spec names.
    fn facts(&self, context: &Context) -> Self::Facts;

    /// Whether the object can work.
    ///
    /// # Errors
    /// Everything that prevents it, not only the first finding.
    fn validate(&self, facts: &Self::Facts) -> Result<Self::Valid, Vec<Finding>>;

    /// What a valid spec means for the nodes and the API server.
    fn plan(&self, valid: &Self::Valid, fetch_image: &str) -> Plan;

    /// What nodes keep of an object that cannot be planned now.
    fn retained(&self, key: &ObjectKey) -> Retained;

    /// Collects how the object runs. `valid` is missing while the spec is invalid.
    fn observe(
        &self,
        key: &ObjectKey,
        valid: Option<&Self::Valid>,
        context: &Context,
        now: Timestamp,
    ) -> Self::Observation;

    /// The status that the object should have.
    fn next_status(
        &self,
        previous: &Self::Status,
        inputs: &StatusInputs<Self::Observation>,
    ) -> Self::Status;

    /// Whether a change of the status is not worth a write.
    fn is_same_status(previous: &Self::Status, next: &Self::Status) -> bool;

    /// The generation that a status was computed for.
    fn observed_generation(status: &Self::Status) -> Option<i64>;

    /// The Events of a change of the status.
    fn events(previous: &Self::Status, next: &Self::Status) -> Vec<ObjectEvent>;

    /// Whether a change of a node, or of its agent, may affect this object.
    fn concerns(&self, node: &str) -> bool;

    /// Enqueues the objects that depend on this one.
    fn enqueue_related(&self, _cause: Cause, _context: &Context) {}

    /// Enqueues the objects that depend on the status, after `next` replaced this object's status.
    fn enqueue_by_status(&self, _next: &Self::Status, _context: &Context) {}

    /// What is wrong with the spec, as the conditions report it.
    fn findings(&self, context: &Context) -> Vec<Finding> {
        self.validate(&self.facts(context)).err().unwrap_or_default()
    }
}

/// What the next status is computed from.
#[derive(Debug, Clone)]
pub struct StatusInputs<'a, O> {
    /// The generation of the spec.
    pub generation: Option<i64>,
    /// What prevents the spec from being in effect.
    pub findings: &'a [Finding],
    /// How the object runs.
    pub observed: O,
    /// Counters that are not in the status yet.
    pub unreported: &'a [CounterReport],
    /// The time.
    pub now: Timestamp,
}

/// Why the objects that depend on an object may have to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Its spec changed, or it was deleted.
    Spec,
    /// A node that it concerns changed.
    Node,
}

/// The texts of the generic steps that differ per kind.
pub struct ControllerMessages {
    /// What to do when the object exceeds the size of a message.
    pub shorten: &'static str,
    /// For kinds with a Deployment and a Service.
    pub workload: Option<WorkloadMessages>,
}

/// The texts about an object's Deployment and Service.
pub struct WorkloadMessages {
    /// The reason of the Event after their creation.
    pub created: &'static str,
    /// What the Deployment runs, after "the".
    pub what: &'static str,
    /// What to rename when an object of that name has another owner.
    pub rename: &'static str,
    /// The reason when the API server rejects them.
    pub refused: Reason,
}
