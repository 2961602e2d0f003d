//! Computes the next status of a service from its previous status, findings, observation and
//! counters. Pure.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use neptune_api::{
    AgentCounters, CounterTotals, JisCondition, JisConditionType, JointInferenceServiceStatus,
    KeyValue,
};
use neptune_wire::Counters;

use crate::{
    controllers::{
        joint_inference_service::observed::{ObservedWorker, ServiceObservation},
        runtime::StatusInputs,
    },
    finding::Finding,
    fleet::CounterReport,
    reason::Reason,
};

/// Agents that a status lists. Of more, those whose node has a newer agent are folded.
const MAX_AGENTS: usize = 16;

/// Nodes that a status lists. Counters of a node that is no longer listed are folded, and its later
/// reports do not count.
const MAX_NODES: usize = 64;

/// The next status. Totals never decrease: new counts are added to those of the previous status.
#[must_use]
pub fn next(
    previous: &JointInferenceServiceStatus,
    inputs: &StatusInputs<ServiceObservation>,
) -> JointInferenceServiceStatus {
    let (reports, folded, totals) = add_counts(previous, inputs.unreported);
    let keeps_previous = keeps_previous(previous, inputs);
    let count = |is: fn(&ObservedWorker) -> bool| {
        i32::try_from(inputs.observed.workers.iter().filter(|worker| is(worker)).count()).ok()
    };
    let (active, failed) = if awaits_address(previous, inputs)
        || has_unknown(inputs) && !previous.conditions.is_empty()
    {
        (previous.active, previous.failed)
    } else {
        let failed = count(|worker| matches!(worker, ObservedWorker::Failed(_)));
        let is_active = |worker: &ObservedWorker| {
            use ObservedWorker::{Degraded, Running, Updating};
            matches!(worker, Running | Updating(_) | Degraded(_))
        };
        (count(is_active), failed)
    };
    let conditions = if keeps_previous {
        previous.conditions.clone()
    } else {
        conditions(&previous.conditions, next_condition(inputs), inputs.now)
    };
    JointInferenceServiceStatus {
        conditions,
        start_time: previous.start_time.clone().or(Some(Time(inputs.now))),
        active,
        failed,
        metrics: metrics(totals),
        observed_generation: if awaits_address(previous, inputs) {
            previous.observed_generation
        } else {
            inputs.generation
        },
        reports,
        folded,
        nodes: nodes(previous, &inputs.observed.edge_node),
        rejected: inputs.observed.rejected.clone(),
    }
}

/// Whether two statuses are equal except for heartbeat times and message numbers, which alone are
/// not written.
pub fn is_same_status(a: &JointInferenceServiceStatus, b: &JointInferenceServiceStatus) -> bool {
    let plain = |status: &JointInferenceServiceStatus| {
        let mut status = status.clone();
        for condition in &mut status.conditions {
            condition.last_heartbeat_time = None;
        }
        for report in &mut status.reports {
            (report.epoch, report.seq) = (0, 0);
        }
        status
    };
    plain(a) == plain(b)
}

fn has_unknown(inputs: &StatusInputs<ServiceObservation>) -> bool {
    inputs.observed.workers.iter().any(|worker| matches!(worker, ObservedWorker::Unknown(_)))
}

/// Whether the conditions stay: the controller started recently and the agents have not reported
/// yet.
fn keeps_previous(
    previous: &JointInferenceServiceStatus,
    inputs: &StatusInputs<ServiceObservation>,
) -> bool {
    let awaits_workers = inputs.findings.is_empty()
        && has_unknown(inputs)
        && was_about_workers(previous)
        && previous.observed_generation == inputs.generation;
    awaits_workers || awaits_address(previous, inputs)
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

/// The next current condition.
#[derive(Debug)]
struct NextCondition {
    type_: JisConditionType,
    reason: Reason,
    message: String,
}

impl NextCondition {
    fn new(type_: JisConditionType, finding: Finding) -> Self {
        Self { type_, reason: finding.reason, message: finding.message }
    }
}

fn next_condition(inputs: &StatusInputs<ServiceObservation>) -> NextCondition {
    match Finding::join(inputs.findings) {
        Some(finding) => NextCondition::new(finding.reason.condition(), finding),
        None => of_workers(&inputs.observed.workers),
    }
}

/// The condition of the worst worker: failed, then offline, then waiting, then updating or degraded.
/// A service whose workers are none of these is completed when its edge worker is: the cloud worker
/// answers only that one.
fn of_workers(workers: &[ObservedWorker; 2]) -> NextCondition {
    let find = |pick: fn(&ObservedWorker) -> Option<&Finding>| workers.iter().find_map(pick);
    let failed = find(|worker| match worker {
        ObservedWorker::Failed(finding) => Some(finding),
        _ => None,
    });
    let offline = find(|worker| match worker {
        ObservedWorker::Waiting(finding) if finding.reason == Reason::NodeOffline => Some(finding),
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
    let [edge_completed, cloud_completed] = workers.each_ref().map(completed);
    let updating = find(|worker| match worker {
        ObservedWorker::Updating(finding) | ObservedWorker::Degraded(finding) => Some(finding),
        _ => None,
    });
    if let Some(finding) = failed {
        NextCondition::new(JisConditionType::Failed, finding.clone())
    } else if let Some(finding) = offline.or(waiting) {
        NextCondition::new(JisConditionType::Pending, finding.clone())
    } else if let Some(finding) = edge_completed {
        NextCondition::new(JisConditionType::Completed, finding)
    } else if let Some(finding) = cloud_completed {
        // Nothing answers the hard examples of the edge worker.
        NextCondition::new(JisConditionType::Pending, finding)
    } else if let Some(finding) = updating {
        NextCondition::new(JisConditionType::Running, finding.clone())
    } else {
        let message = "edge worker and cloud worker are running";
        NextCondition::new(JisConditionType::Running, Finding::new(Reason::WorkersRunning, message))
    }
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
    if current.status != "True" {
        "True".clone_into(&mut current.status);
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
    unreported: &[CounterReport],
) -> (Vec<AgentCounters>, Option<CounterTotals>, Counters) {
    let mut reports = previous.reports.clone();
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
    }
    let mut folded = previous.folded.map_or_else(Counters::default, |folded| Counters {
        inference: folded.inference_number,
        hard: folded.hard_example_number,
        fallback: folded.fallback_number,
    });
    while let Some(position) = position_to_fold(&reports) {
        folded = folded.plus(counters_of(&reports.remove(position)));
    }
    let totals = reports.iter().fold(folded, |sum, report| sum.plus(counters_of(report)));
    let folded = (!folded.are_zero()).then_some(CounterTotals {
        inference_number: folded.inference,
        hard_example_number: folded.hard,
        fallback_number: folded.fallback,
    });
    (reports, folded, totals)
}

fn counters_of(report: &AgentCounters) -> Counters {
    Counters {
        inference: report.inference_number,
        hard: report.hard_example_number,
        fallback: report.fallback_number,
    }
}

/// The agent whose counters are folded next. An agent whose node has no newer one is kept: the
/// service may return to its node, which then continues its totals.
fn position_to_fold(reports: &[AgentCounters]) -> Option<usize> {
    let has_newer = |(position, report): &(usize, &AgentCounters)| {
        reports[position + 1..].iter().any(|newer| newer.node == report.node)
    };
    match reports.len() {
        0..=MAX_AGENTS => None,
        count => {
            let replaced = reports.iter().enumerate().find(has_newer);
            replaced.map(|(position, _)| position).or((count > MAX_NODES).then_some(0))
        }
    }
}

/// The nodes that have or had the edge worker, with the current one last when it is new.
fn nodes(previous: &JointInferenceServiceStatus, current: &str) -> Vec<String> {
    let mut nodes = previous.nodes.clone();
    let reported = previous.reports.iter().map(|report| report.node.as_str());
    for node in reported.chain([current]) {
        if !nodes.iter().any(|known| known == node) {
            nodes.push(node.to_owned());
        }
    }
    while nodes.len() > MAX_NODES {
        let oldest = nodes.iter().position(|node| node != current).unwrap_or_default();
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
    use neptune_wire::AgentInstance;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn waiting(reason: Reason) -> ObservedWorker {
        ObservedWorker::Waiting(Finding::new(reason, "w"))
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
            counters: Counters { inference, hard, fallback: 0 },
        }
    }

    fn inputs(workers: [ObservedWorker; 2], now: i64) -> StatusInputs<'static, ServiceObservation> {
        StatusInputs {
            generation: Some(1),
            findings: &[],
            observed: ServiceObservation {
                workers,
                edge_node: "edge0".to_owned(),
                rejected: Vec::new(),
            },
            unreported: &[],
            is_settled: true,
            now: at(now),
        }
    }

    fn fresh(inputs: &StatusInputs<ServiceObservation>) -> JointInferenceServiceStatus {
        next(&JointInferenceServiceStatus::default(), inputs)
    }

    fn brief(status: &JointInferenceServiceStatus) -> (JisConditionType, String) {
        let current = status.conditions.last().unwrap();
        (current.type_, current.reason.clone().unwrap())
    }

    fn metric(status: &JointInferenceServiceStatus) -> Vec<&str> {
        status.metrics.iter().map(|metric| metric.value.as_str()).collect()
    }

    #[test]
    fn worst_of_the_two_workers_is_the_state_of_the_service() {
        use JisConditionType::{Completed, Failed, Pending, Running};
        let completed =
            || ObservedWorker::Completed(Finding::new(Reason::Completed, "exited with 0"));
        let offline = || waiting(Reason::NodeOffline);
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
        let after = next(&before, &restarted);
        assert_eq!(after.conditions, before.conditions);
        assert_eq!((after.active, after.observed_generation), (Some(2), Some(1)));
        assert_eq!(metric(&after), ["9", "4", "0.4444"]);

        let pending = (JisConditionType::Pending, Reason::CloudAddressUnknown.to_string());
        let settled = StatusInputs { is_settled: true, ..restarted.clone() };
        assert_eq!(brief(&next(&before, &settled)), pending);
        assert_eq!(brief(&fresh(&restarted)), pending, "nothing is known of a new service");
        let other = [&unknown_address[..], &[Finding::new(Reason::ModelNotFound, "no model")]];
        let other = StatusInputs { findings: &other.concat(), ..restarted };
        assert_ne!(next(&before, &other).conditions, before.conditions);
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
            status = next(&status, &inputs([edge, ObservedWorker::Running], now));
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
        let status = next(&fresh(&run(1)), &run(2));
        let later = next(&status, &run(300));
        assert!(is_same_status(&status, &later), "only the heartbeat differs");
        assert_ne!(status, later);
        let counters = [unreported("edge0", "a", 5, 1)];
        let more = next(&status, &StatusInputs { unreported: &counters, ..run(300) });
        assert!(!is_same_status(&status, &more));
        let again = [CounterReport { seq: 99, ..unreported("edge0", "a", 5, 1) }];
        let again = next(&more, &StatusInputs { unreported: &again, ..run(301) });
        assert!(is_same_status(&more, &again), "newer message with the same counts");
    }

    #[test]
    fn totals_only_grow_and_each_instance_counts_once() {
        let run = inputs([ObservedWorker::Running, ObservedWorker::Running], 1);
        let mut status = JointInferenceServiceStatus::default();
        let mut step = |counters: &[CounterReport]| {
            status = next(&status, &StatusInputs { unreported: counters, ..run.clone() });
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
            next(previous, &StatusInputs { unreported: &[report], ..run.clone() })
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
                run.observed.edge_node = node;
                status = next(&status, &StatusInputs { unreported: &counters, ..run });
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
            run.observed.edge_node = format!("edge{n}");
            status = next(&status, &run);
            assert_eq!(status.nodes.last(), Some(&format!("edge{n}")));
        }
        assert_eq!(status.nodes.len(), MAX_NODES);
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
        let after = next(&before, &run);
        assert_eq!(after.rejected, run.observed.rejected);
        assert!(!is_same_status(&before, &after));
    }

    #[test]
    fn status_is_bounded_and_total_exact_after_100_replacements() {
        let mut status = JointInferenceServiceStatus::default();
        for n in 0..100 {
            let counters = [unreported("edge0", &n.to_string(), 10, 1)];
            let run = inputs([ObservedWorker::Running, ObservedWorker::Running], n);
            status = next(&status, &StatusInputs { unreported: &counters, ..run });
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
        let unchanged = next(&running, &inputs([unknown(), ObservedWorker::Running], 2));
        assert!(is_same_status(&running, &unchanged));
        let changed =
            StatusInputs { generation: Some(2), ..inputs([unknown(), ObservedWorker::Running], 3) };
        let changed = next(&running, &changed);
        assert_eq!(brief(&changed), (JisConditionType::Pending, "AwaitingAgent".to_owned()));

        let missed = [Finding::new(Reason::ModelNotFound, "m")];
        let pending =
            fresh(&StatusInputs { findings: &missed, ..inputs([unknown(), unknown()], 1) });
        let healed = next(&pending, &inputs([unknown(), ObservedWorker::Running], 2));
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
            assert_eq!(metrics(Counters { inference, hard, fallback: 0 })[2].value, ratio);
        }
    }
}
