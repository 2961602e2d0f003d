//! The rows of the workers in the status, from the aggregator's state and the nodes' reports.

use std::collections::BTreeMap;

use neptune_api::{TrainingWorkerState, TrainingWorkerStatus};
use neptune_wire::{
    NodeName, TaskKind, TaskReport, TaskState,
    aggregator::{ResultState, RunStatus, RunTask, RunWorker, WorkerResult},
};

use super::request::reason;
use crate::{
    exceptions::shortened,
    finding::Finding,
    fleet::{
        Presence,
        observed::{AgentMessages, AgentState, missing_report},
    },
    nodes::keys::NodeKey,
    reason::Reason,
};

/// The most rows of the status.
const MAX_ROWS: usize = 64;

/// The maximum length of a message in a row, in characters.
const MAX_MESSAGE: usize = 512;

/// What is known of a node of the run.
#[derive(Debug, Clone)]
pub struct TrainingNode {
    /// Whether the node's agent is connected, and had time to report.
    pub agent: AgentState,
    /// The key that its agent reports.
    pub key: NodeKey,
    /// Whether its agent cannot run the workers of an engine.
    pub lacks_sessions: bool,
    /// What it lacks of what the tasks need.
    pub unmet: Option<Finding>,
    /// What it reports of its tasks.
    pub tasks: Vec<TaskReport>,
}

/// The rows of all workers, those with a problem first.
pub fn rows(
    workers: &BTreeMap<String, RunWorker>,
    state: &RunStatus,
    nodes: &BTreeMap<NodeName, TrainingNode>,
) -> Vec<TrainingWorkerStatus> {
    let mut rows: Vec<_> =
        workers.iter().map(|(name, worker)| row(name, worker, state, nodes)).collect();
    rows.sort_by_key(|row| !has_problem(row));
    rows.truncate(MAX_ROWS);
    rows
}

/// The problem of the node that measures weights, if it has an open task.
pub fn evaluation_problem(
    state: &RunStatus,
    nodes: &BTreeMap<NodeName, TrainingNode>,
) -> Option<Finding> {
    let task = state.tasks.iter().find(|task| task.worker.is_empty())?;
    let (_, finding) = of_node(task, nodes);
    let problem = finding.filter(|it| !it.reason.is_progress())?;
    let message = format!("evaluation on node {}: {}", task.node, problem.message);
    Some(Finding::new(problem.reason, message))
}

/// The first problem of a worker.
pub fn problem(rows: &[TrainingWorkerStatus]) -> Option<Finding> {
    let row = rows.iter().find(|row| has_problem(row))?;
    let reason = reason_of(row)?;
    let message = row.message.as_deref().unwrap_or_default();
    Some(Finding::new(reason, format!("worker {:?} on node {}: {message}", row.name, row.node)))
}

/// Whether a row needs attention: its reason is more than a normal step.
fn has_problem(row: &TrainingWorkerStatus) -> bool {
    reason_of(row).is_some_and(|reason| !reason.is_progress())
}

fn reason_of(row: &TrainingWorkerStatus) -> Option<Reason> {
    Some(row.reason.as_deref()?.parse().unwrap_or(Reason::TrainingFailed))
}

/// The number of accepted updates, of those of all workers that take part.
pub fn participants(state: &RunStatus, workers: usize) -> String {
    let count = |wanted| state.workers.values().filter(|result| result.state == wanted).count();
    let all = workers.saturating_sub(count(ResultState::Excluded));
    // An engine reports how many took part in its last round.
    let of_engine = state.session.is_some().then(|| state.history.last());
    let accepted = match of_engine.flatten() {
        Some(round) => usize::try_from(round.participants).unwrap_or(all).min(all),
        None => count(ResultState::Accepted),
    };
    format!("{accepted}/{all}")
}

fn row(
    name: &str,
    worker: &RunWorker,
    state: &RunStatus,
    nodes: &BTreeMap<NodeName, TrainingNode>,
) -> TrainingWorkerStatus {
    let result = state.workers.get(name);
    let task = state.tasks.iter().find(|task| task.worker == name);
    let of_node = || task.map_or((TrainingWorkerState::Pending, None), |task| of_node(task, nodes));
    let (row_state, problem) = match result.map(|result| result.state) {
        Some(ResultState::Accepted) => (TrainingWorkerState::Accepted, of_result(result)),
        Some(ResultState::Refused) => (TrainingWorkerState::Refused, of_result(result)),
        Some(ResultState::Failed) => (TrainingWorkerState::Failed, of_result(result)),
        Some(ResultState::Excluded) => (TrainingWorkerState::Excluded, of_result(result)),
        Some(ResultState::Pending) | None => of_node(),
    };
    let report = result.and_then(|result| result.report.as_ref());
    let samples = report.map(|report| match report.counted_samples {
        Some(counted) => report.samples.min(counted),
        None => report.samples,
    });
    TrainingWorkerStatus {
        name: name.to_owned(),
        node: worker.node.to_string(),
        dataset: worker.dataset.to_string(),
        round: i64::from(state.round),
        state: row_state,
        samples: samples.map(|samples| i64::try_from(samples).unwrap_or(i64::MAX)),
        weight: result.and_then(|result| result.weight).map(decimal),
        loss: report.and_then(|report| report.loss).map(decimal),
        norm: result.and_then(|result| result.norm).map(decimal),
        reason: problem.as_ref().map(|problem| problem.reason.to_string()),
        message: problem.map(|problem| shortened(&problem.message, MAX_MESSAGE)),
    }
}

/// Why a result does not count, or counts less.
fn of_result(result: Option<&WorkerResult>) -> Option<Finding> {
    let result = result?;
    let reason = result.reason.as_ref()?;
    Some(Finding::new(reason.parse().unwrap_or(Reason::TrainingFailed), &*result.message))
}

/// The state of an open task, by its node.
fn of_node(
    task: &RunTask,
    nodes: &BTreeMap<NodeName, TrainingNode>,
) -> (TrainingWorkerState, Option<Finding>) {
    let meanwhile = "the round waits for it until its deadline".to_owned();
    let messages = AgentMessages::new("", &task.node, "report on the task", meanwhile);
    let unknown = AgentState { presence: Presence::NeverSeen, settled: false };
    let agent = nodes.get(&task.node).map_or(unknown, |node| node.agent);
    let missing = || Some(missing_report(agent, &messages));
    let node = match (agent.presence, nodes.get(&task.node)) {
        (Presence::Online, Some(node)) => node,
        (Presence::NeverSeen, _) if !agent.settled => {
            return (TrainingWorkerState::Pending, missing());
        }
        _ => return (TrainingWorkerState::Offline, missing()),
    };
    if task.kind == TaskKind::Session && node.lacks_sessions {
        let message = format!(
            "the agent of node {} is too old for strategy Worker; upgrade neptune-edge on it",
            task.node
        );
        let finding = Finding::new(Reason::AgentTooOld, message);
        return (TrainingWorkerState::Pending, Some(finding));
    }
    if let Some(finding) = &node.unmet {
        return (TrainingWorkerState::Pending, Some(finding.clone()));
    }
    let key_problem = of_key(&task.node, &node.key);
    let Some(report) = node.tasks.iter().find(|report| report.id == task.id) else {
        return (TrainingWorkerState::Pending, key_problem.or_else(missing));
    };
    let row_state = match report.state {
        TaskState::Preparing => TrainingWorkerState::Preparing,
        TaskState::Training => TrainingWorkerState::Training,
        TaskState::Verifying => TrainingWorkerState::Verifying,
        // Its container ended with exit code 0.
        TaskState::Accepted if task.kind == TaskKind::Session => TrainingWorkerState::Accepted,
        // Accepted: the aggregator's state follows in a moment.
        TaskState::Uploading | TaskState::Accepted => TrainingWorkerState::Uploading,
        TaskState::Refused => TrainingWorkerState::Refused,
        TaskState::Failed => TrainingWorkerState::Failed,
    };
    let is_problem = report.reason.is_some()
        || matches!(row_state, TrainingWorkerState::Refused | TrainingWorkerState::Failed);
    let of_report = || is_problem.then(|| Finding::new(reason(report), &*report.message));
    (row_state, key_problem.or_else(of_report))
}

/// Why the aggregator does not accept the key that a node presents.
fn of_key(name: &NodeName, key: &NodeKey) -> Option<Finding> {
    let (reason, message) = match key {
        NodeKey::Trusted(_) => return None,
        NodeKey::Missing => (
            Reason::AgentTooOld,
            format!(
                "the agent of node {name} has no key: it is too old to train; upgrade neptune-edge on it"
            ),
        ),
        NodeKey::Unknown(reported) => (
            Reason::NodeKeyNotRecorded,
            format!(
                "the key {} of node {name} is not trusted yet; its uploads wait until it is: kubectl neptune trust {name}",
                reported.short()
            ),
        ),
        NodeKey::Changed { trusted, reported } => (
            Reason::NodeKeyChanged,
            format!(
                "the key of node {name} changed from {} to {}; its uploads wait until the new key is trusted: kubectl neptune trust {name}",
                trusted.short(),
                reported.short()
            ),
        ),
    };
    Some(Finding::new(reason, message))
}

/// A number with at most 4 digits after the point.
pub fn decimal(number: f64) -> String {
    if !number.is_finite() {
        return number.to_string();
    }
    let text = format!("{number:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::{KeyPin, aggregator::RunPhase};

    use super::*;
    use crate::training_model::fixtures::{at, frozen, state, worker_result};

    fn training_node(presence: Presence, tasks: Vec<TaskReport>) -> TrainingNode {
        let key = NodeKey::Trusted(KeyPin(format!("sha256:{}", "a".repeat(64))));
        TrainingNode {
            agent: AgentState { presence, settled: true },
            key,
            lacks_sessions: false,
            unmet: None,
            tasks,
        }
    }

    #[test]
    fn rows_have_the_state_of_each_worker_with_problems_first() {
        let frozen = frozen();
        let mut state = state(1, RunPhase::Open);
        state.workers.insert("a".to_owned(), worker_result(ResultState::Accepted));
        state.workers.insert("b-west-1".to_owned(), worker_result(ResultState::Pending));
        state.workers.insert(
            "b-west-2".to_owned(),
            WorkerResult {
                reason: Some("ShapeMismatch".to_owned()),
                message: "tensor \"w1\"".to_owned(),
                ..worker_result(ResultState::Refused)
            },
        );
        let offline = training_node(Presence::Offline { since: at(0) }, Vec::new());
        let nodes = [("edge1".parse().unwrap(), offline)].into();
        let rows = rows(&frozen.settings.workers, &state, &nodes);
        let brief: Vec<_> =
            rows.iter().map(|row| (&*row.name, row.state, row.reason.as_deref())).collect();
        assert_eq!(
            brief,
            [
                ("b-west-1", TrainingWorkerState::Offline, Some("NodeOffline")),
                ("b-west-2", TrainingWorkerState::Refused, Some("ShapeMismatch")),
                ("a", TrainingWorkerState::Accepted, None),
            ]
        );
        assert_eq!(rows[1].message.as_deref(), Some("tensor \"w1\""));
    }

    #[test]
    fn pending_worker_names_whom_it_waits_for_and_is_no_problem() {
        let state = state(1, RunPhase::Open);
        for presence in [Presence::Online, Presence::NeverSeen] {
            let mut node = training_node(presence, Vec::new());
            node.agent.settled = presence == Presence::Online;
            let rows = rows(
                &frozen().settings.workers,
                &state,
                &[("edge1".parse().unwrap(), node)].into(),
            );
            let waiting = rows.iter().find(|row| row.name == "b-west-1").unwrap();
            assert_eq!(
                (waiting.state, waiting.reason.as_deref(), waiting.message.as_deref()),
                (
                    TrainingWorkerState::Pending,
                    Some("AwaitingAgent"),
                    Some("waiting for node edge1 to report on the task")
                )
            );
            assert_eq!(problem(&rows), None);
        }
    }

    #[test]
    fn agent_without_a_key_is_too_old() {
        let state = state(1, RunPhase::Open);
        let old =
            TrainingNode { key: NodeKey::Missing, ..training_node(Presence::Online, Vec::new()) };
        let nodes = [("edge1".parse().unwrap(), old)].into();
        let rows = rows(&frozen().settings.workers, &state, &nodes);
        assert_eq!(rows[0].reason.as_deref(), Some("AgentTooOld"));
        assert!(rows[0].message.as_deref().unwrap().contains("upgrade neptune-edge"));
    }

    #[test]
    fn agent_without_sessions_is_too_old_for_an_engine_only() {
        let mut state = state(1, RunPhase::Open);
        let reason = |state: &RunStatus| {
            let lacking = TrainingNode {
                lacks_sessions: true,
                ..training_node(Presence::Online, Vec::new())
            };
            let nodes = [("edge1".parse().unwrap(), lacking)].into();
            rows(&frozen().settings.workers, state, &nodes)[0].reason.clone()
        };
        assert_eq!(reason(&state).as_deref(), Some("AwaitingAgent"));
        state.tasks.iter_mut().for_each(|task| task.kind = TaskKind::Session);
        assert_eq!(reason(&state).as_deref(), Some("AgentTooOld"));
    }

    #[test]
    fn changed_key_is_named_with_the_command_that_trusts_it() {
        let mut state = state(1, RunPhase::Open);
        state.workers.insert("a".to_owned(), worker_result(ResultState::Accepted));
        let pin = |digit: &str| KeyPin(format!("sha256:{}", digit.repeat(64)));
        let key = NodeKey::Changed { trusted: pin("a"), reported: pin("b") };
        let changed = TrainingNode { key, ..training_node(Presence::Online, Vec::new()) };
        let rows =
            rows(&frozen().settings.workers, &state, &[("edge1".parse().unwrap(), changed)].into());
        let finding = problem(&rows).unwrap();
        assert_eq!(finding.reason, Reason::NodeKeyChanged);
        assert_eq!(
            finding.message,
            "worker \"b-west-1\" on node edge1: the key of node edge1 changed from sha256:aaaaaaaaaaaa to sha256:bbbbbbbbbbbb; its uploads wait until the new key is trusted: kubectl neptune trust edge1"
        );
    }

    #[test]
    fn numbers_have_at_most_four_digits_after_the_point() {
        for (number, text) in [
            (0.25, "0.25"),
            (1.0, "1"),
            (0.123_456, "0.1235"),
            (-0.00001, "0"),
            (1e9, "1000000000"),
        ] {
            assert_eq!(decimal(number), text);
        }
    }
}
