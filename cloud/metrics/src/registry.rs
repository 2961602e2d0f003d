//! Registers all metrics: those of the controller itself, and those of the cluster, which the leader
//! exports.

use std::{fmt, sync::Arc};

use kube_core::Resource as _;
use neptune_api::{JointInferenceService, TrainingModel};
use neptune_cloud_kinds::{each_kind, kind::Kind};
use neptune_program::metrics as program;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::{
    ByController, ByState, Metrics,
    family::{Objects, WhileLeading},
    resources::{ResourceCollector, ResourceState},
    services::ServiceCollector,
    trainings::TrainingCollector,
};

/// The objects of the cluster, of which the leader exports the state.
#[derive(Debug)]
pub struct Cluster {
    /// The `JointInferenceService`s of the cluster.
    pub services: Objects<Arc<JointInferenceService>>,
    /// The `TrainingModel`s of the cluster.
    pub trainings: Objects<Arc<TrainingModel>>,
    /// The objects of all kinds.
    pub resources: Objects<ResourceState>,
}

/// Exports the nodes by state.
#[derive(Debug)]
struct FleetCollector(Family<ByState, Gauge>);

impl Collector for FleetCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let help = "Nodes by presence of their agent; delayed and problem are also online";
        let nodes =
            encoder.encode_descriptor("neptune_fleet_nodes", help, None, MetricType::Gauge)?;
        self.0.encode(nodes)
    }
}

impl Metrics {
    /// Returns a registry of all metrics. Those of the cluster are exported while this replica is
    /// the leader.
    pub fn registry(&self, cluster: Cluster) -> Registry {
        let mut root = Registry::default();
        program::register(&mut root);
        self.register(root.sub_registry_with_prefix("neptune_controller"));
        let Cluster { services, trainings, resources } = cluster;
        self.register_leader(&mut root, FleetCollector(self.nodes.clone()));
        self.register_leader(&mut root, ResourceCollector(resources));
        self.register_leader(&mut root, ServiceCollector(services));
        self.register_leader(&mut root, TrainingCollector(trainings));
        root
    }

    fn register_leader(&self, registry: &mut Registry, collector: impl Collector) {
        let leads = self.leads.clone();
        registry.register_collector(Box::new(WhileLeading { leads, collector }));
    }

    /// Returns the page of a registry of these metrics.
    pub fn page(&self, registry: &Registry) -> String {
        let page = program::encode(registry);
        let series = page.lines().filter(|line| !line.starts_with('#')).count();
        self.exported_series.set(i64::try_from(series).unwrap_or(i64::MAX));
        page
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
        registry.register(
            "exported_series",
            "Series of the previous page of metrics",
            self.exported_series.clone(),
        );
        registry.register(
            "leader",
            "Whether this replica is the leader (1) or not (0)",
            self.leads.clone(),
        );
        self.register_reconciles(registry);
        self.register_transport(registry);
    }

    fn register_reconciles(&self, registry: &mut Registry) {
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
            "model_switches",
            "Switches to another of the models that the labels of a service select",
            self.model_switches.clone(),
        );
        registry.register(
            "admission_reviews",
            "Admission reviews by verdict",
            self.reviews.clone(),
        );
        registry.register(
            "webhook_certificate_expiry_timestamp_seconds",
            "Expiry of the webhook's own certificate, in seconds since 1970",
            self.certificate_expiry.clone(),
        );
    }

    fn register_transport(&self, registry: &mut Registry) {
        registry.register(
            "transport_up",
            "Whether the broker is connected, or the router reachable with all Rules (1) or not (0)",
            self.transport_up.clone(),
        );
        registry.register(
            "mqtt_connected",
            "Whether the controller is connected to the broker (1) or not (0)",
            self.connected.clone(),
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
            "rule_requests",
            "Requests that create or delete KubeEdge's Rules and RuleEndpoints",
            self.rules.clone(),
        );
        registry.register(
            "rules_in_place",
            "Whether KubeEdge's Rules match the desired ones (1) or not (0)",
            self.rules_in_place.clone(),
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
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use jiff::Timestamp;
    use neptune_api::{Model, SelectionCause};
    use neptune_program::{listen::Refusal, metrics::text_format};

    use super::*;
    use crate::{
        MessageKind, NodeState, Outcome, PostOutcome, Rejection, ReviewOutcome, StatusClass,
        services::fixtures::service, trainings::fixtures::training,
    };

    /// A registry with a sample of each metric.
    fn sampled() -> (Metrics, Registry) {
        let metrics = Metrics::default();
        metrics.reconciled::<Model>(Outcome::Error, Duration::ZERO);
        metrics.published(Outcome::Ok);
        metrics.status_written(Outcome::Ok);
        metrics.status_delayed(StatusClass::State, Duration::ZERO);
        metrics.model_switched(SelectionCause::Better);
        metrics.rule_changed(Outcome::Ok);
        metrics.received(MessageKind::Node);
        metrics.rejected(Rejection::Topic);
        metrics.set_nodes([(NodeState::Online, 1)]);
        metrics.set_missing::<Model>(false);
        metrics.set_connected(true);
        metrics.reviewed(ReviewOutcome::Allowed);
        metrics.set_certificate_expiry(Timestamp::UNIX_EPOCH);
        metrics.posted(PostOutcome::Taken);
        metrics.refusals().count("health", Refusal::PendingFull);
        let state = || {
            let text = || "a".to_owned();
            vec![ResourceState {
                kind: text(),
                namespace: text(),
                name: text(),
                state: text(),
                reason: text(),
            }]
        };
        let registry = metrics.registry(Cluster {
            services: Objects(Box::new(|| vec![Arc::new(service())])),
            trainings: Objects(Box::new(|| vec![Arc::new(training())])),
            resources: Objects(Box::new(state)),
        });
        (metrics, registry)
    }

    #[test]
    fn every_metric_is_documented() {
        let (metrics, registry) = sampled();
        metrics.set_leads(true);
        let page = text_format(&metrics.page(&registry));
        neptune_harness::metrics_doc::check("neptune-cloud", &page);
    }

    #[test]
    fn standby_exports_only_itself() {
        let (metrics, registry) = sampled();
        let page = metrics.page(&registry);
        let is_own = |line: &str| {
            let name = line.trim_start_matches("# HELP ").trim_start_matches("# TYPE ");
            ["neptune_controller_", "neptune_build_info", "process_", "# UNIT"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
        };
        assert!(page.lines().all(is_own), "{page}");
        assert!(page.contains("neptune_controller_transport_up{transport=\"mqtt\"} 1\n"), "{page}");
        metrics.set_leads(true);
        let leader = metrics.page(&registry);
        for name in ["service_samples", "trainingmodel_round", "resource_state", "fleet_nodes"] {
            assert!(leader.contains(&format!("# TYPE neptune_{name} ")), "{leader}");
        }
        let series = |page: &str| page.lines().filter(|line| !line.starts_with('#')).count();
        let exported = format!("\nneptune_controller_exported_series {}\n", series(&leader));
        assert!(metrics.page(&registry).contains(&exported));
    }
}
