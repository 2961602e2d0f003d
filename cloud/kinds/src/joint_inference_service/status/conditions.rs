//! Decides the condition of a service from its findings and the state of its workers.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use neptune_api::{JisCondition, JisConditionType, JointInferenceServiceStatus};

use crate::{
    finding::Finding,
    joint_inference_service::status::{
        availability::of_nodes,
        observed::{ObservedWorker, ServiceObservation},
    },
    reason::Reason,
    steps::StatusInputs,
};

/// Whether the current condition is about the workers, and not about the spec.
pub fn was_about_workers(previous: &JointInferenceServiceStatus) -> bool {
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

/// Whether the workers ran once.
pub fn has_run(conditions: &[JisCondition]) -> bool {
    conditions.iter().any(|condition| condition.type_ == JisConditionType::Running)
}

/// The condition that becomes the current one.
#[derive(Debug)]
pub struct NextCondition {
    type_: JisConditionType,
    /// Whether this is the present state, and not the last known one.
    is_known: bool,
    reason: Reason,
    message: String,
}

impl NextCondition {
    /// The present state, with the finding's reason and message.
    fn new(type_: JisConditionType, finding: Finding) -> Self {
        Self { type_, is_known: true, reason: finding.reason, message: finding.message }
    }

    /// The same as the last known state.
    fn into_last_known(self) -> Self {
        Self { is_known: false, ..self }
    }

    /// Whether it repeats how the workers ended.
    pub fn is_last_result(&self) -> bool {
        !self.is_known && self.type_ != JisConditionType::Running
    }
}

/// The condition by the findings, or else by the workers.
pub fn next_condition(
    previous: &JointInferenceServiceStatus,
    inputs: &StatusInputs<ServiceObservation>,
) -> NextCondition {
    if let Some(finding) = Finding::join(inputs.findings) {
        return NextCondition::new(finding.reason.condition(), finding);
    }
    let (observed, last) = (&inputs.observed, last_state(&previous.conditions));
    if observed.edges.len() < 2 || !observed.cloud.is_active() {
        return of_worst_worker(observed, last);
    }
    let (state, finding) = of_nodes(observed);
    match (state, last) {
        (None, Some(last)) => NextCondition::new(last, finding).into_last_known(),
        (state, _) => NextCondition::new(state.unwrap_or(JisConditionType::Pending), finding),
    }
}

/// The condition of the worst worker: failed, then offline, then waiting, then updating or degraded.
/// A service whose workers are none of these is completed when its edge workers are: the cloud
/// worker answers only these. While a node is offline, the last state of the workers stays.
fn of_worst_worker(observed: &ServiceObservation, last: Option<JisConditionType>) -> NextCondition {
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
    let running = edges().filter(|worker| worker.is_active()).count();
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
        NextCondition::new(last, with_count(finding)).into_last_known()
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
        // With several edge workers, the cloud worker is not running here.
        let message = "edge worker and cloud worker are running";
        NextCondition::new(JisConditionType::Running, Finding::new(Reason::WorkersRunning, message))
    }
}

/// One condition per type, the current one last.
pub fn next_conditions(
    previous: &[JisCondition],
    next: NextCondition,
    now: Timestamp,
) -> Vec<JisCondition> {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::joint_inference_service::status::fixtures::{
        at, brief, failed, fresh, inputs, next_status, offline, selected, unknown, waiting,
    };

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
    fn last_state_stays_while_all_of_several_nodes_are_offline() {
        let all = |worker: &ObservedWorker| {
            let mut run = selected(&["e1".to_owned(), "e2".to_owned()]);
            run.observed.edges.iter_mut().for_each(|edge| edge.worker = worker.clone());
            run
        };
        let state = |status: &JointInferenceServiceStatus| {
            let current = status.conditions.last().unwrap();
            format!("{} {} {}", current.type_, current.status, current.reason.clone().unwrap())
        };
        let never_started = fresh(&all(&offline()));
        assert_eq!(state(&never_started), "Pending True NodeOffline");
        let running = fresh(&all(&ObservedWorker::Running));
        let away = next_status(&running, &all(&offline()));
        assert_eq!(state(&away), "Running Unknown NodeOffline");
        let mut one_is_back = all(&offline());
        one_is_back.observed.edges[0].worker = ObservedWorker::Running;
        let back = next_status(&away, &one_is_back);
        assert_eq!(state(&back), "Running True SomeNodesNotReady");
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
    fn service_is_completed_when_all_its_edge_workers_are() {
        let mut run = selected(&["e1".to_owned(), "e2".to_owned()]);
        let completed = || ObservedWorker::Completed(Finding::new(Reason::Completed, "done"));
        run.observed.edges[0].worker = completed();
        assert_eq!(brief(&fresh(&run)).0, JisConditionType::Running);
        run.observed.edges[1].worker = completed();
        assert_eq!(brief(&fresh(&run)).0, JisConditionType::Completed);
    }
}
