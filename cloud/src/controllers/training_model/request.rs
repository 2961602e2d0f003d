//! What the aggregator is asked for: the run, the keys of the nodes, and the tasks that failed. Pure.

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
    /// `host:port` at which workers reach the server of an engine.
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
