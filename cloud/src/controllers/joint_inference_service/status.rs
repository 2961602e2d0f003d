//! Computes the next status of a service from its previous status, findings, observation and
//! counters. Pure.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use neptune_api::{
    AgentCounters, CounterTotals, EdgeWorkerStatus, JisCondition, JisConditionType,
    JointInferenceServiceStatus, KeyValue, TotalUploadStatus,
};
use neptune_wire::Counters;

use crate::{
    controllers::{
        joint_inference_service::{
            chain::tier_statuses,
            gateway_status::{gateway_metrics, gateway_of_node, next_gateway, without_history},
            observed::{EdgeObservation, ObservedWorker, ServiceObservation},
            total_upload::Held,
        },
        runtime::StatusInputs,
    },
    finding::Finding,
    fleet::CounterReport,
    kubernetes::node_selector,
    reason::Reason,
};

/// Agents that a status lists although their node has a newer one. Of more, the oldest is folded.
const MAX_REPLACED: usize = 16;

/// Nodes that a status lists. Counters of a node that is no longer listed are folded, and its later
/// reports do not count. All nodes that a selector places the edge worker on are listed.
const MAX_NODES: usize = node_selector::MAX_NODES;

/// Maximum length of a message in a row, in characters.
const MAX_MESSAGE_CHARS: usize = 256;

/// The next status. Totals never decrease: new counts are added to those of the previous status.
#[must_use]
pub fn next_status(
    previous: &JointInferenceServiceStatus,
    inputs: &StatusInputs<ServiceObservation>,
) -> JointInferenceServiceStatus {
    let nodes = nodes(previous, &inputs.observed);
    let (reports, folded, totals) = add_counts(previous, &nodes, inputs.unreported);
    let awaits_address = awaits_address(previous, inputs);
    let condition = next_condition(previous, inputs);
    let keeps_counts = has_unknown(inputs) && !previous.conditions.is_empty();
    let (active, failed) = if awaits_address || keeps_counts || condition.is_last_result() {
        (previous.active, previous.failed)
    } else {
        counts(previous, &inputs.observed)
    };
    let conditions = if awaits_address || awaits_workers(previous, inputs) {
        previous.conditions.clone()
    } else {
        conditions(&previous.conditions, condition, inputs.now)
    };
    let gateway = next_gateway(previous, &inputs.observed, &reports, inputs.now);
    let mut metrics = metrics(totals);
    metrics.extend(gateway_metrics(totals, gateway.as_deref()));
    let is_counted = metrics == previous.metrics;
    let metrics_time = previous.metrics_time.clone().filter(|_| is_counted);
    JointInferenceServiceStatus {
        conditions,
        start_time: previous.start_time.clone().or(Some(Time(inputs.now))),
        active,
        failed,
        metrics,
        metrics_time: metrics_time.or(Some(Time(inputs.now))),
        observed_generation: if awaits_address {
            previous.observed_generation
        } else {
            inputs.generation
        },
        reports,
        folded,
        nodes,
        edge_workers: edge_workers(previous, inputs),
        total_upload: match (inputs.observed.total, inputs.findings) {
            (None, [_, ..]) => previous.total_upload.clone(),
            (held, _) => held.map(total_upload).map(Box::new),
        },
        tiers: tier_statuses(&inputs.observed.tier_names, &totals),
        gateway,
        model: match (&inputs.observed.model, inputs.findings) {
            (None, [_, ..]) => previous.model.clone(),
            (model, _) => model.clone(),
        },
        rejected: inputs.observed.rejected.clone(),
    }
}

/// The numbers of workers that run and that failed. A worker on an offline node counts as
/// running if it ran before.
fn counts(
    previous: &JointInferenceServiceStatus,
    observed: &ServiceObservation,
) -> (Option<i32>, Option<i32>) {
    let has_run = has_run(&previous.conditions);
    let (mut active, mut failed) = (0, 0);
    for worker in observed.workers() {
        let is_offline = matches!(worker, ObservedWorker::Offline(_));
        active += i32::from(is_active(worker) || is_offline && has_run);
        failed += i32::from(matches!(worker, ObservedWorker::Failed(_)));
    }
    (Some(active), Some(failed))
}

fn total_upload(held: Held) -> TotalUploadStatus {
    let Held { total, ratio, since } = held;
    TotalUploadStatus {
        goal: total.to_string(),
        upload_ratio: ratio.to_string(),
        since: Time(Timestamp::from_second(since.as_second()).unwrap_or(since)),
    }
}

/// Whether two statuses are equal except for heartbeat times, message numbers and the history of a
/// gateway, which alone are not written.
pub fn is_same_status(a: &JointInferenceServiceStatus, b: &JointInferenceServiceStatus) -> bool {
    let plain = |status: &JointInferenceServiceStatus| {
        let mut status = status.clone();
        for condition in &mut status.conditions {
            condition.last_heartbeat_time = None;
        }
        for report in &mut status.reports {
            (report.epoch, report.seq) = (0, 0);
        }
        without_history(&mut status);
        status
    };
    plain(a) == plain(b)
}

fn has_unknown(inputs: &StatusInputs<ServiceObservation>) -> bool {
    inputs.observed.workers().any(|worker| matches!(worker, ObservedWorker::Unknown(_)))
}

/// Whether the conditions stay: the controller started recently and the agents have not reported
/// yet.
fn awaits_workers(
    previous: &JointInferenceServiceStatus,
    inputs: &StatusInputs<ServiceObservation>,
) -> bool {
    inputs.findings.is_empty()
        && has_unknown(inputs)
        && was_about_workers(previous)
        && previous.observed_generation == inputs.generation
}

/// Whether the state, as opposed to the counters, stays because an agent's address is all that is
/// missing to plan the spec, and the agent may not have had the time to report it.
fn awaits_address(
    previous: &JointInferenceServiceStatus,
    inputs: &StatusInputs<ServiceObservation>,
) -> bool {
    let is_address = |finding: &Finding| finding.reason == Reason::CloudAddressUnknown;
    !inputs.is_settled
        && !inputs.findings.is_empty()
        && inputs.findings.iter().all(is_address)
        && was_about_workers(previous)
}

/// Whether the current condition is about the workers, and not about the spec.
fn was_about_workers(previous: &JointInferenceServiceStatus) -> bool {
    let reason = previous.conditions.last().and_then(|current| current.reason.as_deref());
    let reason = reason.and_then(|reason| reason.parse().ok());
    reason.is_some_and(|reason: Reason| !reason.is_obstacle())
}

/// The state of the workers when they were observed last. A service that waits was running if it has
/// ever run. `None` if it was never started.
fn last_state(conditions: &[JisCondition]) -> Option<JisConditionType> {
    let current = conditions.last()?;
    let reason: Option<Reason> = current.reason.as_deref().and_then(|it| it.parse().ok());
    let is_of_workers = reason.is_some_and(|reason| !reason.is_obstacle());
    match current.type_ {
        JisConditionType::Completed | JisConditionType::Failed if is_of_workers => {
            Some(current.type_)
        }
        _ => has_run(conditions).then_some(JisConditionType::Running),
    }
}

fn has_run(conditions: &[JisCondition]) -> bool {
    conditions.iter().any(|condition| condition.type_ == JisConditionType::Running)
}

/// The next current condition.
#[derive(Debug)]
struct NextCondition {
    type_: JisConditionType,
    /// Whether this is the present state, and not the last known one.
    is_known: bool,
    reason: Reason,
    message: String,
}

impl NextCondition {
    fn new(type_: JisConditionType, finding: Finding) -> Self {
        Self { type_, is_known: true, reason: finding.reason, message: finding.message }
    }

    /// Whether it repeats how the workers ended.
    fn is_last_result(&self) -> bool {
        !self.is_known && self.type_ != JisConditionType::Running
    }
}

fn next_condition(
    previous: &JointInferenceServiceStatus,
    inputs: &StatusInputs<ServiceObservation>,
) -> NextCondition {
    match Finding::join(inputs.findings) {
        Some(finding) => NextCondition::new(finding.reason.condition(), finding),
        None => of_workers(&inputs.observed, last_state(&previous.conditions)),
    }
}

/// The condition of the worst worker: failed, then offline, then waiting, then updating or degraded.
/// A service whose workers are none of these is completed when its edge workers are: the cloud
/// worker answers only these. While a node is offline, the last state of the workers stays.
fn of_workers(observed: &ServiceObservation, last: Option<JisConditionType>) -> NextCondition {
    let find = |pick: fn(&ObservedWorker) -> Option<&Finding>| observed.workers().find_map(pick);
    let failed = find(|worker| match worker {
        ObservedWorker::Failed(finding) => Some(finding),
        _ => None,
    });
    let offline = find(|worker| match worker {
        ObservedWorker::Offline(finding) => Some(finding),
        _ => None,
    });
    let waiting = find(|worker| match worker {
        ObservedWorker::Waiting(finding) | ObservedWorker::Unknown(finding) => Some(finding),
        _ => None,
    });
    let completed = |worker: &ObservedWorker| match worker {
        ObservedWorker::Completed(finding) => Some(finding.clone()),
        _ => None,
    };
    let edges = || observed.edges.iter().map(|edge| &edge.worker);
    let all_completed = edges().map(completed).collect::<Option<Vec<_>>>();
    let edge_completed = all_completed.and_then(|all| all.into_iter().next());
    let updating = find(|worker| match worker {
        ObservedWorker::Updating(finding) | ObservedWorker::Degraded(finding) => Some(finding),
        _ => None,
    });
    let running = edges().filter(|worker| is_active(worker)).count();
    let total = observed.edges.len();
    let with_count = |finding: &Finding| match total {
        0 | 1 => finding.clone(),
        _ => Finding::new(
            finding.reason,
            format!("{running} of {total} edge workers are running; {}", finding.message),
        ),
    };
    if let Some(finding) = failed {
        NextCondition::new(JisConditionType::Failed, with_count(finding))
    } else if let (Some(finding), None, Some(last)) = (offline, waiting, last) {
        NextCondition { is_known: false, ..NextCondition::new(last, with_count(finding)) }
    } else if let Some(finding) = offline.or(waiting) {
        NextCondition::new(JisConditionType::Pending, with_count(finding))
    } else if let Some(finding) = edge_completed {
        NextCondition::new(JisConditionType::Completed, with_count(&finding))
    } else if let Some(finding) = completed(&observed.cloud) {
        // Nothing answers the hard examples of the edge worker.
        NextCondition::new(JisConditionType::Pending, finding)
    } else if let Some(finding) = updating {
        NextCondition::new(JisConditionType::Running, with_count(finding))
    } else {
        let message = match total {
            0 | 1 => "edge worker and cloud worker are running".to_owned(),
            _ => format!("{running} of {total} edge workers and the cloud worker are running"),
        };
        NextCondition::new(JisConditionType::Running, Finding::new(Reason::WorkersRunning, message))
    }
}

fn is_active(worker: &ObservedWorker) -> bool {
    use ObservedWorker::{Degraded, Running, Updating};
    matches!(worker, Running | Updating(_) | Degraded(_))
}

/// The rows of the nodes that labels select.
fn edge_workers(
    previous: &JointInferenceServiceStatus,
    inputs: &StatusInputs<ServiceObservation>,
) -> Vec<EdgeWorkerStatus> {
    let is_known_spec = previous.observed_generation == inputs.generation;
    let row = |edge: &EdgeObservation| {
        let before = previous.edge_workers.iter().find(|row| row.node == edge.node);
        if let (ObservedWorker::Unknown(_), Some(before), true) =
            (&edge.worker, before, is_known_spec)
        {
            return before.clone();
        }
        let (state, finding) = match &edge.worker {
            ObservedWorker::Running => ("Running", None),
            ObservedWorker::Updating(finding) | ObservedWorker::Degraded(finding) => {
                ("Running", Some(finding))
            }
            ObservedWorker::Waiting(finding) => ("Pending", Some(finding)),
            ObservedWorker::Completed(finding) => ("Completed", Some(finding)),
            ObservedWorker::Failed(finding) => ("Failed", Some(finding)),
            ObservedWorker::Offline(finding) | ObservedWorker::Unknown(finding) => {
                ("Unknown", Some(finding))
            }
        };
        EdgeWorkerStatus {
            node: edge.node.clone(),
            state: state.to_owned(),
            reason: finding.map(|finding| finding.reason.to_string()),
            message: finding.map(|it| it.message.chars().take(MAX_MESSAGE_CHARS).collect()),
            gateway: edge.gateway.as_deref().map(gateway_of_node).map(Box::new),
        }
    };
    let edges = inputs.observed.edges.iter().filter(|_| inputs.observed.is_selected);
    edges.map(row).collect()
}

/// One condition per type, the current one last.
fn conditions(previous: &[JisCondition], next: NextCondition, now: Timestamp) -> Vec<JisCondition> {
    let now = Some(Time(now));
    let mut conditions = previous.to_vec();
    let known = conditions.iter().position(|condition| condition.type_ == next.type_);
    let mut current = match known {
        Some(at) => conditions.remove(at),
        None => JisCondition {
            type_: next.type_,
            status: String::new(),
            last_heartbeat_time: None,
            last_transition_time: None,
            reason: None,
            message: None,
        },
    };
    for past in conditions.iter_mut().filter(|past| past.status != "False") {
        "False".clone_into(&mut past.status);
        past.last_transition_time.clone_from(&now);
    }
    let status = if next.is_known { "True" } else { "Unknown" };
    if current.status != status {
        status.clone_into(&mut current.status);
        current.last_transition_time.clone_from(&now);
    }
    current.last_heartbeat_time = now;
    current.reason = Some(next.reason.to_string());
    current.message = Some(next.message);
    conditions.push(current);
    conditions
}

/// Adds new counts to the totals: the sum, over the agents, of the highest numbers that each agent
/// reported. Returns counts per agent, counts of earlier agents, and totals.
fn add_counts(
    previous: &JointInferenceServiceStatus,
    nodes: &[String],
    unreported: &[CounterReport],
) -> (Vec<AgentCounters>, Option<CounterTotals>, Counters) {
    let mut reports = previous.reports.clone();
    // Earlier counters of a node that had to leave the list are folded: it would count twice.
    let is_dropped =
        |node: &str| nodes.len() >= MAX_NODES && !nodes.iter().any(|listed| listed == node);
    let unreported = unreported.iter().filter(|report| !is_dropped(report.node.as_str()));
    for CounterReport { node, instance, epoch, seq, counters } in unreported {
        let is_same =
            |report: &AgentCounters| report.node == node.as_str() && report.instance == instance.0;
        let position = reports.iter().position(is_same).unwrap_or_else(|| {
            let (node, instance) = (node.to_string(), instance.0.clone());
            reports.push(AgentCounters { node, instance, ..AgentCounters::default() });
            reports.len() - 1
        });
        let report = &mut reports[position];
        (report.epoch, report.seq) = (report.epoch, report.seq).max((*epoch, *seq));
        let highest = counters_of(report).max(*counters);
        report.inference_number = highest.inference;
        report.hard_example_number = highest.hard;
        report.fallback_number = highest.fallback;
        report.hard_number = highest.decided_hard;
        report.over_budget_number = highest.over_budget;
        report.unjudged_number = highest.unjudged;
        report.shadow_number = highest.shadow;
        report.deadline_number = highest.deadline;
        report.tier_numbers = highest.tiers.counts().to_vec();
    }
    let mut folded = previous.folded.as_ref().map_or_else(Counters::default, |folded| Counters {
        inference: folded.inference_number,
        hard: folded.hard_example_number,
        fallback: folded.fallback_number,
        decided_hard: folded.hard_number,
        over_budget: folded.over_budget_number,
        unjudged: folded.unjudged_number,
        shadow: folded.shadow_number,
        deadline: folded.deadline_number,
        tiers: folded.tier_numbers.iter().copied().collect(),
    });
    while let Some(position) = position_to_fold(&reports, is_dropped) {
        folded = folded.plus(counters_of(&reports.remove(position)));
    }
    let totals = reports.iter().fold(folded, |sum, report| sum.plus(counters_of(report)));
    let folded = (!folded.are_zero()).then_some(CounterTotals {
        inference_number: folded.inference,
        hard_example_number: folded.hard,
        fallback_number: folded.fallback,
        hard_number: folded.decided_hard,
        over_budget_number: folded.over_budget,
        unjudged_number: folded.unjudged,
        shadow_number: folded.shadow,
        deadline_number: folded.deadline,
        tier_numbers: folded.tiers.counts().to_vec(),
    });
    (reports, folded, totals)
}

fn counters_of(report: &AgentCounters) -> Counters {
    Counters {
        inference: report.inference_number,
        hard: report.hard_example_number,
        fallback: report.fallback_number,
        decided_hard: report.hard_number,
        over_budget: report.over_budget_number,
        unjudged: report.unjudged_number,
        shadow: report.shadow_number,
        deadline: report.deadline_number,
        tiers: report.tier_numbers.iter().copied().collect(),
    }
}

/// The agent whose counters are folded next: of a node that is no longer listed, or, of too many,
/// one whose node has a newer one. Others are kept: the service may return to the node, which then
/// continues its totals.
fn position_to_fold(reports: &[AgentCounters], is_dropped: impl Fn(&str) -> bool) -> Option<usize> {
    let has_newer = |position: usize| {
        let node = &reports[position].node;
        reports[position + 1..].iter().any(|newer| newer.node == *node)
    };
    let dropped = reports.iter().position(|report| is_dropped(&report.node));
    let replaced: Vec<usize> = (0..reports.len()).filter(|at| has_newer(*at)).collect();
    dropped.or_else(|| replaced.first().copied().filter(|_| replaced.len() >= MAX_REPLACED))
}

/// The nodes that have or had the edge worker, new ones last. Of too many, the oldest without the
/// worker leave.
fn nodes(previous: &JointInferenceServiceStatus, observed: &ServiceObservation) -> Vec<String> {
    let is_current = |node: &str| observed.edges.iter().any(|edge| edge.node == node);
    let mut nodes = previous.nodes.clone();
    let reported = previous.reports.iter().map(|report| &report.node);
    for node in reported.chain(observed.edges.iter().map(|edge| &edge.node)) {
        if !nodes.contains(node) {
            nodes.push(node.clone());
        }
    }
    while nodes.len() > MAX_NODES {
        let oldest = nodes.iter().position(|node| !is_current(node)).unwrap_or_default();
        nodes.remove(oldest);
    }
    nodes
}

fn metrics(totals: Counters) -> Vec<KeyValue> {
    // At most four decimals, without trailing zeros.
    let ratio = format!("{:.4}", totals.upload_cloud_ratio());
    let ratio = ratio.trim_end_matches('0').trim_end_matches('.');
    let mut metrics = vec![
        KeyValue::new("inferenceNumber", totals.inference.to_string()),
        KeyValue::new("hardExampleNumber", totals.hard.to_string()),
        KeyValue::new("uploadCloudRatio", ratio),
    ];
    if totals.fallback > 0 {
        metrics.push(KeyValue::new("fallbackNumber", totals.fallback.to_string()));
    }
    metrics
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::{AgentInstance, Figure, GatewayReport};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn waiting(reason: Reason) -> ObservedWorker {
        ObservedWorker::Waiting(Finding::new(reason, "w"))
    }

    fn offline() -> ObservedWorker {
        ObservedWorker::Offline(Finding::new(Reason::NodeOffline, "o"))
    }

    fn failed(reason: Reason) -> ObservedWorker {
        ObservedWorker::Failed(Finding::new(reason, "f"))
    }

    fn unknown() -> ObservedWorker {
        ObservedWorker::Unknown(Finding::new(Reason::AwaitingAgent, "u"))
    }

    fn unreported(node: &str, instance: &str, inference: u64, hard: u64) -> CounterReport {
        CounterReport {
            node: node.parse().unwrap(),
            instance: AgentInstance(instance.to_owned()),
            epoch: 1,
            seq: inference,
            counters: Counters { inference, hard, ..Counters::default() },
        }
    }

    fn on(node: &str, worker: ObservedWorker) -> EdgeObservation {
        EdgeObservation { node: node.to_owned(), worker, gateway: None }
    }

    /// The edge worker and the cloud worker.
    fn inputs(
        [edge, cloud]: [ObservedWorker; 2],
        now: i64,
    ) -> StatusInputs<'static, ServiceObservation> {
        StatusInputs {
            generation: Some(1),
            findings: &[],
            observed: ServiceObservation {
                tier_names: Vec::new(),
                total: None,
                edges: vec![on("edge0", edge)],
                is_selected: false,
                cloud,
                rejected: Vec::new(),
                gateway_address: None,
                model: None,
            },
            unreported: &[],
            is_settled: true,
            now: at(now),
        }
    }

    fn fresh(inputs: &StatusInputs<ServiceObservation>) -> JointInferenceServiceStatus {
        next_status(&JointInferenceServiceStatus::default(), inputs)
    }

    fn brief(status: &JointInferenceServiceStatus) -> (JisConditionType, String) {
        let current = status.conditions.last().unwrap();
        (current.type_, current.reason.clone().unwrap())
    }

    fn metric(status: &JointInferenceServiceStatus) -> Vec<&str> {
        status.metrics.iter().map(|metric| metric.value.as_str()).collect()
    }

    #[test]
    fn figures_of_a_gateway_are_written_and_its_history_alone_is_not() {
        let at_threshold = |threshold, now| {
            let mut inputs = inputs([ObservedWorker::Running, ObservedWorker::Running], now);
            let report = GatewayReport {
                threshold: Figure::new(threshold),
                upload_ratio: Figure::new(0.2),
                ..GatewayReport::default()
            };
            inputs.observed.edges[0].gateway = Some(Box::new(report));
            inputs
        };
        let first = fresh(&at_threshold(0.7, 0));
        let idle = next_status(&first, &at_threshold(0.7, 3600));
        assert_eq!(idle.gateway.as_ref().unwrap().history.len(), 2);
        assert!(is_same_status(&first, &idle), "an idle service writes nothing");
        let moved = next_status(&first, &at_threshold(0.71, 3600));
        assert!(!is_same_status(&first, &moved));
        assert_eq!(brief(&first), brief(&moved));
    }

    #[test]
    fn numbers_of_gateways_are_summed_over_nodes_exactly() {
        let counters = |node: &str, decided_hard| {
            let mut report = unreported(node, "a", 100, 5);
            report.counters = Counters {
                decided_hard,
                over_budget: decided_hard / 2,
                unjudged: 7,
                shadow: 3,
                ..report.counters
            };
            report
        };
        let unreported = [counters("edge0", 10), counters("edge1", 20), counters("edge0", 12)];
        let mut inputs = inputs([ObservedWorker::Running, ObservedWorker::Running], 0);
        inputs.observed.edges.push(on("edge1", ObservedWorker::Running));
        let inputs = StatusInputs { unreported: &unreported, ..inputs };
        let status = fresh(&inputs);
        let metric = |key: &str| {
            status.metrics.iter().find(|metric| metric.key == key).map(|it| it.value.as_str())
        };
        assert_eq!(metric("hardNumber"), Some("32"));
        assert_eq!(metric("overBudgetNumber"), Some("16"));
        assert_eq!((metric("unjudgedNumber"), metric("shadowNumber")), (Some("14"), Some("6")));
        assert_eq!(metric("threshold"), None, "no gateway reports now");
    }

    #[test]
    fn worst_of_the_two_workers_is_the_state_of_the_service() {
        use JisConditionType::{Completed, Failed, Pending, Running};
        let completed =
            || ObservedWorker::Completed(Finding::new(Reason::Completed, "exited with 0"));
        for (workers, type_, reason, active, needs_change) in [
            (
                [ObservedWorker::Running, ObservedWorker::Running],
                Running,
                Reason::WorkersRunning,
                2,
                0,
            ),
            ([ObservedWorker::Running, waiting(Reason::Starting)], Pending, Reason::Starting, 1, 0),
            ([waiting(Reason::Starting), offline()], Pending, Reason::NodeOffline, 0, 0),
            ([offline(), failed(Reason::ImageMissing)], Failed, Reason::ImageMissing, 0, 1),
            (
                [failed(Reason::Starting), failed(Reason::OutOfMemory)],
                Failed,
                Reason::Starting,
                0,
                2,
            ),
            ([completed(), ObservedWorker::Running], Completed, Reason::Completed, 1, 0),
            ([completed(), completed()], Completed, Reason::Completed, 0, 0),
            ([ObservedWorker::Running, completed()], Pending, Reason::Completed, 1, 0),
            ([completed(), failed(Reason::OutOfMemory)], Failed, Reason::OutOfMemory, 0, 1),
            ([unknown(), ObservedWorker::Running], Pending, Reason::AwaitingAgent, 1, 0),
        ] {
            let status = fresh(&inputs(workers.clone(), 1));
            assert_eq!(brief(&status), (type_, reason.to_string()), "{workers:?}");
            assert_eq!(
                (status.active, status.failed),
                (Some(active), Some(needs_change)),
                "{workers:?}"
            );
        }
    }

    /// The edge worker and the cloud worker, and the status after that.
    type StepOfWorkers = ([ObservedWorker; 2], &'static str);

    #[test]
    fn offline_node_keeps_the_last_state_and_the_counts() {
        let run = || ObservedWorker::Running;
        let completed = || ObservedWorker::Completed(Finding::new(Reason::Completed, "done"));
        let crashed = || failed(Reason::CrashLoopBackOff);
        let starting = || waiting(Reason::Starting);
        let cases: [&[StepOfWorkers]; 6] = [
            // Never started.
            &[([offline(), run()], "Pending True NodeOffline, 1 active, 0 failed")],
            &[
                ([run(), run()], "Running True WorkersRunning, 2 active, 0 failed"),
                ([offline(), run()], "Running Unknown NodeOffline, 2 active, 0 failed"),
                ([offline(), starting()], "Pending True NodeOffline, 1 active, 0 failed"),
                ([offline(), run()], "Running Unknown NodeOffline, 2 active, 0 failed"),
                ([offline(), crashed()], "Failed True CrashLoopBackOff, 1 active, 1 failed"),
                ([run(), run()], "Running True WorkersRunning, 2 active, 0 failed"),
            ],
            &[
                ([run(), run()], "Running True WorkersRunning, 2 active, 0 failed"),
                ([starting(), run()], "Pending True Starting, 1 active, 0 failed"),
                ([offline(), run()], "Running Unknown NodeOffline, 2 active, 0 failed"),
            ],
            &[
                ([completed(), run()], "Completed True Completed, 1 active, 0 failed"),
                ([offline(), run()], "Completed Unknown NodeOffline, 1 active, 0 failed"),
            ],
            &[
                ([crashed(), run()], "Failed True CrashLoopBackOff, 1 active, 1 failed"),
                ([offline(), run()], "Failed Unknown NodeOffline, 1 active, 1 failed"),
            ],
            &[
                ([run(), run()], "Running True WorkersRunning, 2 active, 0 failed"),
                ([offline(), offline()], "Running Unknown NodeOffline, 2 active, 0 failed"),
            ],
        ];
        for steps in cases {
            let mut status = JointInferenceServiceStatus::default();
            for (second, (workers, expected)) in (1..).zip(steps) {
                // A second time, nothing changes.
                for _ in 0..2 {
                    status = next_status(&status, &inputs(workers.clone(), second));
                    let current = status.conditions.last().unwrap();
                    let (type_, reason) = brief(&status);
                    let (active, failed) = (status.active.unwrap(), status.failed.unwrap());
                    let brief = format!(
                        "{type_} {} {reason}, {active} active, {failed} failed",
                        current.status
                    );
                    assert_eq!(brief, *expected, "{workers:?}");
                }
            }
        }
    }

    #[test]
    fn changed_spec_of_an_invalid_service_is_not_its_last_state() {
        let invalid = [Finding::new(Reason::ScriptDirInvalid, "bad directory")];
        let edge = || [offline(), ObservedWorker::Running];
        let wrong = StatusInputs { findings: &invalid, ..inputs(edge(), 1) };
        let never_started = next_status(&fresh(&wrong), &inputs(edge(), 2));
        assert_eq!(brief(&never_started).0, JisConditionType::Pending);
        let run = fresh(&inputs([ObservedWorker::Running, ObservedWorker::Running], 1));
        let healed = next_status(&next_status(&run, &wrong), &inputs(edge(), 2));
        assert_eq!(brief(&healed), (JisConditionType::Running, "NodeOffline".to_owned()));
        assert_eq!(healed.conditions.last().unwrap().status, "Unknown");
    }

    #[test]
    fn unknown_address_after_a_restart_leaves_the_state_and_counts_on() {
        let running = [ObservedWorker::Running, ObservedWorker::Running];
        let before = fresh(&inputs(running, 1));
        let unknown_address = [Finding::new(Reason::CloudAddressUnknown, "no address")];
        let counters = [unreported("edge0", "a", 9, 4)];
        let restarted = StatusInputs {
            generation: Some(2),
            findings: &unknown_address,
            unreported: &counters,
            is_settled: false,
            ..inputs([unknown(), unknown()], 2)
        };
        let after = next_status(&before, &restarted);
        assert_eq!(after.conditions, before.conditions);
        assert_eq!((after.active, after.observed_generation), (Some(2), Some(1)));
        assert_eq!(metric(&after), ["9", "4", "0.4444"]);

        let pending = (JisConditionType::Pending, Reason::CloudAddressUnknown.to_string());
        let settled = StatusInputs { is_settled: true, ..restarted.clone() };
        assert_eq!(brief(&next_status(&before, &settled)), pending);
        assert_eq!(brief(&fresh(&restarted)), pending, "nothing is known of a new service");
        let other = [&unknown_address[..], &[Finding::new(Reason::ModelNotFound, "no model")]];
        let other = StatusInputs { findings: &other.concat(), ..restarted };
        assert_ne!(next_status(&before, &other).conditions, before.conditions);
    }

    #[test]
    fn findings_come_first_and_one_that_needs_a_change_heads_them() {
        let findings = [
            Finding::new(Reason::ModelNotFound, "no model"),
            Finding::new(Reason::ScriptDirInvalid, "bad directory"),
        ];
        let workers = [ObservedWorker::Running, ObservedWorker::Running];
        let status = fresh(&StatusInputs { findings: &findings, ..inputs(workers.clone(), 1) });
        assert_eq!(brief(&status), (JisConditionType::Failed, "ScriptDirInvalid".to_owned()));
        let message = status.conditions[0].message.as_deref();
        assert_eq!(message, Some("bad directory; no model"));
        assert_eq!(status.active, Some(2), "running workers are still counted");
        let status = fresh(&StatusInputs { findings: &findings[..1], ..inputs(workers, 1) });
        assert_eq!(brief(&status), (JisConditionType::Pending, "ModelNotFound".to_owned()));
    }

    #[test]
    fn one_condition_per_type_and_the_current_one_is_last() {
        let steps = [
            (waiting(Reason::Starting), 10),
            (ObservedWorker::Running, 20),
            (failed(Reason::CrashLoopBackOff), 30),
            (ObservedWorker::Running, 40),
            (ObservedWorker::Running, 50),
            (waiting(Reason::Starting), 60),
        ];
        let mut status = JointInferenceServiceStatus::default();
        let mut seen = Vec::new();
        for (edge, now) in steps {
            status = next_status(&status, &inputs([edge, ObservedWorker::Running], now));
            let brief = |c: &JisCondition| {
                let since = c.last_transition_time.as_ref().unwrap().0.as_second();
                format!("{} {} {since}", c.type_, c.status)
            };
            seen.push(status.conditions.iter().map(brief).collect::<Vec<_>>().join(", "));
        }
        assert_eq!(
            seen,
            [
                "Pending True 10",
                "Pending False 20, Running True 20",
                "Pending False 20, Running False 30, Failed True 30",
                "Pending False 20, Failed False 40, Running True 40",
                "Pending False 20, Failed False 40, Running True 40",
                "Failed False 40, Running False 60, Pending True 60",
            ]
        );
        assert_eq!(status.start_time, Some(Time(at(10))), "time of the first reconcile");
    }

    #[test]
    fn reconcile_without_a_change_writes_no_status() {
        let run = |now| inputs([ObservedWorker::Running, ObservedWorker::Running], now);
        let status = next_status(&fresh(&run(1)), &run(2));
        let later = next_status(&status, &run(300));
        assert!(is_same_status(&status, &later), "only the heartbeat differs");
        assert_ne!(status, later);
        let counters = [unreported("edge0", "a", 5, 1)];
        let more = next_status(&status, &StatusInputs { unreported: &counters, ..run(300) });
        assert!(!is_same_status(&status, &more));
        let again = [CounterReport { seq: 99, ..unreported("edge0", "a", 5, 1) }];
        let again = next_status(&more, &StatusInputs { unreported: &again, ..run(301) });
        assert!(is_same_status(&more, &again), "newer message with the same counts");
    }

    #[test]
    fn totals_only_grow_and_each_instance_counts_once() {
        let run = inputs([ObservedWorker::Running, ObservedWorker::Running], 1);
        let mut status = JointInferenceServiceStatus::default();
        let mut step = |counters: &[CounterReport]| {
            status = next_status(&status, &StatusInputs { unreported: counters, ..run.clone() });
            metric(&status).join(" ")
        };
        assert_eq!(step(&[]), "0 0 0");
        assert_eq!(step(&[unreported("edge0", "a", 100, 10)]), "100 10 0.1");
        assert_eq!(step(&[unreported("edge0", "a", 90, 9)]), "100 10 0.1", "late report");
        assert_eq!(step(&[unreported("edge0", "b", 3, 2)]), "103 12 0.1165", "replaced node");
        assert_eq!(
            step(&[unreported("edge0", "a", 101, 10)]),
            "104 12 0.1154",
            "last report of the replaced node"
        );
        assert_eq!(step(&[unreported("edge1", "a", 96, 88)]), "200 100 0.5", "another node");
        assert_eq!(step(&[]), "200 100 0.5", "after a restart the status is sufficient");
        assert_eq!(status.reports.len(), 3);
    }

    #[test]
    fn fallbacks_and_an_unreachable_cloud_worker_are_visible() {
        let finding = Finding::new(Reason::CloudUnreachable, "no answers");
        let run = inputs([ObservedWorker::Degraded(finding), ObservedWorker::Running], 1);
        let step = |previous: &JointInferenceServiceStatus, node: &str, fallback| {
            let mut report = unreported(node, "a", 100, 10);
            report.counters.fallback = fallback;
            next_status(previous, &StatusInputs { unreported: &[report], ..run.clone() })
        };
        let status = step(&JointInferenceServiceStatus::default(), "edge0", 5);
        assert_eq!(brief(&status), (JisConditionType::Running, "CloudUnreachable".to_owned()));
        assert_eq!(status.active, Some(2), "both workers run");
        assert_eq!(metric(&status), ["100", "10", "0.1", "5"]);
        let late = step(&status, "edge0", 4);
        assert_eq!(metric(&late)[3], "5", "late report");
        assert_eq!(metric(&step(&late, "edge1", 2))[3], "7", "the sum over the agents");
    }

    #[test]
    fn totals_are_exact_when_a_service_returns_after_many_nodes() {
        let (mut status, mut expected) = (JointInferenceServiceStatus::default(), 0);
        for round in 1..=3 {
            for n in 0..40 {
                let node = format!("edge{n}");
                let counters = [unreported(&node, "a", 10 * round, 1)];
                let mut run = inputs([ObservedWorker::Running, ObservedWorker::Running], 1);
                run.observed.edges[0].node = node;
                status = next_status(&status, &StatusInputs { unreported: &counters, ..run });
                expected += 10;
                assert_eq!(metric(&status)[0], expected.to_string(), "{n} {round}");
            }
        }
        assert_eq!((status.reports.len(), status.nodes.len()), (40, 40));
    }

    #[test]
    fn nodes_of_a_status_are_bounded_and_include_the_current_one() {
        let mut status = JointInferenceServiceStatus::default();
        for n in 0..2 * MAX_NODES {
            let mut run = inputs([ObservedWorker::Running, ObservedWorker::Running], 1);
            run.observed.edges[0].node = format!("edge{n}");
            status = next_status(&status, &run);
            assert_eq!(status.nodes.last(), Some(&format!("edge{n}")));
        }
        assert_eq!(status.nodes.len(), MAX_NODES);
    }

    /// The edge worker runs on these nodes, selected by labels.
    fn selected(nodes: &[String]) -> StatusInputs<'static, ServiceObservation> {
        let mut run = inputs([ObservedWorker::Running, ObservedWorker::Running], 1);
        run.observed.edges = nodes.iter().map(|node| on(node, ObservedWorker::Running)).collect();
        run.observed.is_selected = true;
        run
    }

    #[test]
    fn totals_are_exact_when_nodes_join_and_leave() {
        let node = |n: usize| format!("edge{n}");
        let mut status = JointInferenceServiceStatus::default();
        let mut tallies = [0; 40];
        for round in 0..60 {
            // A window of nodes that moves on, so that each node leaves and joins again. One that
            // left reports once more.
            let placed: Vec<_> = (0..30).map(|n| (round * 7 + n) % 40).collect();
            let names: Vec<_> = placed.iter().map(|n| node(*n)).collect();
            status = next_status(&status, &selected(&names));
            for n in placed {
                tallies[n] += 3;
            }
            let late = (round * 7 + 35) % 40;
            tallies[late] += u64::from(status.nodes.contains(&node(late)));
            let reports: Vec<_> = (0..40)
                .filter(|n| status.nodes.contains(&node(*n)))
                .map(|n| unreported(&node(n), "a", tallies[n], 1))
                .collect();
            status =
                next_status(&status, &StatusInputs { unreported: &reports, ..selected(&names) });
            assert_eq!(metric(&status)[0], tallies.iter().sum::<u64>().to_string(), "{round}");
        }
        assert_eq!(status.reports.len(), 40);
    }

    #[test]
    fn node_of_a_full_list_never_counts_twice() {
        let names: Vec<_> = (0..MAX_NODES).map(|n| format!("edge{n}")).collect();
        let count = |n: usize, numbers| unreported(&format!("edge{n}"), "a", numbers, 0);
        let mut status = next_status(&JointInferenceServiceStatus::default(), &selected(&names));
        // The last node reports first.
        for n in (0..MAX_NODES).rev() {
            let reports = [count(n, 10)];
            status =
                next_status(&status, &StatusInputs { unreported: &reports, ..selected(&names) });
        }
        // A new node takes the place of the first one, whose last report comes late.
        let mut moved = names[1..].to_vec();
        moved.push("new".to_owned());
        let reports = [count(0, 15), count(1, 20), unreported("new", "a", 1, 0)];
        status = next_status(&status, &StatusInputs { unreported: &reports, ..selected(&moved) });
        assert_eq!(metric(&status)[0], (10 * MAX_NODES + 10 + 1).to_string());
        assert!(moved.iter().all(|node| status.nodes.contains(node)));
        assert_eq!(status.nodes.len(), MAX_NODES);
    }

    #[test]
    fn replaced_agents_of_many_nodes_are_not_folded_at_once() {
        let names: Vec<_> = (0..20).map(|n| format!("edge{n}")).collect();
        let reports: Vec<_> = names.iter().map(|node| unreported(node, "a", 100, 0)).collect();
        let mut status = fresh(&StatusInputs { unreported: &reports, ..selected(&names) });
        for (instance, numbers) in [("b", 5), ("a", 101)] {
            let reports = [unreported("edge7", instance, numbers, 0)];
            status =
                next_status(&status, &StatusInputs { unreported: &reports, ..selected(&names) });
        }
        assert_eq!(metric(&status)[0], "2006");
    }

    #[test]
    fn selected_nodes_have_rows_and_the_worst_is_the_state() {
        let mut run = selected(&["e1".to_owned(), "e2".to_owned(), "e3".to_owned()]);
        let status = fresh(&run);
        assert_eq!(brief(&status), (JisConditionType::Running, "WorkersRunning".to_owned()));
        assert_eq!(status.active, Some(4));
        let message = |status: &JointInferenceServiceStatus| {
            status.conditions.last().unwrap().message.clone().unwrap()
        };
        assert_eq!(message(&status), "3 of 3 edge workers and the cloud worker are running");
        run.observed.edges[0].worker = unknown();
        run.observed.edges[1].worker = offline();
        run.observed.edges[2].worker = failed(Reason::OutOfMemory);
        let rows = |status: &JointInferenceServiceStatus| -> Vec<String> {
            let row = |row: &EdgeWorkerStatus| {
                format!("{} {} {}", row.node, row.state, row.reason.clone().unwrap_or_default())
            };
            status.edge_workers.iter().map(row).collect()
        };
        let after = next_status(&status, &run);
        assert_eq!(
            rows(&after),
            ["e1 Running ", "e2 Unknown NodeOffline", "e3 Failed OutOfMemory"]
        );
        let first = fresh(&run);
        assert_eq!(rows(&first)[0], "e1 Unknown AwaitingAgent");
        assert_eq!(brief(&first), (JisConditionType::Failed, "OutOfMemory".to_owned()));
        assert_eq!(message(&first), "0 of 3 edge workers are running; f");
        run.observed.is_selected = false;
        assert_eq!(next_status(&after, &run).edge_workers, []);
    }

    #[test]
    fn service_is_completed_when_all_its_edge_workers_are() {
        let mut run = selected(&["e1".to_owned(), "e2".to_owned()]);
        let completed = || ObservedWorker::Completed(Finding::new(Reason::Completed, "done"));
        run.observed.edges[0].worker = completed();
        assert_eq!(brief(&fresh(&run)).0, JisConditionType::Running);
        run.observed.edges[1].worker = completed();
        assert_eq!(brief(&fresh(&run)).0, JisConditionType::Completed);
    }

    #[test]
    fn time_of_the_metrics_is_that_of_their_last_change() {
        let run = |second| inputs([ObservedWorker::Running, ObservedWorker::Running], second);
        let time = |status: &JointInferenceServiceStatus| status.metrics_time.as_ref().unwrap().0;
        let status = fresh(&run(1));
        let counters = [unreported("edge0", "a", 10, 1)];
        let counted = next_status(&status, &StatusInputs { unreported: &counters, ..run(5) });
        let idle = next_status(&counted, &run(9));
        assert_eq!([time(&status), time(&counted), time(&idle)], [at(1), at(5), at(5)]);
    }

    #[test]
    fn rejected_reports_are_in_the_status() {
        let mut run = inputs([ObservedWorker::Running, ObservedWorker::Running], 1);
        let before = fresh(&run);
        run.observed.rejected = vec![neptune_api::RejectedReports {
            node: "edge0".to_owned(),
            worker: Some("w".to_owned()),
            count: 3,
            reason: "wrong".to_owned(),
        }];
        let after = next_status(&before, &run);
        assert_eq!(after.rejected, run.observed.rejected);
        assert!(!is_same_status(&before, &after));
    }

    #[test]
    fn status_is_bounded_and_total_exact_after_100_replacements() {
        let mut status = JointInferenceServiceStatus::default();
        for n in 0..100 {
            let counters = [unreported("edge0", &n.to_string(), 10, 1)];
            let run = inputs([ObservedWorker::Running, ObservedWorker::Running], n);
            status = next_status(&status, &StatusInputs { unreported: &counters, ..run });
        }
        assert_eq!(metric(&status), ["1000", "100", "0.1"]);
        assert!(status.reports.len() <= 16, "{}", status.reports.len());
        let listed: u64 = status.reports.iter().map(|report| report.inference_number).sum();
        assert_eq!(listed + status.folded.unwrap().inference_number, 1000);
        assert!(status.reports.iter().all(|report| report.inference_number == 10));
        assert_eq!(status.reports.last().unwrap().instance, "99");
    }

    #[test]
    fn restarted_controller_keeps_the_status_until_agents_report() {
        let running = fresh(&inputs([ObservedWorker::Running, ObservedWorker::Running], 1));
        let unchanged = next_status(&running, &inputs([unknown(), ObservedWorker::Running], 2));
        assert!(is_same_status(&running, &unchanged));
        let changed =
            StatusInputs { generation: Some(2), ..inputs([unknown(), ObservedWorker::Running], 3) };
        let changed = next_status(&running, &changed);
        assert_eq!(brief(&changed), (JisConditionType::Pending, "AwaitingAgent".to_owned()));

        let missed = [Finding::new(Reason::ModelNotFound, "m")];
        let pending =
            fresh(&StatusInputs { findings: &missed, ..inputs([unknown(), unknown()], 1) });
        let healed = next_status(&pending, &inputs([unknown(), ObservedWorker::Running], 2));
        assert_eq!(brief(&healed).1, "AwaitingAgent", "a resolved obstacle is not kept");
    }

    #[test]
    fn ratio_has_at_most_four_decimals() {
        for (inference, hard, ratio) in [
            (0, 0, "0"),
            (3, 1, "0.3333"),
            (3, 2, "0.6667"),
            (4, 4, "1"),
            (8, 2, "0.25"),
            (100_000, 1, "0"),
        ] {
            assert_eq!(
                metrics(Counters { inference, hard, ..Counters::default() })[2].value,
                ratio
            );
        }
    }
}
