//! Prometheus metrics of the controller.

mod gateways;
mod labels;
mod trainings;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::Resource as _;
use neptune_api::{JointInferenceService, SelectionCause, TrainingModel};
use neptune_program::listen::Refusals;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

pub use self::labels::{
    MessageKind, NodeState, Outcome, PostOutcome, Rejection, ReviewOutcome, StatusClass,
    SwitchReason,
};
use self::{gateways::GatewayCollector, trainings::TrainingCollector};
use crate::kinds::Kind;

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

/// Upper bounds of the buckets of a reconcile's duration, in seconds.
const RECONCILE_BUCKETS: [f64; 10] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 10.0];

#[derive(Debug, Clone)]
struct ReconcileDurations(Family<ByController, Histogram>);

impl Default for ReconcileDurations {
    fn default() -> Self {
        Self(Family::new_with_constructor(|| Histogram::new(RECONCILE_BUCKETS)))
    }
}

/// Upper bounds of the buckets of a status write's delay, in seconds.
const DELAY_BUCKETS: [f64; 9] = [0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 20.0, 60.0];

#[derive(Debug, Clone)]
struct WriteDelays(Family<ByWriteClass, Histogram>);

impl Default for WriteDelays {
    fn default() -> Self {
        Self(Family::new_with_constructor(|| Histogram::new(DELAY_BUCKETS)))
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
    status_delays: WriteDelays,
    rules: Family<ByResult, Counter>,
    model_switches: Family<ByCause, Counter>,
    upstream: Family<ByMessageKind, Counter>,
    rejected: Family<ByReason, Counter>,
    skipped: Counter,
    nodes: Family<ByState, Gauge>,
    objects: Family<ByController, Gauge>,
    missing: Family<ByController, Gauge>,
    connected: Gauge,
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
        if let Some(reason) = SwitchReason::of(cause) {
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
    }

    /// Sets how many batches per second all nodes may send together.
    pub fn set_fleet_rate(&self, rate: u32) {
        self.fleet_rate.set(rate.into());
    }

    /// Sets whether `KubeEdge`'s Rules and `RuleEndpoints` match the desired ones.
    pub fn set_rules_in_place(&self, in_place: bool) {
        self.rules_in_place.set(i64::from(in_place));
    }

    /// Sets whether the controller is connected to the broker.
    pub fn set_connected(&self, connected: bool) {
        self.connected.set(i64::from(connected));
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

    /// A registry of all metrics. `services` are those of the cluster, whose gateways are exported.
    pub fn registry(
        &self,
        services: impl Fn() -> Vec<Arc<JointInferenceService>> + Send + Sync + 'static,
        trainings: impl Fn() -> Vec<Arc<TrainingModel>> + Send + Sync + 'static,
    ) -> Registry {
        let mut root = Registry::default();
        root.register_collector(Box::new(GatewayCollector(Box::new(services))));
        root.register(
            "neptune_model_switches",
            "Switches to another of the models that the labels of a service select",
            self.model_switches.clone(),
        );
        root.register_collector(Box::new(TrainingCollector(Box::new(trainings))));
        self.register(root.sub_registry_with_prefix("neptune_controller"));
        root
    }

    fn register(&self, registry: &mut Registry) {
        self.refusals.register(registry);
        each_kind!(K => {
            let gauge = self.objects.get_or_create_owned(&ByController { kind: K::LABEL });
            Registry::register(registry, K::GAUGE, format!("{}s", K::kind(&())), gauge);
        });
        registry.register(
            "missing_crd",
            "Whether the CRD of the kind is missing (1) or not (0)",
            self.missing.clone(),
        );
        registry.register("reconcile", "Total reconciliations", self.reconciles.clone());
        registry.register(
            "reconcile_errors",
            "Failed reconciliations by kind",
            self.reconcile_errors.clone(),
        );
        registry.register(
            "reconcile_duration_seconds",
            "Duration of reconciliations by kind, in seconds",
            self.reconcile_durations.0.clone(),
        );
        registry.register("publish", "Messages published to nodes", self.publishes.clone());
        registry.register("status_write", "Status writes", self.status_writes.clone());
        registry.register(
            "status_write_delay_seconds",
            "Time that status writes waited for their turn, by what they change",
            self.status_delays.0.clone(),
        );
        registry.register(
            "rule_requests",
            "Requests that create or delete KubeEdge's Rules and RuleEndpoints",
            self.rules.clone(),
        );
        registry.register(
            "upstream_messages",
            "Messages received from nodes",
            self.upstream.clone(),
        );
        registry.register(
            "upstream_rejected",
            "Messages from nodes that were dropped, by reason",
            self.rejected.clone(),
        );
        registry.register(
            "upstream_skipped",
            "Entries of nodes' messages that were skipped because this version does not know them",
            self.skipped.clone(),
        );
        registry.register("nodes", "Nodes by presence of their agent", self.nodes.clone());
        registry.register(
            "mqtt_connected",
            "Whether the controller is connected to the broker (1) or not (0)",
            self.connected.clone(),
        );
        registry.register(
            "leader",
            "Whether this replica is the leader (1) or not (0)",
            self.leads.clone(),
        );
        registry.register(
            "admission_reviews",
            "Admission reviews by verdict",
            self.reviews.clone(),
        );
        registry.register(
            "webhook_certificate_expiry_seconds",
            "Expiry of the webhook's own certificate, in seconds since 1970",
            self.certificate_expiry.clone(),
        );
        registry.register(
            "router_posts",
            "POST requests to KubeEdge's router by result",
            self.posts.clone(),
        );
        registry.register(
            "router_reachable",
            "Whether KubeEdge's router answered the last request (1) or not (0)",
            self.router_reachable.clone(),
        );
        registry.register(
            "fleet_batch_rate",
            "Batches per second that all nodes may send together over EventBus",
            self.fleet_rate.clone(),
        );
        registry.register(
            "rules_in_place",
            "Whether KubeEdge's Rules match the desired ones (1) or not (0)",
            self.rules_in_place.clone(),
        );
    }
}
