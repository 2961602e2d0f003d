//! The steps of a controller that read the caches and the fleet, one implementation per kind.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use neptune_cloud_kinds::{
    finding::Finding,
    worker::config::{objects::ConfigObjects, references::ConfigName},
};
use neptune_wire::{NodeName, ObjectKey};
use serde_json::Value;

use super::{context::Context, state::Stateful};

/// A kind's steps: `facts` and `observe` collect the inputs of the pure ones.
pub trait Controller: Stateful {
    /// Collects the objects that the spec refers to.
    fn facts(&self, context: &Context) -> Self::Facts;

    /// The Secrets and `ConfigMap`s that are read before the facts, because an agent runs what refers
    /// to them.
    fn config_references(&self, _context: &Context) -> BTreeSet<ConfigName> {
        BTreeSet::new()
    }

    /// Adds what was read of them to the facts.
    fn use_config(_facts: &mut Self::Facts, _config: ConfigObjects) {}

    /// Collects the observed state. `placed` is `None` while the spec is invalid.
    fn observe(
        &self,
        key: &ObjectKey,
        placed: Option<&Self::Placed>,
        context: &Context,
        now: Timestamp,
    ) -> Self::Observation;

    /// Enqueues the objects that depend on this one.
    fn enqueue_related(&self, _cause: Cause, _context: &Context) {}

    /// Enqueues this object because the agent of a node that it concerns changed, which `node` names.
    fn enqueue_by_agent(&self, _node: &NodeName, _change: AgentChange, context: &Context) {
        context.enqueue(self);
    }

    /// Enqueues this object because a node reported something new of it: only its status may change.
    fn enqueue_by_report(&self, _node: &NodeName, context: &Context) {
        context.enqueue_unchanged(self);
    }

    /// The API server has the status that was computed from this observation.
    fn on_status_stored(&self, _observed: &Self::Observation, _context: &Context) {}

    /// Enqueues this object again if its plan follows from `next`, which replaced its status.
    fn enqueue_by_status(&self, _next: &Self::Status, _context: &Context) {}

    /// Enqueues the objects that read this one from the cache, if what they read differs. It runs at
    /// each change that the cache has, also of the status. `before` is what the cache had until then.
    fn enqueue_by_object(&self, _before: Option<&Self>, _context: &Context) {}

    /// The revision of a complete rollout with its spec, by the written status, to go back to it.
    fn complete_rollout(&self) -> Option<(&str, Value)> {
        None
    }

    /// Sets what a task beside the reconcile has to do, by the written status. `placed` is `None`
    /// while the spec is invalid.
    fn drive(&self, _key: &ObjectKey, _placed: Option<&Self::Placed>, _context: &Context) {}

    /// The findings of the spec, as the conditions report them.
    fn findings(&self, context: &Context) -> Vec<Finding> {
        context.explain(self.validate(&self.facts(context)).err().unwrap_or_default())
    }
}

/// What changed of the agent of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentChange {
    /// Only whether it is connected, or which instance is.
    Presence,
    /// Its address, its key or what it can do, too.
    Facts,
}

/// Why the objects that depend on an object may have to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The spec of the object changed, or the object was deleted.
    Spec,
    /// A node that it concerns changed.
    Node,
    /// The Deployment of the object or one of its Services changed.
    Workload,
}
