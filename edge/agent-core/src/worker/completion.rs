//! Decides from a worker's exit whether it is finished, or is started again. The result is stored
//! with the worker's counters, so that it outlives the container and the agent.

use neptune_wire::{RestartPolicy, RestartTime, WorkerReason, WorkerState};

use crate::domain::{
    health::WorkerHealth,
    observed_container::{ContainerExit, ContainerState},
    worker_count::{FinishedRun, ReportedStatus},
};

/// What is known of a run of a worker.
#[derive(Debug, Clone, Copy)]
pub struct WorkerRunFacts<'a> {
    pub policy: RestartPolicy,
    pub spec_hash: &'a str,
    /// The requested restart for which the container was created.
    pub restarted_at: Option<&'a RestartTime>,
    /// The status that this run reported.
    pub reported: ReportedStatus,
    /// The machine or the container engine may have stopped the worker.
    pub is_interrupted: bool,
}

/// The end of a worker after its container was observed in a state; `before`: the end that was known.
/// `None` while it is to be started again if its container is gone.
pub fn finished_after(
    before: Option<FinishedRun>,
    state: &ContainerState,
    worker: WorkerRunFacts<'_>,
) -> Option<FinishedRun> {
    match state {
        ContainerState::Exited(exit) => finished(exit, worker),
        ContainerState::Running | ContainerState::Paused => None,
        // These states do not tell how the run ended.
        ContainerState::Removing | ContainerState::Unusable | ContainerState::Unknown => before,
    }
}

/// The end of a worker that is not started again with this container specification; `None` if it
/// is.
fn finished(exit: &ContainerExit, worker: WorkerRunFacts<'_>) -> Option<FinishedRun> {
    let ContainerExit { exit_code, out_of_memory, log_tail } = exit;
    let is_success = *exit_code == 0 && !out_of_memory && worker.reported != ReportedStatus::Failed;
    let may_be_incomplete = worker.is_interrupted && worker.reported != ReportedStatus::Completed;
    let is_final = match worker.policy {
        RestartPolicy::Always => false,
        RestartPolicy::Never => true,
        RestartPolicy::OnFailure | RestartPolicy::Unknown => is_success && !may_be_incomplete,
    };
    is_final.then(|| FinishedRun {
        spec_hash: worker.spec_hash.to_owned(),
        restarted_at: worker.restarted_at.cloned(),
        is_completed: is_success,
        message: if is_success {
            "exited with exit code 0; to run it again, use kubectl neptune restart or change its workerSpec or its model".to_owned()
        } else {
            let status = match worker.reported {
                ReportedStatus::Failed => "reported status failed and ",
                _ => "",
            };
            let memory = if *out_of_memory { " for lack of memory" } else { "" };
            let log = match log_tail.as_str() {
                "" => "no output".to_owned(),
                lines => format!("last log lines: {lines}"),
            };
            format!(
                "{status}exited with exit code {exit_code}{memory}, {log}; not restarted because of restartPolicy Never"
            )
        },
    })
}

/// Returns the health to report for a worker that finished.
pub fn finished_health(run: &FinishedRun) -> WorkerHealth {
    if run.is_completed { completed(run.message.clone()) } else { failed(run.message.clone()) }
}

/// The health of a running worker by its own report; `None` while it reports nothing special.
pub fn reported_health(reported: ReportedStatus, container: &str) -> Option<WorkerHealth> {
    match reported {
        ReportedStatus::Completed => {
            Some(completed("reports status completed; its container keeps running".to_owned()))
        }
        ReportedStatus::Failed => {
            let id = &container[..container.len().min(12)];
            Some(failed(format!(
                "reports status failed; its container keeps running, see docker logs {id} on the node"
            )))
        }
        ReportedStatus::Running => None,
    }
}

fn completed(message: String) -> WorkerHealth {
    let reason = Some(WorkerReason::Completed);
    WorkerHealth { state: WorkerState::Pending, reason, message, restarts: 0 }
}

fn failed(message: String) -> WorkerHealth {
    let reason = Some(WorkerReason::WorkerFailed);
    WorkerHealth { state: WorkerState::Failed, reason, message, restarts: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(policy: RestartPolicy) -> WorkerRunFacts<'static> {
        let reported = ReportedStatus::Running;
        WorkerRunFacts {
            policy,
            spec_hash: "a",
            restarted_at: None,
            reported,
            is_interrupted: false,
        }
    }

    #[test]
    fn removal_of_the_container_changes_no_end() {
        let exit = ContainerExit { exit_code: 0, out_of_memory: false, log_tail: String::new() };
        for policy in [RestartPolicy::OnFailure, RestartPolicy::Never, RestartPolicy::Always] {
            let worker = facts(policy);
            let ended = finished_after(None, &ContainerState::Exited(exit.clone()), worker);
            assert_eq!(ended.is_some(), policy != RestartPolicy::Always);
            for state in
                [ContainerState::Removing, ContainerState::Unusable, ContainerState::Unknown]
            {
                assert_eq!(finished_after(ended.clone(), &state, worker), ended, "{state:?}");
                assert_eq!(finished_after(None, &state, worker), None, "{state:?}");
            }
            for state in [ContainerState::Running, ContainerState::Paused] {
                assert_eq!(finished_after(ended.clone(), &state, worker), None, "{state:?}");
            }
        }
    }

    #[test]
    fn policy_exit_code_and_report_decide_the_end() {
        use ReportedStatus::{Completed, Failed, Running};
        use RestartPolicy::{Always, Never, OnFailure};
        for (policy, exit_code, reported, is_interrupted, expected) in [
            (OnFailure, 0, Running, false, Some(true)),
            (OnFailure, 0, Completed, false, Some(true)),
            (OnFailure, 0, Failed, false, None),
            (OnFailure, 0, Running, true, None),
            (OnFailure, 0, Completed, true, Some(true)),
            (OnFailure, 1, Running, false, None),
            (OnFailure, 1, Completed, false, None),
            (Always, 0, Completed, false, None),
            (Never, 0, Running, true, Some(true)),
            (Never, 0, Failed, false, Some(false)),
            (Never, 3, Running, false, Some(false)),
        ] {
            let exit = ContainerExit { exit_code, out_of_memory: false, log_tail: "x".to_owned() };
            let worker = WorkerRunFacts { reported, is_interrupted, ..facts(policy) };
            let is_completed = finished(&exit, worker).map(|run| run.is_completed);
            assert_eq!(is_completed, expected, "{policy:?} {exit_code} {reported:?}");
        }
    }

    #[test]
    fn worker_killed_for_its_memory_is_not_complete() {
        let exit = ContainerExit { exit_code: 0, out_of_memory: true, log_tail: String::new() };
        assert_eq!(finished(&exit, facts(RestartPolicy::OnFailure)), None);
        let run = finished(&exit, facts(RestartPolicy::Never));
        assert!(run.is_some_and(|run| run.message.contains("for lack of memory, no output")));
    }

    #[test]
    fn status_is_read_in_any_case_and_other_texts_mean_running() {
        for (text, expected) in [
            ("completed", ReportedStatus::Completed),
            (" Failed ", ReportedStatus::Failed),
            ("completed/failed/running", ReportedStatus::Running),
            ("", ReportedStatus::Running),
        ] {
            assert_eq!(ReportedStatus::parse(text), expected, "{text}");
        }
    }
}
