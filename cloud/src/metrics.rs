//! What Prometheus can read of this controller. Labels are variants, never names of a user's.

use std::time::Duration;

use jiff::Timestamp;
use kube::Resource as _;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::{error::Class, kinds::Kind};

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
pub enum MessageKind {
    /// A birth, a heartbeat or a last will.
    Node,
    /// How an object fares.
    Status,
    /// What the node has.
    Sync,
    /// Several of these at once, over `KubeEdge`.
    Batch,
}

/// Why a message was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelValue)]
pub enum Rejection {
    /// Not on a topic of ours, or with a name that cannot be.
    Topic,
    /// Not what the topic promises.
    Payload,
    /// Numbers that cannot be.
    Impossible,
    /// On an object that does not exist, or that is another one of that name.
    UnknownObject,
    /// In the name of another node than the one that said it.
    OtherNode,
    /// From a node that is not registered.
    UnknownNode,
    /// Without the token that is asked for.
    Token,
    /// No batch: not UTF-8, not JSON, or broken off.
    Batch,
    /// A batch that is too large.
    TooLarge,
    /// More batches than a node may send.
    TooFast,
}

/// What was said of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum ReviewOutcome {
    /// Nothing.
    Allowed,
    /// A warning.
    Warned,
    /// No.
    Denied,
}

/// A node's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum NodeState {
    /// Its agent is there.
    Online,
    /// Its agent was there.
    Offline,
}

/// The result of a post to `KubeEdge`'s router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum PostOutcome {
    /// Cloudcore has it in its memory.
    Taken,
    /// Cloudcore knows no session of this node.
    NoSession,
    /// There is no rule for it.
    NoRule,
    /// Nobody answers at the router's address.
    NoRouter,
    /// No answer in time, or one that says nothing.
    Failed,
    /// The router does not take messages that large.
    TooLarge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByResult {
    result: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByMessageKind {
    kind: MessageKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByController {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    reason: Rejection,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByVerdict {
    verdict: ReviewOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByPost {
    result: PostOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByState {
    state: NodeState,
}

/// Upper bounds of the buckets of a reconcile's duration, in seconds.
const RECONCILE_BUCKETS: [f64; 10] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 10.0];

#[derive(Debug, Clone)]
struct ReconcileDurations(Family<ByController, Histogram>);

impl Default for ReconcileDurations {
    fn default() -> Self {
        Self(Family::new_with_constructor(|| Histogram::new(RECONCILE_BUCKETS)))
    }
}

/// The counters, gauges and histograms.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    reconciles: Family<ByResult, Counter>,
    reconcile_errors: Family<ByController, Counter>,
    reconcile_durations: ReconcileDurations,
    publishes: Family<ByResult, Counter>,
    status_writes: Family<ByResult, Counter>,
    upstream: Family<ByMessageKind, Counter>,
    rejected: Family<ByReason, Counter>,
    nodes: Family<ByState, Gauge>,
    objects: Family<ByController, Gauge>,
    connected: Gauge,
    leads: Gauge,
    reviews: Family<ByVerdict, Counter>,
    certificate_expiry: Gauge,
    posts: Family<ByPost, Counter>,
    router_reachable: Gauge,
    rules_in_place: Gauge,
}

impl Metrics {
    /// One reconcile of a kind ended.
    pub fn reconciled<K: Kind>(&self, result: Outcome, duration: Duration) {
        let labels = ByController { kind: K::LABEL };
        self.reconciles.get_or_create(&ByResult { result }).inc();
        if result != Outcome::Ok {
            self.reconcile_errors.get_or_create(&labels).inc();
        }
        self.reconcile_durations.0.get_or_create(&labels).observe(duration.as_secs_f64());
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
    pub fn received(&self, kind: MessageKind) {
        self.upstream.get_or_create(&ByMessageKind { kind }).inc();
    }

    /// One message was dropped.
    pub fn rejected(&self, reason: Rejection) {
        self.rejected.get_or_create(&ByReason { reason }).inc();
    }

    /// How many nodes are in a state.
    pub fn set_nodes(&self, state: NodeState, count: usize) {
        self.nodes.get_or_create(&ByState { state }).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// How many objects of a kind exist.
    pub fn set_objects<K: Kind>(&self, count: usize) {
        let gauge = self.objects.get_or_create(&ByController { kind: K::LABEL });
        gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// One message was posted to `KubeEdge`'s router.
    pub fn posted(&self, result: PostOutcome) {
        self.posts.get_or_create(&ByPost { result }).inc();
    }

    /// Whether `KubeEdge`'s router took a message last, or has not been asked.
    pub fn set_router_reachable(&self, reachable: bool) {
        self.router_reachable.set(i64::from(reachable));
    }

    /// Whether `KubeEdge`'s Rules are as they should be.
    pub fn set_rules_in_place(&self, in_place: bool) {
        self.rules_in_place.set(i64::from(in_place));
    }

    /// Whether the broker is connected.
    pub fn set_connected(&self, connected: bool) {
        self.connected.set(i64::from(connected));
    }

    /// Whether this replica is the one that acts.
    pub fn set_leads(&self, leads: bool) {
        self.leads.set(i64::from(leads));
    }

    /// The webhook answered a review.
    pub fn reviewed(&self, verdict: ReviewOutcome) {
        self.reviews.get_or_create(&ByVerdict { verdict }).inc();
    }

    /// Until when the webhook's certificate is valid.
    pub fn set_certificate_expiry(&self, expires: Timestamp) {
        self.certificate_expiry.set(expires.as_second());
    }

    /// A registry that shows them all.
    pub fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("neptune_controller");
        each_kind!(K => {
            let gauge = self.objects.get_or_create_owned(&ByController { kind: K::LABEL });
            Registry::register(&mut registry, K::GAUGE, format!("{}s", K::kind(&())), gauge);
        });
        registry.register("reconcile", "Looks at an object", self.reconciles.clone());
        registry.register(
            "reconcile_errors",
            "Reconciliations that failed",
            self.reconcile_errors.clone(),
        );
        registry.register(
            "reconcile_duration_seconds",
            "Duration of a reconciliation",
            self.reconcile_durations.0.clone(),
        );
        registry.register("publish", "Messages for nodes", self.publishes.clone());
        registry.register("status_write", "Statuses written", self.status_writes.clone());
        registry.register("upstream_messages", "Messages of nodes", self.upstream.clone());
        registry.register("upstream_rejected", "Messages dropped", self.rejected.clone());
        registry.register("nodes", "Nodes whose agent spoke", self.nodes.clone());
        registry.register(
            "mqtt_connected",
            "Whether the broker is connected",
            self.connected.clone(),
        );
        registry.register(
            "leader",
            "Whether this replica is the one that acts",
            self.leads.clone(),
        );
        registry.register(
            "admission_reviews",
            "Writes that the webhook was asked about",
            self.reviews.clone(),
        );
        registry.register(
            "webhook_certificate_expiry_seconds",
            "When the webhook's own certificate ends, in seconds since 1970",
            self.certificate_expiry.clone(),
        );
        registry.register("router_posts", "Posts to KubeEdge's router", self.posts.clone());
        registry.register(
            "router_reachable",
            "Whether KubeEdge's router answered last",
            self.router_reachable.clone(),
        );
        registry.register(
            "rules_in_place",
            "Whether KubeEdge's Rules are as they should be",
            self.rules_in_place.clone(),
        );
        registry
    }
}
