//! Decides which edge workers count no samples although they run, such as behind a frozen camera.
//! They are degraded.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use neptune_api::{EdgeWorker, JointInferenceService, JointInferenceServiceSpec};

use crate::{
    finding::Finding,
    fleet::SilentNodes,
    joint_inference_service::{
        spec::forms::has_gateway,
        status::observed::{EdgeObservation, ObservedWorker},
    },
    reason::Reason,
    rollout::policy::Policy,
};

/// The seconds without a sample after which an edge worker is degraded.
const LIMITS: std::ops::RangeInclusive<i32> = 60..=86_400;

/// Checks `silentAfterSeconds`. The CRD refuses the same.
pub fn check(edge: &EdgeWorker, findings: &mut Vec<Finding>) {
    if edge.silent_after_seconds.is_some_and(|seconds| !LIMITS.contains(&seconds)) {
        let message = "spec.edgeWorker.silentAfterSeconds must be 60 to 86400";
        findings.push(Finding::new(Reason::WorkerInvalid, message));
    }
}

/// How long an edge worker may count no samples; `None`: as long as it likes.
pub fn limit(edge: &EdgeWorker) -> Option<SignedDuration> {
    let seconds = edge.silent_after_seconds.filter(|seconds| LIMITS.contains(seconds))?;
    Some(SignedDuration::from_secs(seconds.into()))
}

/// What a user should know if a rollout does not wait for samples.
pub fn warning(spec: &JointInferenceServiceSpec) -> Option<String> {
    let limit = limit(&spec.edge_worker)?.as_secs();
    let ready = Policy::new(spec.rollout.as_deref()?, None).min_ready.as_secs();
    (ready < limit).then(|| {
        format!("spec.rollout.minReadySeconds ({ready}) is below spec.edgeWorker.silentAfterSeconds ({limit}): the rollout continues before a node may have NoSamples")
    })
}

/// The nodes on which the edge worker runs, so that it should count samples.
pub fn running(edges: &[EdgeObservation]) -> impl Iterator<Item = &str> {
    edges.iter().filter(|edge| edge.worker.is_active()).map(|edge| edge.node.as_str())
}

/// The edge workers of these nodes are degraded.
pub fn mark(service: &JointInferenceService, edges: &mut [EdgeObservation], silent: &SilentNodes) {
    let input = if has_gateway(service) { "its clients" } else { "its camera or other input" };
    for edge in edges {
        if let Some(since) = silent.since.get(&edge.node) {
            edge.worker = silent_worker(edge, (*since, silent.limit), input);
        }
    }
}

/// The worker without samples. What else is remarkable about it follows: it may be the cause.
fn silent_worker(
    edge: &EdgeObservation,
    (since, limit): (Timestamp, SignedDuration),
    input: &str,
) -> ObservedWorker {
    let (node, limit) = (&edge.node, limit.as_secs());
    let also = match &edge.worker {
        ObservedWorker::Updating(finding) | ObservedWorker::Degraded(finding) => {
            format!("; {}", finding.message)
        }
        _ => String::new(),
    };
    let message = format!(
        "edge worker on node {node}: no sample for {limit} s, since {since:.0}; check {input}{also}"
    );
    ObservedWorker::Degraded(Finding::new(Reason::NoSamples, message))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::JisConditionType;

    use super::*;
    use crate::{
        exceptions::{MAX_SHORT_MESSAGE_CHARS, shortened},
        joint_inference_service::{
            fixtures,
            status::fixtures::{at, brief, failed, fresh, next_status, offline, on, selected},
        },
    };

    fn service() -> JointInferenceService {
        let mut service = fixtures::service();
        service.spec.edge_worker.silent_after_seconds = Some(600);
        service
    }

    fn silent(nodes: &[&str]) -> SilentNodes {
        let since = nodes.iter().map(|node| ((*node).to_owned(), at(0))).collect();
        SilentNodes { limit: limit(&service().spec.edge_worker).unwrap(), since, due_at: None }
    }

    #[test]
    fn silent_worker_is_degraded_with_its_time_and_other_problem() {
        let degraded = ObservedWorker::Degraded(Finding::new(Reason::WorkerDegraded, "old model"));
        let mut edges =
            vec![on("shop-0001", ObservedWorker::Running), on("b", degraded), on("c", offline())];
        let before = edges.clone();
        mark(&service(), &mut edges, &silent(&["shop-0001", "b"]));
        let texts: Vec<_> = edges.iter().map(|edge| edge.worker.row_state()).collect();
        let first = "edge worker on node shop-0001: no sample for 600 s, since 1970-01-01T00:00:00Z; check its camera or other input";
        let (state, finding) = texts[0];
        let finding = finding.unwrap();
        assert_eq!(
            (state, finding.reason, &*finding.message),
            ("Running", Reason::NoSamples, first)
        );
        let shown = shortened(first, MAX_SHORT_MESSAGE_CHARS);
        assert!(shown.ends_with("check its…"), "{shown}");
        let second = texts[1].1.unwrap();
        assert!(
            second.message.ends_with("check its camera or other input; old model"),
            "{second:?}"
        );
        assert_eq!(edges[2], before[2]);
        assert_eq!(running(&before).collect::<Vec<_>>(), ["shop-0001", "b"]);
    }

    #[test]
    fn limit_is_none_or_within_its_bounds() {
        let limit_of = |seconds| {
            let edge = EdgeWorker { silent_after_seconds: seconds, ..EdgeWorker::default() };
            let mut findings = Vec::new();
            check(&edge, &mut findings);
            (limit(&edge).map(|limit| limit.as_secs()), findings.len())
        };
        assert_eq!(limit_of(None), (None, 0));
        assert_eq!(
            [limit_of(Some(60)), limit_of(Some(86_400))],
            [(Some(60), 0), (Some(86_400), 0)]
        );
        assert_eq!([limit_of(Some(59)), limit_of(Some(86_401))], [(None, 1), (None, 1)]);
    }

    #[test]
    fn rollout_that_does_not_wait_for_samples_is_a_warning() {
        let mut spec = service().spec;
        assert_eq!(warning(&spec), None, "without a rollout");
        spec.rollout = Some(Box::default());
        assert!(warning(&spec).unwrap().contains("minReadySeconds (30) is below"));
        spec.rollout.as_mut().unwrap().min_ready_seconds = Some(600);
        assert_eq!(warning(&spec), None);
    }

    #[test]
    fn silent_nodes_count_as_ready_and_are_rows_of_a_large_service() {
        let names: Vec<_> = (0..100).map(|number| format!("n{number:03}")).collect();
        let mut run = selected(&names);
        mark(&service(), &mut run.observed.edges, &silent(&["n007", "n050"]));
        let status = fresh(&run);
        let counts = status.node_counts.clone().unwrap();
        assert_eq!((counts.ready, counts.silent, &*counts.summary), (100, 2, "100/100"));
        assert_eq!(brief(&status), (JisConditionType::Running, "NoSamples".to_owned()));
        let message = status.conditions[0].message.as_deref().unwrap();
        assert!(
            message.starts_with(
                "100 of 100 edge workers are running; 2 without samples (n007: NoSamples)"
            ),
            "{message}"
        );
        let rows: Vec<_> = status.edge_workers.iter().map(|row| row.node.as_str()).collect();
        assert_eq!(rows, ["n007", "n050"]);
        run.observed.edges[1].worker = failed(Reason::CrashLoopBackOff);
        let status = next_status(&status, &run);
        assert_eq!(brief(&status).1, "SomeNodesNotReady");
        let message = status.conditions[0].message.as_deref().unwrap();
        assert!(
            message.ends_with(
                "1 failed (n001: CrashLoopBackOff), 2 without samples (n007: NoSamples)"
            ),
            "{message}"
        );
    }
}
