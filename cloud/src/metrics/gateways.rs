//! Exports the status of each service with a gateway when the metrics are read, so that a deleted
//! service has no series. Nine series per service.

use std::{fmt, sync::Arc};

use neptune_api::{GatewayStatus, JointInferenceService, JointInferenceServiceStatus};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

/// The services of the cluster.
pub struct GatewayCollector(pub Box<dyn Fn() -> Vec<Arc<JointInferenceService>> + Send + Sync>);

impl fmt::Debug for GatewayCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GatewayCollector")
    }
}

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

/// A figure of a gateway as a gauge.
type Figure = fn(&GatewayStatus) -> Option<f64>;

const FIGURES: [(&str, &str, Figure); 4] = [
    (
        "neptune_gateway_upload_ratio",
        "Share of the last 1000 samples that the cloud answered",
        |gateway| number(gateway.upload_ratio.as_deref()),
    ),
    ("neptune_gateway_threshold", "Confidence below which a sample is hard", |gateway| {
        number(gateway.threshold.as_deref())
    }),
    (
        "neptune_gateway_agreement",
        "Estimated share of answers that are those of the cloud's model",
        |gateway| number(gateway.agreement.as_deref()),
    ),
    ("neptune_gateway_breaker_open", "1 while the cloud is not called", |gateway| {
        Some(f64::from(u8::from(is_breaker_open(gateway))))
    }),
];

impl Collector for GatewayCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let services = (self.0)();
        let reported: Vec<_> = services.iter().filter_map(|service| reported(service)).collect();
        for (name, help, figure) in FIGURES {
            let kind = ConstGauge::new(0.0).metric_type();
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, _, gateway) in &reported {
                if let Some(value) = figure(gateway) {
                    ConstGauge::new(value).encode(family.encode_family(labels)?)?;
                }
            }
        }
        let help = "Samples by how they were answered";
        let kind = ConstCounter::new(0_u64).metric_type();
        let mut family = encoder.encode_descriptor("neptune_gateway_samples", help, None, kind)?;
        for (labels, status, _) in &reported {
            for (decision, samples) in decisions(status) {
                let ByService { namespace, service } = labels.clone();
                let labels = ByDecision { namespace, service, decision };
                ConstCounter::new(samples).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// The labels and the status of a service with a gateway.
fn reported(
    service: &JointInferenceService,
) -> Option<(ByService, &JointInferenceServiceStatus, &GatewayStatus)> {
    let status = service.status.as_ref()?;
    let gateway = status.gateway.as_ref()?;
    let labels = ByService {
        namespace: service.metadata.namespace.clone().unwrap_or_default(),
        service: service.metadata.name.clone().unwrap_or_default(),
    };
    Some((labels, status, gateway))
}

/// The exact totals, of which each sample is in one.
fn decisions(status: &JointInferenceServiceStatus) -> [(&'static str, u64); 5] {
    let total = |key: &str| {
        let found = status.metrics.iter().find(|metric| metric.key == key);
        found.and_then(|metric| metric.value.parse().ok()).unwrap_or(0_u64)
    };
    let others = [
        ("hard", total("hardExampleNumber")),
        ("fallback", total("fallbackNumber")),
        ("over-budget", total("overBudgetNumber")),
        ("unjudged", total("unjudgedNumber")),
    ];
    let answered_otherwise = others.iter().fold(0, |sum: u64, (_, it)| sum.saturating_add(*it));
    let easy = total("inferenceNumber").saturating_sub(answered_otherwise);
    let [hard, fallback, over_budget, unjudged] = others;
    [("easy", easy), hard, fallback, over_budget, unjudged]
}

/// The first number of a text such as `0.962 (0.941-0.976)`.
fn number(text: Option<&str>) -> Option<f64> {
    text?.split(' ').next()?.parse().ok()
}

fn is_breaker_open(gateway: &GatewayStatus) -> bool {
    matches!(gateway.cloud.as_deref(), Some("LeftAlone" | "TokenRefused"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prometheus_client::{encoding::text, registry::Registry};
    use serde_json::json;

    use super::*;

    const SAMPLE: &str =
        include_str!("../../../common/api/tests/samples/jointinferenceservice.yaml");

    fn page(status: &serde_json::Value) -> String {
        let mut service: JointInferenceService = serde_saphyr::from_str(SAMPLE).unwrap();
        service.metadata.namespace = Some("default".to_owned());
        service.metadata.name = Some("assistant".to_owned());
        service.status = Some(serde_json::from_value(status.clone()).unwrap());
        let services = vec![Arc::new(service)];
        let mut registry = Registry::default();
        registry.register_collector(Box::new(GatewayCollector(Box::new(move || services.clone()))));
        let mut page = String::new();
        text::encode(&mut page, &registry).unwrap();
        page
    }

    #[test]
    fn service_with_a_gateway_has_nine_series() {
        let page = page(&json!({
            "gateway": {"threshold": "0.713", "agreement": "0.962 (0.941-0.976)",
                "uploadRatio": "0.200", "cloud": "LeftAlone"},
            "metrics": [{"key": "inferenceNumber", "value": "100"},
                {"key": "hardExampleNumber", "value": "20"}, {"key": "fallbackNumber", "value": "3"},
                {"key": "overBudgetNumber", "value": "2"}, {"key": "unjudgedNumber", "value": "5"}],
        }));
        let of = r#"{namespace="default",service="assistant""#;
        let samples = |decision: &str, count: u64| {
            format!("neptune_gateway_samples_total{of},decision=\"{decision}\"}} {count}")
        };
        for line in [
            format!("neptune_gateway_upload_ratio{of}}} 0.2"),
            format!("neptune_gateway_threshold{of}}} 0.713"),
            format!("neptune_gateway_agreement{of}}} 0.962"),
            format!("neptune_gateway_breaker_open{of}}} 1.0"),
            samples("easy", 70),
            samples("hard", 20),
            samples("fallback", 3),
            samples("over-budget", 2),
            samples("unjudged", 5),
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
        }
        assert_eq!(page.lines().filter(|line| !line.starts_with('#')).count(), 9, "{page}");
    }

    #[test]
    fn service_without_a_gateway_has_no_series() {
        let page = page(&json!({"metrics": [{"key": "inferenceNumber", "value": "100"}]}));
        assert!(page.lines().all(|line| line.starts_with('#')), "{page}");
    }
}
