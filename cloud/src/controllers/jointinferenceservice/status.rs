//! The status that a service should have, from the one it has and what is known now. Pure.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use neptune_api::{
    Condition, ConditionType, CountedReport, Counts, JointInferenceServiceStatus, KeyValue,
};
use neptune_wire::{Counters, Tally, counters::Run};

use super::workers::View;
use crate::{
    fleet::Counted,
    reason::{Finding, Reason},
};

/// What a status is made of.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// The generation that was looked at.
    pub generation: Option<i64>,
    /// What stands between the spec and its workers.
    pub findings: &'a [Finding],
    /// The edge worker and the cloud worker.
    pub workers: [View; 2],
    /// What was counted and is not in the status yet.
    pub counted: &'a [Counted],
    /// The time.
    pub now: Timestamp,
}

/// The next status. Totals never go down: what was counted is added to what the status has.
#[must_use]
pub fn next(previous: &JointInferenceServiceStatus, facts: &Facts) -> JointInferenceServiceStatus {
    let (reports, folded, totals) = tally(previous, facts.counted);
    let keeps = keeps(previous, facts);
    let count = |is: fn(&View) -> bool| {
        i32::try_from(facts.workers.iter().filter(|view| is(view)).count()).ok()
    };
    let (active, failed) =
        if facts.workers.contains(&View::Unknown) && !previous.conditions.is_empty() {
            (previous.active, previous.failed)
        } else {
            let failed = count(|view| matches!(view, View::Failed(_)));
            (count(|view| *view == View::Running), failed)
        };
    let conditions = if keeps {
        previous.conditions.clone()
    } else {
        conditions(&previous.conditions, judge(facts), facts.now)
    };
    JointInferenceServiceStatus {
        conditions,
        start_time: previous.start_time.clone().or(Some(Time(facts.now))),
        active,
        failed,
        metrics: metrics(totals),
        observed_generation: facts.generation,
        reports,
        folded,
    }
}

/// Whether two statuses say the same: when it was said, and the number of a message that brought
/// nothing new, are not worth a write.
pub fn says_the_same(a: &JointInferenceServiceStatus, b: &JointInferenceServiceStatus) -> bool {
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

/// After this controller's start the agents' words are on their way: until they come, the service
/// is as it was.
fn keeps(previous: &JointInferenceServiceStatus, facts: &Facts) -> bool {
    facts.findings.is_empty()
        && facts.workers.contains(&View::Unknown)
        && !previous.conditions.is_empty()
        && previous.observed_generation == facts.generation
}

/// What the current condition is to say.
#[derive(Debug)]
struct Verdict {
    type_: ConditionType,
    reason: Reason,
    message: String,
}

fn judge(facts: &Facts) -> Verdict {
    obstacle(facts.findings).unwrap_or_else(|| of_workers(&facts.workers))
}

/// All findings, headed by one that somebody has to mend, if there is such a one.
fn obstacle(findings: &[Finding]) -> Option<Verdict> {
    let broken = |finding: &&Finding| finding.reason.condition() == ConditionType::Failed;
    let first = findings.iter().find(broken).or(findings.first())?;
    let rest = findings.iter().filter(|finding| *finding != first);
    let messages: Vec<_> =
        std::iter::once(first).chain(rest).map(|finding| finding.message.as_str()).collect();
    let type_ = first.reason.condition();
    Some(Verdict { type_, reason: first.reason, message: messages.join("; ") })
}

/// The worst of the two: failed, then offline, then waiting.
fn of_workers(workers: &[View; 2]) -> Verdict {
    let find = |pick: fn(&View) -> Option<&Finding>| workers.iter().find_map(pick);
    let verdict = |type_, finding: &Finding| Verdict {
        type_,
        reason: finding.reason,
        message: finding.message.clone(),
    };
    let failed = find(|view| match view {
        View::Failed(finding) => Some(finding),
        _ => None,
    });
    let offline = find(|view| match view {
        View::Waiting(finding) if finding.reason == Reason::NodeOffline => Some(finding),
        _ => None,
    });
    let waiting = find(|view| match view {
        View::Waiting(finding) => Some(finding),
        _ => None,
    });
    if let Some(finding) = failed {
        verdict(ConditionType::Failed, finding)
    } else if let Some(finding) = offline.or(waiting) {
        verdict(ConditionType::Pending, finding)
    } else if workers.contains(&View::Unknown) {
        let message = "the agents have not said yet how the workers fare";
        verdict(ConditionType::Pending, &Finding::new(Reason::AwaitingAgent, message))
    } else {
        let message = "the edge worker and the cloud worker run";
        verdict(ConditionType::Running, &Finding::new(Reason::WorkersRunning, message))
    }
}

/// One condition a type, the current one last.
fn conditions(previous: &[Condition], verdict: Verdict, now: Timestamp) -> Vec<Condition> {
    let now = Some(Time(now));
    let mut conditions = previous.to_vec();
    let known = conditions.iter().position(|condition| condition.type_ == verdict.type_);
    let mut current = match known {
        Some(at) => conditions.remove(at),
        None => Condition {
            type_: verdict.type_,
            status: String::new(),
            last_heartbeat_time: None,
            last_transition_time: None,
            reason: None,
            message: None,
        },
    };
    for past in conditions.iter_mut().filter(|past| past.status != "False") {
        past.status = "False".to_owned();
        past.last_transition_time.clone_from(&now);
    }
    if current.status != "True" {
        current.status = "True".to_owned();
        current.last_transition_time.clone_from(&now);
    }
    current.last_heartbeat_time = now;
    current.reason = Some(verdict.reason.to_string());
    current.message = Some(verdict.message);
    conditions.push(current);
    conditions
}

/// The totals so far with what was counted since, and where they come from.
fn tally(
    previous: &JointInferenceServiceStatus,
    counted: &[Counted],
) -> (Vec<CountedReport>, Option<Counts>, Counters) {
    let counters = |inference, hard| Counters { inference, hard };
    let mut tally = Tally::default();
    if let Some(folded) = previous.folded {
        tally.folded = counters(folded.inference_number, folded.hard_example_number);
    }
    let run = |node: &str, instance: &str| format!("{node}/{instance}");
    tally.runs.extend(previous.reports.iter().map(|report| Run {
        name: run(&report.node, &report.instance),
        counters: counters(report.inference_number, report.hard_example_number),
    }));
    let mut reports = previous.reports.clone();
    for Counted { node, instance, epoch, seq, counters } in counted {
        let name = run(node.as_str(), &instance.0);
        tally.observe(&name, *counters);
        let is_run = |report: &&mut CountedReport| run(&report.node, &report.instance) == name;
        match reports.iter_mut().find(is_run) {
            Some(report) => {
                let order = (report.epoch, report.seq).max((*epoch, *seq));
                (report.epoch, report.seq) = order;
            }
            None => reports.push(CountedReport {
                node: node.to_string(),
                instance: instance.0.clone(),
                epoch: *epoch,
                seq: *seq,
                ..CountedReport::default()
            }),
        }
    }
    reports.retain(|report| tally.knows(&run(&report.node, &report.instance)));
    for (report, run) in reports.iter_mut().zip(&tally.runs) {
        report.inference_number = run.counters.inference;
        report.hard_example_number = run.counters.hard;
    }
    let folded = (tally.folded != Counters::default()).then_some(Counts {
        inference_number: tally.folded.inference,
        hard_example_number: tally.folded.hard,
    });
    (reports, folded, tally.total())
}

fn metrics(totals: Counters) -> Vec<KeyValue> {
    // At most four decimals, and none that say nothing.
    let ratio = format!("{:.4}", totals.upload_cloud_ratio());
    let ratio = ratio.trim_end_matches('0').trim_end_matches('.');
    vec![
        KeyValue::new("inferenceNumber", totals.inference.to_string()),
        KeyValue::new("hardExampleNumber", totals.hard.to_string()),
        KeyValue::new("uploadCloudRatio", ratio),
    ]
}
