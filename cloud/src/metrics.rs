//! What Prometheus can read of this controller. Labels are variants, never names of a user's.

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::error::Class;

/// How an action ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Outcome {
    /// As wished.
    Ok,
    /// Somebody else wrote first.
    Conflict,
    /// It was refused.
    Refused,
    /// It may go better next time.
    Error,
}

impl From<Class> for Outcome {
    fn from(class: Class) -> Self {
        match class {
            Class::Conflict => Self::Conflict,
            Class::Refused | Class::Configuration => Self::Refused,
            Class::Transient => Self::Error,
        }
    }
}

/// What a message from a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Kind {
    /// A birth, a heartbeat or a last will.
    Node,
    /// How an object fares.
    Status,
    /// What the node has.
    Sync,
}

/// Why a message was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Rejection {
    /// Not on a topic of ours, or with a name that cannot be.
    Topic,
    /// Not what the topic promises.
    Payload,
    /// Numbers that cannot be.
    Impossible,
    /// On an object that does not exist, or that is another one of that name.
    UnknownObject,
}

/// A node's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum State {
    /// Its agent is there.
    Online,
    /// Its agent was there.
    Offline,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByResult {
    result: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByKind {
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    reason: Rejection,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByState {
    state: State,
}

/// The counters and gauges.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    reconciles: Family<ByResult, Counter>,
    publishes: Family<ByResult, Counter>,
    status_writes: Family<ByResult, Counter>,
    upstream: Family<ByKind, Counter>,
    rejected: Family<ByReason, Counter>,
    nodes: Family<ByState, Gauge>,
    services: Gauge,
    inference_models: Gauge,
    connected: Gauge,
}

impl Metrics {
    /// One look at a service ended.
    pub fn reconciled(&self, result: Outcome) {
        self.reconciles.get_or_create(&ByResult { result }).inc();
    }

    /// One message was handed to the link, or was not.
    pub fn published(&self, result: Outcome) {
        self.publishes.get_or_create(&ByResult { result }).inc();
    }

    /// One status was written, or was not.
    pub fn status_written(&self, result: Outcome) {
        self.status_writes.get_or_create(&ByResult { result }).inc();
    }

    /// One message of a node was understood.
    pub fn received(&self, kind: Kind) {
        self.upstream.get_or_create(&ByKind { kind }).inc();
    }

    /// One message was dropped.
    pub fn rejected(&self, reason: Rejection) {
        self.rejected.get_or_create(&ByReason { reason }).inc();
    }

    /// How many nodes are in a state.
    pub fn set_nodes(&self, state: State, count: usize) {
        self.nodes.get_or_create(&ByState { state }).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// How many services there are.
    pub fn set_services(&self, count: usize) {
        self.services.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// How many inference models there are.
    pub fn set_inference_models(&self, count: usize) {
        self.inference_models.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Whether the broker is connected.
    pub fn set_connected(&self, connected: bool) {
        self.connected.set(i64::from(connected));
    }

    /// A registry that shows them all.
    pub fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("neptune_controller");
        registry.register(
            "reconcile",
            "Looks at a service or an inference model",
            self.reconciles.clone(),
        );
        registry.register("publish", "Messages for nodes", self.publishes.clone());
        registry.register("status_write", "Statuses written", self.status_writes.clone());
        registry.register("upstream_messages", "Messages of nodes", self.upstream.clone());
        registry.register("upstream_rejected", "Messages dropped", self.rejected.clone());
        registry.register("nodes", "Nodes whose agent spoke", self.nodes.clone());
        registry.register("services", "JointInferenceServices", self.services.clone());
        registry.register("inference_models", "InferenceModels", self.inference_models.clone());
        registry.register(
            "mqtt_connected",
            "Whether the broker is connected",
            self.connected.clone(),
        );
        registry
    }
}
