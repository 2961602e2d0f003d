//! What the aggregator is asked for: the run, the keys of the nodes, and the tasks that failed.

use std::collections::BTreeMap;

use neptune_wire::{
    KeyPin, NodeName, TaskReport, TaskState, TrainingReason,
    aggregator::{FailedTask, RunRequest, RunStatus, WorkerProblem},
};

use super::frozen::{CurrentRun, FrozenRun};
use crate::reason::Reason;

/// The inputs of [`request`].
#[derive(Debug, Clone)]
pub struct RequestInputs<'a> {
    /// UID of the object.
    pub uid: &'a str,
    /// The current or last run.
    pub current: Option<&'a CurrentRun>,
    /// What the next run would be started with; `None` if the spec is invalid.
    pub next: Option<&'a FrozenRun>,
    /// The newest state of the aggregator.
    pub state: Option<&'a RunStatus>,
    /// The workers that cannot take part now.
    pub unavailable: BTreeMap<String, WorkerProblem>,
    /// The trusted keys of the nodes that have reported one.
    pub keys: BTreeMap<NodeName, KeyPin>,
    /// Whether a node without a key has none: the controller has listened long enough.
    pub is_settled: bool,
    /// What the nodes report of their tasks.
    pub tasks: Vec<(NodeName, Vec<TaskReport>)>,
    /// Whether the spec suspends the run.
    pub is_suspended: bool,
    /// The address at which workers reach the server of an engine, as `host:port`.
    pub session_address: Option<&'a str>,
    /// Digests of the weights to keep.
    pub keep: Vec<String>,
}

/// What to send to the aggregator; `None` while nothing is to be sent.
pub fn request(inputs: RequestInputs) -> Option<RunRequest> {
    let current = inputs.current?;
    let has_run = inputs.state.is_some_and(|state| state.run == current.number);
    // An aggregator that lost its files would repeat a run that is over, or one that the status
    // has rounds of.
    if (current.was_accepted || current.is_over) && !has_run {
        return None;
    }
    let nodes = current.frozen.nodes();
    let keys: BTreeMap<_, _> =
        inputs.keys.into_iter().filter(|(node, _)| nodes.contains(node)).collect();
    // The retained messages of the nodes come within a moment after a start.
    if keys.len() < nodes.len() && !inputs.is_settled {
        return None;
    }
    let failed = if current.is_over { Vec::new() } else { failed(inputs.state, &inputs.tasks) };
    let session = current.frozen.session.as_ref().and(inputs.session_address);
    let session_host = session.and_then(|it| Some(it.rsplit_once(':')?.0));
    Some(RunRequest {
        uid: inputs.uid.to_owned(),
        run: current.number,
        settings: current.settings(inputs.next),
        nodes: keys,
        failed,
        unavailable: inputs.unavailable,
        suspended: inputs.is_suspended && !current.is_over || current.is_stopped,
        keep: inputs.keep,
        session_host: session_host.map(str::to_owned),
    })
}

/// The open tasks that a node has given up.
fn failed(state: Option<&RunStatus>, tasks: &[(NodeName, Vec<TaskReport>)]) -> Vec<FailedTask> {
    let open = state.into_iter().flat_map(|state| &state.tasks);
    let failed = open.filter_map(|task| {
        let (_, reports) = tasks.iter().find(|(node, _)| *node == task.node)?;
        let report = reports.iter().find(|report| report.id == task.id)?;
        let is_over = matches!(report.state, TaskState::Failed | TaskState::Refused);
        is_over.then(|| FailedTask {
            id: task.id.clone(),
            reason: reason(report).to_string(),
            message: report.message.clone(),
            is_refused: report.state == TaskState::Refused,
        })
    });
    let mut failed: Vec<_> = failed.collect();
    failed.sort_by(|a, b| a.id.cmp(&b.id));
    failed
}

/// Why a task does not progress, or failed.
pub fn reason(report: &TaskReport) -> Reason {
    let given = report.reason.filter(|reason| *reason != TrainingReason::Unknown);
    given.map_or(Reason::TrainingFailed, Reason::from)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::{TaskId, aggregator::RunPhase};

    use super::*;
    use crate::training_model::fixtures::{UID, current, frozen, state};

    #[test]
    fn request_waits_for_keys_and_never_repeats_a_run_that_was_lost() {
        let frozen = frozen();
        let keys: BTreeMap<NodeName, KeyPin> = ["edge0", "edge1", "edge2", "edge3"]
            .map(|node| (node.parse().unwrap(), KeyPin(format!("pin of {node}"))))
            .into();
        let (open, empty) = (state(1, RunPhase::Open), state(0, RunPhase::Preparing));
        let sent = |accepted: bool,
                    over: bool,
                    state: Option<&RunStatus>,
                    keys: &BTreeMap<_, _>,
                    settled| {
            let mut current = current(&frozen);
            (current.was_accepted, current.is_over) = (accepted, over);
            request(RequestInputs {
                session_address: None,
                uid: UID,
                current: Some(&current),
                next: None,
                state,
                unavailable: BTreeMap::new(),
                keys: keys.clone(),
                is_settled: settled,
                tasks: Vec::new(),
                is_suspended: false,
                keep: vec!["k".to_owned()],
            })
        };
        let first = sent(false, false, Some(&empty), &keys, false).unwrap();
        assert_eq!(first.nodes.len(), 3, "nodes of other objects are not trusted");
        assert_eq!((first.run, &first.settings), (1, &frozen.settings));
        assert_eq!(
            sent(false, false, None, &keys, false),
            Some(first.clone()),
            "the state is not needed"
        );
        assert_eq!(sent(true, false, None, &keys, true), None, "it may have lost its files");
        assert_eq!(sent(true, false, Some(&empty), &keys, true), None, "it has");
        assert_eq!(sent(true, false, Some(&open), &keys, true), Some(first.clone()));
        assert_eq!(sent(false, true, Some(&empty), &keys, true), None, "it is over");
        let some = [keys.iter().next().map(|(a, b)| (a.clone(), b.clone())).unwrap()].into();
        assert_eq!(sent(false, false, Some(&empty), &some, false), None);
        assert_eq!(sent(false, false, Some(&empty), &some, true).unwrap().nodes.len(), 1);
    }

    #[test]
    fn tasks_that_a_node_gave_up_are_sent_once_they_are_open() {
        let report = |id: &str, state: TaskState| TaskReport {
            worker: "a".to_owned(),
            id: TaskId(id.to_owned()),
            round: 2,
            state,
            reason: Some(TrainingReason::ScriptFailed),
            message: "exit code 1".to_owned(),
            failures: 3,
            uploaded_bytes: None,
            update_bytes: None,
        };
        let current = current(&frozen());
        let tasks = vec![
            (
                "edge0".parse().unwrap(),
                vec![report("t-a", TaskState::Failed), report("old", TaskState::Failed)],
            ),
            ("edge1".parse().unwrap(), vec![report("t-b", TaskState::Training)]),
            // The task of another node.
            ("edge2".parse().unwrap(), vec![report("t-b", TaskState::Failed)]),
        ];
        let open = state(1, RunPhase::Open);
        let sent = request(RequestInputs {
            session_address: None,
            uid: UID,
            current: Some(&current),
            next: None,
            state: Some(&open),
            unavailable: BTreeMap::new(),
            keys: BTreeMap::new(),
            is_settled: true,
            tasks,
            is_suspended: false,
            keep: Vec::new(),
        });
        let failed = sent.unwrap().failed;
        assert!(!failed[0].is_refused);
        let failed: Vec<_> =
            failed.iter().map(|it| (&*it.id.0, &*it.reason, &*it.message)).collect();
        assert_eq!(failed, [("t-a", "ScriptFailed", "exit code 1")]);
    }
}
