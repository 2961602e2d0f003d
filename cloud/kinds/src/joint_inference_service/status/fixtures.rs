//! Observations and statuses for the tests of this folder.
#![allow(clippy::unwrap_used)]

use k8s_openapi::jiff::Timestamp;
use neptune_api::{AgentCounters, JisConditionType, JointInferenceServiceStatus};
use neptune_wire::{AgentInstance, Counters};

use crate::{
    finding::Finding,
    fleet::{
        Counted, CounterReport,
        rows::{Rows, counters_in, totals_in},
    },
    joint_inference_service::{
        fixtures,
        status::observed::{EdgeObservation, ObservedWorker, ServiceObservation},
    },
    reason::Reason,
    steps::{StatusInputs, Steps as _},
};

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

pub fn waiting(reason: Reason) -> ObservedWorker {
    ObservedWorker::Waiting(Finding::new(reason, "w"))
}

pub fn offline() -> ObservedWorker {
    ObservedWorker::Offline(Finding::new(Reason::NodeOffline, "o"))
}

pub fn failed(reason: Reason) -> ObservedWorker {
    ObservedWorker::Failed(Finding::new(reason, "f"))
}

pub fn unknown() -> ObservedWorker {
    ObservedWorker::Unknown(Finding::new(Reason::AwaitingAgent, "u"))
}

pub fn unreported(node: &str, instance: &str, inference: u64, hard: u64) -> CounterReport {
    CounterReport {
        node: node.parse().unwrap(),
        instance: AgentInstance(instance.to_owned()),
        epoch: 1,
        seq: inference,
        counters: Counters { inference, hard, ..Counters::default() },
    }
}

pub fn on(node: &str, worker: ObservedWorker) -> EdgeObservation {
    EdgeObservation { node: node.to_owned(), worker, gateway: None }
}

/// The edge worker and the cloud worker.
pub fn inputs(
    [edge, cloud]: [ObservedWorker; 2],
    now: i64,
) -> StatusInputs<'static, ServiceObservation> {
    StatusInputs {
        generation: Some(1),
        findings: &[],
        observed: ServiceObservation {
            tier_names: Vec::new(),
            rollout: None,
            total: None,
            counted: Counted::default(),
            edges: vec![on("edge0", edge)],
            is_selected: false,
            cloud,
            rejected: Vec::new(),
            gateway_address: None,
            model: None,
            silence_due_at: None,
        },
        is_settled: true,
        now: at(now),
    }
}

/// The same inputs after these reports.
pub fn counting<'a>(
    unreported: &[CounterReport],
    mut inputs: StatusInputs<'a, ServiceObservation>,
) -> StatusInputs<'a, ServiceObservation> {
    let report = |report: &CounterReport| AgentCounters {
        node: report.node.to_string(),
        instance: report.instance.0.clone(),
        epoch: report.epoch,
        seq: report.seq,
        counters: totals_in(report.counters),
    };
    inputs.observed.counted.reports = unreported.iter().map(report).collect();
    inputs
}

/// The next status. The counters in the inputs are those that were reported since the previous one.
pub fn next_status(
    previous: &JointInferenceServiceStatus,
    inputs: &StatusInputs<ServiceObservation>,
) -> JointInferenceServiceStatus {
    let mut rows = Rows::default();
    rows.load(None, Some(previous));
    for report in &inputs.observed.counted.reports {
        let report = CounterReport {
            node: report.node.parse().unwrap(),
            instance: AgentInstance(report.instance.clone()),
            epoch: report.epoch,
            seq: report.seq,
            counters: counters_in(&report.counters),
        };
        rows.on_counters(&report, inputs.now);
    }
    let mut inputs = inputs.clone();
    let edges = inputs.observed.edges.iter();
    inputs.observed.counted = rows.counted(edges.map(|edge| edge.node.as_str()));
    fixtures::service().next_status(previous, &inputs)
}

pub fn fresh(inputs: &StatusInputs<ServiceObservation>) -> JointInferenceServiceStatus {
    next_status(&JointInferenceServiceStatus::default(), inputs)
}

pub fn brief(status: &JointInferenceServiceStatus) -> (JisConditionType, String) {
    let current = status.conditions.last().unwrap();
    (current.type_, current.reason.clone().unwrap())
}

pub fn metric(status: &JointInferenceServiceStatus) -> Vec<&str> {
    status.metrics.iter().map(|metric| metric.value.as_str()).collect()
}

/// The edge worker runs on these nodes, selected by labels.
pub fn selected(nodes: &[String]) -> StatusInputs<'static, ServiceObservation> {
    let mut run = inputs([ObservedWorker::Running, ObservedWorker::Running], 1);
    run.observed.edges = nodes.iter().map(|node| on(node, ObservedWorker::Running)).collect();
    run.observed.is_selected = true;
    run
}

pub fn brief_worker(observed: &ObservedWorker) -> (&'static str, String) {
    match observed {
        ObservedWorker::Running => ("running", String::new()),
        ObservedWorker::Updating(finding) => ("updating", finding.message.clone()),
        ObservedWorker::Degraded(finding) => ("degraded", finding.message.clone()),
        ObservedWorker::Waiting(finding) => ("waiting", finding.message.clone()),
        ObservedWorker::Offline(finding) => ("offline", finding.message.clone()),
        ObservedWorker::Completed(finding) => ("completed", finding.message.clone()),
        ObservedWorker::Failed(finding) => ("failed", finding.message.clone()),
        ObservedWorker::Unknown(finding) => ("unknown", finding.message.clone()),
    }
}
