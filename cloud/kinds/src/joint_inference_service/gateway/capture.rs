//! The samples that a gateway records: the settings for its configuration, and the directory of
//! their Dataset. A part of `validate`.

use neptune_api::{Capture, Dataset, JointInferenceService};
use neptune_gateway_config::{CaptureConfig, MIN_CAPTURE_BYTES};
use neptune_wire::{ArtifactAddress, NodeName, Resource};

use crate::{
    finding::Finding,
    joint_inference_service::{
        gateway::fields::read,
        spec::{forms::gateway_settings, goal::parse_share},
    },
    kubernetes::quantities,
    reason::Reason,
};

const FIELD: &str = "spec.gateway.capture.dataset";

/// What the gateway and the agent need to record samples.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedCapture {
    /// The section `capture` of the configuration, without the directory.
    pub config: CaptureConfig,
    /// The path of the directory on the node.
    pub directory: String,
}

/// The capture of a service on these nodes, if it has one. `dataset` is the Dataset that it names.
pub fn resolve_capture(
    service: &JointInferenceService,
    nodes: &[NodeName],
    dataset: Option<&Dataset>,
    findings: &mut Vec<Finding>,
) -> Option<ResolvedCapture> {
    let capture = gateway_settings(service).capture?;
    let config = config(&capture, findings);
    let Some(dataset) = dataset else {
        findings.push(Finding::missing_object(
            Reason::DatasetNotFound,
            Resource::Datasets,
            service.metadata.namespace.as_deref().unwrap_or_default(),
            &capture.dataset,
            FIELD,
        ));
        return None;
    };
    let (name, spec) = (&capture.dataset, &dataset.spec);
    if let Some(node) = nodes.iter().find(|node| node.as_str() != spec.node_name) {
        let message = format!(
            "{FIELD}: Dataset {name:?} is on node {:?} but the gateway is on node \"{node}\"; set both nodeName fields to the same node, or use a nodeSelector with placement One that matches it",
            spec.node_name
        );
        findings.push(Finding::new(Reason::DatasetElsewhere, message));
    }
    let mut unsuited = |why: String| {
        let message = format!("{FIELD}: Dataset {name:?} {why}");
        findings.push(Finding::new(Reason::DatasetUnsuited, message));
    };
    if spec.format.trim() != "jsonl" {
        unsuited(format!(
            "has the format {:?}, and captured samples are jsonl; set its spec.format to jsonl",
            spec.format
        ));
    }
    if let Ok(ArtifactAddress::Path(directory)) = spec.data_url.trim().parse() {
        return Some(ResolvedCapture { config, directory });
    }
    unsuited(
        "has no path of the node in its dataUrl, to which the gateway could write; set its spec.dataUrl to the path of a directory".to_owned(),
    );
    None
}

fn config(capture: &Capture, findings: &mut Vec<Finding>) -> CaptureConfig {
    let defaults = CaptureConfig::default();
    let bytes =
        |text: &String| quantities::parse(text, 1).filter(|bytes| *bytes >= MIN_CAPTURE_BYTES);
    let why = "must be a Kubernetes quantity of at least 1Mi, such as \"1Gi\"";
    let max_bytes = read("capture.maxBytes", capture.max_bytes.as_ref(), bytes, why, findings);
    let samples = |number: &i64| u64::try_from(*number).ok();
    let why = "must be 0 or more";
    let max_samples =
        read("capture.maxSamples", capture.max_samples.as_ref(), samples, why, findings);
    let why = "must be a decimal from 0 to 1";
    let chosen =
        read("capture.share", capture.share.as_ref(), |text| parse_share(text), why, findings);
    CaptureConfig {
        max_bytes: max_bytes.unwrap_or(defaults.max_bytes),
        max_samples: max_samples.unwrap_or(defaults.max_samples),
        share: chosen.unwrap_or(defaults.share),
        what: capture.what.unwrap_or_default(),
        labels: capture.labels.unwrap_or_default(),
        format: capture.format.unwrap_or_default(),
        pinned: capture.pinned.unwrap_or_default(),
        ..defaults
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use neptune_api::Gateway;
    use neptune_gateway_config::{Format, Labels, What};

    use super::*;
    use crate::joint_inference_service::fixtures;

    fn service(capture: Capture) -> JointInferenceService {
        let mut service = fixtures::assistant();
        let gateway = Gateway { capture: Some(Box::new(capture)), ..Gateway::default() };
        service.spec.gateway = Some(Box::new(gateway));
        service
    }

    fn dataset(change: impl Fn(&mut Dataset)) -> Dataset {
        let mut dataset = Arc::unwrap_or_clone(fixtures::captured_dataset("hard"));
        change(&mut dataset);
        dataset
    }

    fn hard() -> Capture {
        Capture { dataset: "hard".to_owned(), ..Capture::default() }
    }

    fn resolved(
        capture: Capture,
        dataset: Option<&Dataset>,
    ) -> (Option<ResolvedCapture>, Vec<(Reason, String)>) {
        let mut findings = Vec::new();
        let nodes = ["edge0".parse().unwrap()];
        let result = resolve_capture(&service(capture), &nodes, dataset, &mut findings);
        (result, findings.into_iter().map(|it| (it.reason, it.message)).collect())
    }

    #[test]
    fn settings_are_those_of_the_gateway() {
        let (target, findings) = resolved(hard(), Some(&dataset(|_| {})));
        let target = target.unwrap();
        assert_eq!((findings.len(), &*target.directory), (0, "/code/data/hard"));
        assert_eq!(target.config, CaptureConfig::default());
        let capture = Capture {
            max_bytes: Some("64Mi".to_owned()),
            max_samples: Some(1000),
            share: Some("0.5".to_owned()),
            what: Some(What::All),
            labels: Some(Labels::None),
            format: Some(Format::JsonLines),
            pinned: Some(true),
            ..hard()
        };
        let (target, findings) = resolved(capture, Some(&dataset(|_| {})));
        assert_eq!(findings.len(), 0);
        let expected = CaptureConfig {
            max_bytes: 64 << 20,
            max_samples: 1000,
            share: 0.5,
            what: What::All,
            labels: Labels::None,
            pinned: true,
            ..CaptureConfig::default()
        };
        assert_eq!(target.unwrap().config, expected);
    }

    #[test]
    fn dataset_that_cannot_take_samples_is_a_finding() {
        let other = |change: fn(&mut Dataset)| Some(dataset(change));
        for (dataset, reason, message) in [
            (None, Reason::DatasetNotFound, "spec.gateway.capture.dataset"),
            (
                other(|dataset| dataset.spec.node_name = "edge9".to_owned()),
                Reason::DatasetElsewhere,
                "Dataset \"hard\" is on node \"edge9\" but the gateway is on node \"edge0\"; set",
            ),
            (
                other(|dataset| dataset.spec.format = "csv".to_owned()),
                Reason::DatasetUnsuited,
                "has the format \"csv\", and captured samples are jsonl; set its spec.format to",
            ),
            (
                other(|dataset| dataset.spec.data_url = "https://a/b.jsonl".to_owned()),
                Reason::DatasetUnsuited,
                "has no path of the node in its dataUrl",
            ),
        ] {
            let (_, findings) = resolved(hard(), dataset.as_ref());
            let [(actual, text)] = &findings[..] else { unreachable!("{findings:?}") };
            assert_eq!(*actual, reason);
            assert!(text.contains(message), "{text}");
        }
    }

    #[test]
    fn invalid_settings_are_findings_with_their_field() {
        for (capture, message) in [
            (
                Capture { max_bytes: Some("10Ki".to_owned()), ..hard() },
                "spec.gateway.capture.maxBytes \"10Ki\" must be a Kubernetes quantity of at least",
            ),
            (
                Capture { max_samples: Some(-1), ..hard() },
                "spec.gateway.capture.maxSamples -1 must be 0 or more",
            ),
            (
                Capture { share: Some("2".to_owned()), ..hard() },
                "spec.gateway.capture.share \"2\" must be a decimal from 0 to 1",
            ),
        ] {
            let (_, findings) = resolved(capture, Some(&dataset(|_| {})));
            let [(Reason::GatewayInvalid, text)] = &findings[..] else {
                unreachable!("{findings:?}")
            };
            assert!(text.contains(message), "{text}");
        }
    }
}
