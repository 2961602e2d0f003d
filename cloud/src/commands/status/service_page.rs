//! The page of a `JointInferenceService`. Pure.

use kube::ResourceExt as _;
use neptune_api::{JisCondition, JisConditionType, JointInferenceService, ModelNodeState};
use neptune_cloud_kinds::reason::Reason;

use super::{
    build::{RelatedObjects, common_advice, event_lines, node_lines, time},
    cascade::Cascade,
    fleet::{NodeNumbers, RolloutLines},
    format::or_none,
    page::{Counted, Page, Report, Worker},
    worker_rows::{advice_on_cloud_service, current, rows},
};

/// The page of a service.
pub fn of_service(service: &JointInferenceService, related: &RelatedObjects) -> Page {
    let status = service.status.clone().unwrap_or_default();
    let condition = current(service);
    let workers = rows(service, related);
    let mut advice = common_advice(service, status.observed_generation, &workers, related);
    let problems = status.gateway.iter().flat_map(|gateway| &gateway.problems);
    let message =
        condition.filter(|condition| !is_well(condition)).and_then(|it| it.message.clone());
    // The message of a problem is that of its gateway.
    let is_of_gateway =
        |message: &String| problems.clone().any(|problem| message.ends_with(&problem.message));
    advice.extend(message.filter(|message| !is_of_gateway(message)));
    advice.extend(problems.map(|problem| format!("node {}: {}", problem.node, problem.message)));
    advice.extend(advice_on_cloud_service(service, related));
    advice.extend(model_advice(related, &workers));
    let metric = |key: &str| {
        let entry = status.metrics.iter().find(|metric| metric.key == key);
        or_none(entry.map(|metric| metric.value.as_str()))
    };
    let counted = (!status.metrics.is_empty()).then(|| Counted {
        inferences: metric("inferenceNumber"),
        hard_examples: metric("hardExampleNumber"),
        upload_ratio: metric("uploadCloudRatio"),
        fallbacks: status
            .metrics
            .iter()
            .find(|it| it.key == "fallbackNumber")
            .map(|it| it.value.clone()),
        reports: status.reports.iter().map(Report::from_counters).collect(),
    });
    Page {
        kind: "JointInferenceService",
        namespace: service.namespace().unwrap_or_default(),
        name: service.name_any(),
        state: state(condition),
        reason: or_none(condition.and_then(|last| last.reason.as_deref())),
        since: time(condition.and_then(|last| last.last_transition_time.as_ref())),
        message: or_none(condition.and_then(|last| last.message.as_deref())),
        written: time(condition.and_then(|last| last.last_heartbeat_time.as_ref())),
        nodes: node_lines(&workers, related),
        workers,
        node_counts: status.node_counts.as_ref().map(NodeNumbers::from_service),
        rollout: status.rollout.as_deref().map(RolloutLines::from_status),
        counted,
        cascade: Cascade::from_status(&status),
        events: event_lines(related),
        advice,
        ..Page::default()
    }
}

/// Whether a condition needs no next step.
fn is_well(condition: &JisCondition) -> bool {
    let reason = condition.reason.as_deref().unwrap_or_default();
    let is_progress = reason.parse().is_ok_and(Reason::is_progress);
    let is_good =
        matches!(condition.type_, JisConditionType::Running | JisConditionType::Completed);
    is_good && condition.status == "True" && is_progress
}

/// The type of the condition, and whether it is only what was known last.
fn state(condition: Option<&JisCondition>) -> String {
    let Some(JisCondition { type_, status, .. }) = condition else { return "Unknown".to_owned() };
    if status == "Unknown" { format!("Unknown, last {type_}") } else { type_.to_string() }
}

impl Report {
    fn from_counters(report: &neptune_api::AgentCounters) -> Self {
        Self {
            node: report.node.clone(),
            inferences: report.counters.inference_number,
            hard_examples: report.counters.hard_example_number,
            epoch: report.epoch,
            seq: report.seq,
        }
    }
}

fn model_advice(related: &RelatedObjects, workers: &[Worker]) -> Vec<String> {
    let used = related
        .models
        .iter()
        .filter(|model| workers.iter().any(|worker| worker.model == model.name_any()));
    let nodes = used.flat_map(|model| model.status.iter().flat_map(|status| &status.nodes));
    let bad = nodes.filter(|node| node.state == ModelNodeState::Failed);
    bad.filter_map(|node| node.message.clone()).collect()
}
