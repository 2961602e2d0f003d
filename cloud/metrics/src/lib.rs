//! Prometheus metrics of the controller.

mod family;
mod labels;
mod registry;
mod resources;
mod services;
mod trainings;

use std::time::Duration;

use jiff::Timestamp;
use neptune_api::SelectionCause;
use neptune_cloud_kinds::kind::Kind;
use neptune_program::{listen::Refusals, metrics::REQUEST_BUCKETS};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};

pub use self::{
    family::Objects,
    labels::{
        MessageKind, NodeState, Outcome, PostOutcome, Rejection, ReviewOutcome, StatusClass,
        SwitchReason, TransportKind,
    },
    registry::Cluster,
    resources::{Conditioned, ResourceState},
};

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
struct ByCause {
    reason: SwitchReason,
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
struct ByWriteClass {
    class: StatusClass,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByState {
    state: NodeState,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByTransport {
    transport: TransportKind,
}

/// Histograms of durations by their labels.
#[derive(Debug, Clone)]
struct Durations<L>(Family<L, Histogram>);

impl<L: Clone + std::hash::Hash + Eq> Default for Durations<L> {
    fn default() -> Self {
        Self(Family::new_with_constructor(|| Histogram::new(REQUEST_BUCKETS)))
    }
}

/// The counters, gauges and histograms.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    reconciles: Family<ByResult, Counter>,
    reconcile_errors: Family<ByController, Counter>,
    reconcile_durations: Durations<ByController>,
    publishes: Family<ByResult, Counter>,
    status_writes: Family<ByResult, Counter>,
    status_delays: Durations<ByWriteClass>,
    rules: Family<ByResult, Counter>,
    model_switches: Family<ByCause, Counter>,
    upstream: Family<ByMessageKind, Counter>,
    rejected: Family<ByReason, Counter>,
    skipped: Counter,
    nodes: Family<ByState, Gauge>,
    objects: Family<ByController, Gauge>,
    missing: Family<ByController, Gauge>,
    connected: Gauge,
    transport_up: Family<ByTransport, Gauge>,
    exported_series: Gauge,
    leads: Gauge,
    reviews: Family<ByVerdict, Counter>,
    certificate_expiry: Gauge,
    posts: Family<ByPost, Counter>,
    router_reachable: Gauge,
    fleet_rate: Gauge,
    rules_in_place: Gauge,
    refusals: Refusals,
}

impl Metrics {
    /// Counts connections that the servers refuse.
    pub const fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Records a reconciliation of an object of the kind.
    pub fn reconciled<K: Kind>(&self, result: Outcome, duration: Duration) {
        let labels = ByController { kind: K::LABEL };
        self.reconciles.get_or_create(&ByResult { result }).inc();
        if result != Outcome::Ok {
            self.reconcile_errors.get_or_create(&labels).inc();
        }
        self.reconcile_durations.0.get_or_create(&labels).observe(duration.as_secs_f64());
    }

    /// Records a message that was queued for a node, or rejected by the transport.
    pub fn published(&self, result: Outcome) {
        self.publishes.get_or_create(&ByResult { result }).inc();
    }

    /// Records a status write.
    pub fn status_written(&self, result: Outcome) {
        self.status_writes.get_or_create(&ByResult { result }).inc();
    }

    /// Records how long a status write waited for its turn.
    pub fn status_delayed(&self, class: StatusClass, waited: Duration) {
        let delays = self.status_delays.0.get_or_create(&ByWriteClass { class });
        delays.observe(waited.as_secs_f64());
    }

    /// Records that a service uses another of the models that its labels select.
    pub fn model_switched(&self, cause: SelectionCause) {
        if let Some(reason) = SwitchReason::from_cause(cause) {
            self.model_switches.get_or_create(&ByCause { reason }).inc();
        }
    }

    /// Records a request that creates or deletes a Rule or `RuleEndpoint`.
    pub fn rule_changed(&self, result: Outcome) {
        self.rules.get_or_create(&ByResult { result }).inc();
    }

    /// Records a valid upstream message.
    pub fn received(&self, kind: MessageKind) {
        self.upstream.get_or_create(&ByMessageKind { kind }).inc();
    }

    /// Records a dropped upstream message.
    pub fn rejected(&self, reason: Rejection) {
        self.rejected.get_or_create(&ByReason { reason }).inc();
    }

    /// Records entries of valid upstream messages that this version does not know.
    pub fn skipped(&self, entries: usize) {
        if entries > 0 {
            self.skipped.inc_by(entries as u64);
        }
    }

    /// Sets the number of nodes in each of these states.
    pub fn set_nodes(&self, counts: impl IntoIterator<Item = (NodeState, usize)>) {
        for (state, count) in counts {
            let gauge = self.nodes.get_or_create(&ByState { state });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Sets the number of objects of a kind.
    pub fn set_objects<K: Kind>(&self, count: usize) {
        let gauge = self.objects.get_or_create(&ByController { kind: K::LABEL });
        gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Sets whether the CRD of a kind is missing.
    pub fn set_missing<K: Kind>(&self, is_missing: bool) {
        let gauge = self.missing.get_or_create(&ByController { kind: K::LABEL });
        gauge.set(i64::from(is_missing));
    }

    /// Records a POST to `KubeEdge`'s router.
    pub fn posted(&self, result: PostOutcome) {
        self.posts.get_or_create(&ByPost { result }).inc();
    }

    /// Sets whether the last POST to `KubeEdge`'s router was answered.
    pub fn set_router_reachable(&self, reachable: bool) {
        self.router_reachable.set(i64::from(reachable));
        self.set_event_bus_up();
    }

    /// Sets how many batches per second all nodes may send together.
    pub fn set_fleet_rate(&self, rate: u32) {
        self.fleet_rate.set(rate.into());
    }

    /// Sets whether `KubeEdge`'s Rules and `RuleEndpoints` match the desired ones.
    pub fn set_rules_in_place(&self, in_place: bool) {
        self.rules_in_place.set(i64::from(in_place));
        self.set_event_bus_up();
    }

    fn set_event_bus_up(&self) {
        let is_up = self.router_reachable.get() == 1 && self.rules_in_place.get() == 1;
        self.set_transport_up(TransportKind::EventBus, is_up);
    }

    fn set_transport_up(&self, transport: TransportKind, is_up: bool) {
        self.transport_up.get_or_create(&ByTransport { transport }).set(i64::from(is_up));
    }

    /// Sets whether the controller is connected to the broker.
    pub fn set_connected(&self, connected: bool) {
        self.connected.set(i64::from(connected));
        self.set_transport_up(TransportKind::Mqtt, connected);
    }

    /// Sets whether this replica is the leader.
    pub fn set_leads(&self, leads: bool) {
        self.leads.set(i64::from(leads));
    }

    /// Records an admission review.
    pub fn reviewed(&self, verdict: ReviewOutcome) {
        self.reviews.get_or_create(&ByVerdict { verdict }).inc();
    }

    /// Sets the expiry of the webhook's certificate.
    pub fn set_certificate_expiry(&self, expires: Timestamp) {
        self.certificate_expiry.set(expires.as_second());
    }
}
