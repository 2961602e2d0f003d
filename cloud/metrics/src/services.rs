//! Exports the status of each `JointInferenceService` when the metrics are read, so that a deleted
//! service has no series.

use std::{collections::BTreeSet, fmt, sync::Arc};

use neptune_api::{
    GatewayStatus, Goal, JointInferenceService, JointInferenceServiceStatus, NodeCounts,
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet},
};

use super::family::{Objects, counted, counter, gauge};

/// The services of the cluster.
#[derive(Debug)]
pub struct ServiceCollector(pub Objects<Arc<JointInferenceService>>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByService {
    namespace: String,
    service: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByDecision {
    namespace: String,
    service: String,
    decision: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByBound {
    namespace: String,
    service: String,
    bound: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByCloud {
    namespace: String,
    service: String,
    cloud: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByNodeState {
    namespace: String,
    service: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByProblem {
    namespace: String,
    service: String,
    reason: String,
}

/// A service with its status.
#[derive(Clone, Copy)]
struct Reported<'a> {
    goal: Option<&'a Goal>,
    status: &'a JointInferenceServiceStatus,
}

/// A figure of a service as a gauge.
type Figure = fn(Reported<'_>) -> Option<f64>;

const FIGURES: [(&str, &str, Figure); 6] = [
    (
        "neptune_service_upload_ratio",
        "Share of the last 1000 samples that the cloud answered, 0 to 1",
        |service| number(service.gateway()?.upload_ratio.as_deref()),
    ),
    (
        "neptune_service_upload_goal_ratio",
        "Goal of the share of samples that the cloud answers, 0 to 1",
        |service| number(service.goal?.upload_ratio.as_deref()),
    ),
    (
        "neptune_service_upload_cap_ratio",
        "Maximum share of samples that is sent to the cloud, 0 to 1",
        |service| cap(service.goal?),
    ),
    (
        "neptune_service_agreement_goal_ratio",
        "Goal of the share of answers that equal those of the cloud, 0 to 1",
        |service| number(service.goal?.agreement.as_deref()),
    ),
    (
        "neptune_service_threshold",
        "Confidence below which a sample is hard; absent while nodes differ",
        |service| number(service.gateway()?.threshold.as_deref()),
    ),
    (
        "neptune_service_psi",
        "Highest population stability index of the nodes; above 0.2 the confidences drift",
        |service| {
            let nodes = service.status.edge_workers.iter().filter_map(|it| it.gateway.as_ref());
            nodes.filter_map(|node| number(node.psi.as_deref())).reduce(f64::max)
        },
    ),
];

const SAMPLES: (&str, &str) =
    ("neptune_service_samples", "Samples by how they were answered; each is in one decision");
const AGREEMENT: (&str, &str) = (
    "neptune_service_agreement_ratio",
    "Share of answers that equal those of the cloud, 0 to 1, with its 95 % interval",
);
const GATEWAYS: (&str, &str) =
    ("neptune_service_gateways", "Nodes by the state of the cloud as their gateway sees it");
const NODES: (&str, &str) = (
    "neptune_service_nodes",
    "Nodes of services on several nodes, by the state of the edge worker",
);
const PROBLEMS: (&str, &str) = (
    "neptune_service_problem_nodes",
    "Nodes whose gateway reports a problem, or whose edge worker counts no samples, by the reason",
);
/// The reason of nodes without samples.
const NO_SAMPLES: &str = "NoSamples";

impl Collector for ServiceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let services = (self.0.0)();
        let reported: Vec<_> = services.iter().filter_map(|service| reported(service)).collect();
        let each = || reported.iter().map(|(labels, service)| (labels.clone(), *service));
        counter(
            &mut encoder,
            SAMPLES,
            each().flat_map(|(labels, service)| {
                let ByService { namespace, service: name } = labels;
                decisions(service.status).into_iter().flatten().map(move |(decision, samples)| {
                    let (namespace, service) = (namespace.clone(), name.clone());
                    (ByDecision { namespace, service, decision }, samples)
                })
            }),
        )?;
        for (name, help, figure) in FIGURES {
            let samples = each().filter_map(|(labels, it)| figure(it).map(|value| (labels, value)));
            gauge(&mut encoder, (name, help), samples)?;
        }
        gauge(
            &mut encoder,
            AGREEMENT,
            each().flat_map(|(labels, service)| {
                let agreement = service.gateway().and_then(|it| it.agreement.as_deref());
                bounds(agreement).into_iter().map(move |(bound, value)| {
                    let ByService { namespace, service } = labels.clone();
                    (ByBound { namespace, service, bound }, value)
                })
            }),
        )?;
        gauge(
            &mut encoder,
            GATEWAYS,
            each().flat_map(|(labels, service)| {
                counted(service.clouds()).into_iter().map(move |(cloud, nodes)| {
                    let ByService { namespace, service } = labels.clone();
                    (ByCloud { namespace, service, cloud }, f64::from(nodes))
                })
            }),
        )?;
        gauge(
            &mut encoder,
            NODES,
            each().flat_map(|(labels, service)| {
                let states = service.status.node_counts.as_ref().map(node_states);
                states.into_iter().flatten().map(move |(state, nodes)| {
                    let ByService { namespace, service } = labels.clone();
                    (ByNodeState { namespace, service, state }, f64::from(nodes))
                })
            }),
        )?;
        gauge(
            &mut encoder,
            PROBLEMS,
            each().flat_map(|(labels, service)| {
                let mut problems = counted(service.problems());
                problems.extend(service.silent().map(|nodes| (NO_SAMPLES, nodes)));
                problems.into_iter().map(move |(reason, nodes)| {
                    let ByService { namespace, service } = labels.clone();
                    (ByProblem { namespace, service, reason: reason.to_owned() }, f64::from(nodes))
                })
            }),
        )
    }
}

/// The labels and the status of a service that has one.
fn reported(service: &JointInferenceService) -> Option<(ByService, Reported<'_>)> {
    let labels = ByService {
        namespace: service.metadata.namespace.clone().unwrap_or_default(),
        service: service.metadata.name.clone().unwrap_or_default(),
    };
    let goal = service.spec.edge_worker.hard_example_algorithm.goal.as_deref();
    Some((labels, Reported { goal, status: service.status.as_ref()? }))
}

impl<'a> Reported<'a> {
    fn gateway(self) -> Option<&'a GatewayStatus> {
        self.status.gateway.as_deref()
    }

    /// The state of the cloud on each node.
    fn clouds(self) -> Vec<&'static str> {
        let nodes = self.status.edge_workers.iter().filter_map(|worker| worker.gateway.as_ref());
        let clouds: Vec<_> = nodes.map(|node| cloud(&node.cloud)).collect();
        match self.gateway().and_then(|gateway| gateway.cloud.as_deref()) {
            // A worker on one node has no list of nodes.
            Some(state) if clouds.is_empty() => vec![cloud(state)],
            _ => clouds,
        }
    }

    /// The reason of each problem of each node, once.
    fn problems(self) -> impl Iterator<Item = &'a str> {
        let problems = self.gateway().into_iter().flat_map(|gateway| &gateway.problems);
        let nodes: BTreeSet<_> =
            problems.map(|it| (it.reason.as_str(), it.node.as_str())).collect();
        nodes.into_iter().map(|(reason, _)| reason)
    }

    /// The number of nodes without samples, if there are some. A worker on one node has neither numbers
    /// of nodes nor, if the spec names the node, a row.
    fn silent(self) -> Option<u32> {
        let is_silent = |reason: &Option<String>| reason.as_deref() == Some(NO_SAMPLES);
        let condition = self.status.conditions.last();
        let nodes = match &self.status.node_counts {
            Some(counts) => u32::try_from(counts.silent).unwrap_or_default(),
            None => u32::from(condition.is_some_and(|current| is_silent(&current.reason))),
        };
        (nodes > 0).then_some(nodes)
    }
}

/// The numbers of nodes by state. Each node has one of the states.
fn node_states(counts: &NodeCounts) -> [(&'static str, i32); 6] {
    [
        ("ready", counts.ready),
        ("pending", counts.pending),
        ("failed", counts.failed),
        ("completed", counts.completed),
        ("offline", counts.offline),
        ("unknown", counts.unknown),
    ]
}

/// The exact totals, of which each sample is in one; `None` before the first report.
fn decisions(status: &JointInferenceServiceStatus) -> Option<[(&'static str, u64); 5]> {
    let total = |key: &str| {
        let metric = status.metrics.iter().find(|metric| metric.key == key);
        metric.and_then(|metric| metric.value.parse::<u64>().ok())
    };
    let inferences = total("inferenceNumber")?;
    let others = [
        ("hard", "hardExampleNumber"),
        ("fallback", "fallbackNumber"),
        ("over-budget", "overBudgetNumber"),
        ("unjudged", "unjudgedNumber"),
    ];
    let [hard, fallback, over_budget, unjudged] =
        others.map(|(decision, key)| (decision, total(key).unwrap_or_default()));
    let answered_otherwise = [hard, fallback, over_budget, unjudged]
        .iter()
        .fold(0_u64, |sum, it| sum.saturating_add(it.1));
    let easy = inferences.saturating_sub(answered_otherwise);
    Some([("easy", easy), hard, fallback, over_budget, unjudged])
}

/// The cap of uploads; `None` without a goal or cap.
fn cap(goal: &Goal) -> Option<f64> {
    let default =
        || number(goal.upload_ratio.as_deref()).map(|ratio| (1.5e6 * ratio).round().min(1e6) / 1e6);
    number(goal.max_upload_ratio.as_deref()).or_else(default)
}

/// The first number of a text such as `0.962 (0.941-0.976)`.
fn number(text: Option<&str>) -> Option<f64> {
    text?.split(' ').next()?.parse().ok()
}

/// The estimate and the interval of a text such as `0.962 (0.941-0.976)`.
fn bounds(text: Option<&str>) -> Vec<(&'static str, f64)> {
    let interval = text.and_then(|text| text.split_once('(')?.1.strip_suffix(')'));
    let (low, high) = interval.and_then(|interval| interval.split_once('-')).unzip();
    let bounds = [("estimate", number(text)), ("low", number(low)), ("high", number(high))];
    bounds.into_iter().filter_map(|(bound, value)| Some((bound, value?))).collect()
}

/// The label of a state of the cloud.
fn cloud(state: &str) -> &'static str {
    match state {
        "Reachable" => "reachable",
        "LeftAlone" => "left_alone",
        "RequestsRefused" => "requests_refused",
        "TokenRefused" => "token_refused",
        "Absent" => "absent",
        _ => "unknown",
    }
}

/// A service for tests of pages.
#[cfg(test)]
pub(super) mod fixtures {
    #![allow(clippy::unwrap_used)]
    use neptune_api::{Goal, JointInferenceService};
    use serde_json::{Value, json};

    const SAMPLE: &str =
        include_str!("../../../common/api/tests/samples/jointinferenceservice.yaml");

    /// The status of a service with a gateway.
    pub fn cascade() -> Value {
        json!({
            "gateway": {"threshold": "0.713", "agreement": "0.962 (0.941-0.976)",
                "uploadRatio": "0.200", "cloud": "LeftAlone", "problems": [
                    {"node": "edge0", "reason": "CloudLeftAlone", "message": "retrying"},
                    {"node": "edge0", "reason": "Drifting", "message": "calibrate"},
                    {"node": "edge1", "reason": "Drifting", "message": "calibrate"}]},
            "metrics": [{"key": "inferenceNumber", "value": "100"},
                {"key": "hardExampleNumber", "value": "20"}, {"key": "fallbackNumber", "value": "3"},
                {"key": "overBudgetNumber", "value": "2"}, {"key": "unjudgedNumber", "value": "5"}],
        })
    }

    pub fn service_with(status: &Value) -> JointInferenceService {
        let mut service: JointInferenceService = serde_saphyr::from_str(SAMPLE).unwrap();
        service.metadata.namespace = Some("default".to_owned());
        service.metadata.name = Some("assistant".to_owned());
        let goal = Goal { upload_ratio: Some("0.2".to_owned()), ..Goal::default() };
        service.spec.edge_worker.hard_example_algorithm.goal = Some(Box::new(goal));
        service.status = Some(serde_json::from_value(status.clone()).unwrap());
        service
    }

    /// A service with every figure.
    pub fn service() -> JointInferenceService {
        let mut status = cascade();
        status["nodeCounts"] = json!({"summary": "7/10", "desired": 10, "ready": 7, "pending": 1,
            "failed": 0, "completed": 0, "offline": 2, "unknown": 0, "silent": 3});
        status["edgeWorkers"] = json!([{"node": "edge0", "state": "Running", "gateway":
            {"signal": "Top2", "cloud": "Reachable", "psi": "0.100"}}]);
        let mut service = service_with(&status);
        let goal = service.spec.edge_worker.hard_example_algorithm.goal.as_mut().unwrap();
        goal.agreement = Some("0.97".to_owned());
        service
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prometheus_client::{encoding::text, registry::Registry};
    use serde_json::json;

    use super::{
        fixtures::{cascade, service_with},
        *,
    };

    fn page(status: &serde_json::Value) -> String {
        let service = service_with(status);
        let services = vec![Arc::new(service)];
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ServiceCollector(Objects(Box::new(move || {
            services.clone()
        })))));
        let mut page = String::new();
        text::encode(&mut page, &registry).unwrap();
        page
    }

    #[test]
    fn service_with_a_gateway_has_a_series_per_figure() {
        let page = page(&cascade());
        let labels = r#"{namespace="default",service="assistant""#;
        let samples = |decision: &str, count: u64| {
            format!("neptune_service_samples_total{labels},decision=\"{decision}\"}} {count}")
        };
        for line in [
            format!("neptune_service_upload_ratio{labels}}} 0.2"),
            format!("neptune_service_upload_goal_ratio{labels}}} 0.2"),
            format!("neptune_service_upload_cap_ratio{labels}}} 0.3"),
            format!("neptune_service_threshold{labels}}} 0.713"),
            format!("neptune_service_agreement_ratio{labels},bound=\"estimate\"}} 0.962"),
            format!("neptune_service_agreement_ratio{labels},bound=\"low\"}} 0.941"),
            format!("neptune_service_agreement_ratio{labels},bound=\"high\"}} 0.976"),
            format!("neptune_service_gateways{labels},cloud=\"left_alone\"}} 1.0"),
            format!("neptune_service_problem_nodes{labels},reason=\"CloudLeftAlone\"}} 1.0"),
            format!("neptune_service_problem_nodes{labels},reason=\"Drifting\"}} 2.0"),
            samples("easy", 70),
            samples("hard", 20),
            samples("fallback", 3),
            samples("over-budget", 2),
            samples("unjudged", 5),
        ] {
            assert!(page.lines().any(|it| it == line), "{line} in\n{page}");
        }
        assert_eq!(page.lines().filter(|line| !line.starts_with('#')).count(), 15, "{page}");
    }

    #[test]
    fn service_on_several_nodes_has_their_number_by_state() {
        let page =
            page(&super::fixtures::service().status.map(|it| serde_json::json!(it)).unwrap());
        let labels = r#"{namespace="default",service="assistant""#;
        let states = [("ready", 7), ("pending", 1), ("failed", 0), ("completed", 0)];
        for (state, nodes) in states.into_iter().chain([("offline", 2), ("unknown", 0)]) {
            let line = format!("neptune_service_nodes{labels},state=\"{state}\"}} {nodes}.0");
            assert!(page.lines().any(|it| it == line), "{line} in\n{page}");
        }
        let silent = format!("neptune_service_problem_nodes{labels},reason=\"NoSamples\"}} 3.0");
        assert!(page.lines().any(|it| it == silent), "{page}");
    }

    #[test]
    fn silent_worker_on_one_node_is_a_problem_node() {
        let condition = json!({"type": "Running", "status": "True", "reason": "NoSamples"});
        let page = page(&json!({ "conditions": [condition] }));
        assert!(page.contains("reason=\"NoSamples\"} 1.0\n"), "{page}");
        assert!(!page.contains("neptune_service_nodes"), "{page}");
    }

    #[test]
    fn service_with_workers_of_its_own_has_its_totals() {
        let page = page(&json!({"metrics": [{"key": "inferenceNumber", "value": "100"}]}));
        assert!(page.contains("decision=\"easy\"} 100\n"), "{page}");
        for absent in ["upload_ratio", "threshold", "agreement_ratio", "gateways", "psi"] {
            assert!(!page.contains(&format!("neptune_service_{absent}")), "{page}");
        }
    }
}
