//! The parts of a run's state: where it is, and what its tasks are worth.

use neptune_aggregate::close::CloseRecord;
use neptune_wire::{
    ContentReference, TaskId,
    aggregator::{RoundWorker, UpdateReport},
};
use serde::{Deserialize, Serialize};

use super::UnixSeconds;

/// The stage of a run: what is being done, and what is waited for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Stage {
    /// The run has not begun.
    New,
    /// The first weights are downloaded, or searched.
    FetchingInitial,
    /// A worker makes the first weights.
    Initializing,
    /// The weights in use are searched, to measure them.
    FindingPresent,
    /// The round is open, and the workers train.
    Open(OpenRound),
    /// The new weights are computed.
    Closing(Box<Closing>),
    /// An engine decides the rounds.
    Session {
        /// Whether its server may run, and its workers.
        is_ready: bool,
        /// When the last round ended, or the attempt began.
        since: UnixSeconds,
    },
    /// A worker measures weights with the Dataset of the evaluation.
    Evaluating {
        /// The round whose weights are measured; 0 for those in use.
        round: u32,
        /// The weights that are measured.
        weights: ContentReference,
        /// Number of the attempt to measure them, from 1.
        attempt: u32,
    },
    /// The round is complete and the next one is not open.
    Idle,
    /// All rounds are complete, or the run stopped early.
    Succeeded,
    /// The run failed for good.
    Failed,
}

/// How long a round has waited, and for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRound {
    /// When the round was opened.
    pub opened: UnixSeconds,
    /// When its deadline began, again after each round timeout with too few updates.
    pub waiting_since: UnixSeconds,
    /// How often its deadline began again.
    #[serde(default)]
    pub repetitions: u32,
    /// Since when the round has enough updates, and those of workers with most of the samples.
    #[serde(default)]
    pub enough_since: Option<UnixSeconds>,
    /// Since when the round cannot have enough updates any more.
    #[serde(default)]
    pub hopeless_since: Option<UnixSeconds>,
}

impl OpenRound {
    /// Makes a round that opens now.
    pub(super) fn new(now: UnixSeconds) -> Self {
        Self {
            opened: now,
            waiting_since: now,
            repetitions: 0,
            enough_since: None,
            hopeless_since: None,
        }
    }

    /// Lets its deadline begin now.
    pub(super) fn begin_again(&mut self, now: UnixSeconds) {
        *self = Self { opened: self.opened, repetitions: self.repetitions, ..Self::new(now) };
    }

    /// Records whether it has, or can have, enough updates. After the clock was set back, times count
    /// from now.
    pub(super) fn observe(&mut self, now: UnixSeconds, has_enough: bool, is_hopeless: bool) {
        let since = |is: bool, before: Option<UnixSeconds>| {
            is.then(|| before.map_or(now, |before| before.min(now)))
        };
        self.waiting_since = self.waiting_since.min(now);
        self.enough_since = since(has_enough, self.enough_since);
        self.hopeless_since = since(is_hopeless, self.hopeless_since);
    }
}

/// A round between the decision which updates count and its new weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Closing {
    /// When the round was opened.
    pub opened: UnixSeconds,
    /// All that the new weights depend on.
    pub record: CloseRecord,
    /// Samples of the updates that count.
    pub samples: u64,
    /// Mean of their losses.
    pub loss: Option<f64>,
    /// Samples that the Datasets of all workers of the round had, as in
    /// [`RoundRecord`](neptune_wire::aggregator::RoundRecord).
    #[serde(default)]
    pub dataset_samples: u64,
    /// Samples of the workers whose updates do not count, as in
    /// [`RoundRecord`](neptune_wire::aggregator::RoundRecord).
    #[serde(default)]
    pub missing_samples: u64,
    /// What each worker contributed to the round.
    #[serde(default)]
    pub workers: Vec<RoundWorker>,
    /// The digests of the first computation. Later ones must agree.
    pub outputs: Option<Outputs>,
}

/// The files that an aggregation computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outputs {
    /// The weights after the round.
    pub weights: ContentReference,
    /// The momentum for the next round.
    pub velocity: Option<ContentReference>,
}

/// The result of a worker's task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskResult {
    /// Name of the worker.
    pub worker: String,
    /// ID of the task that the worker had.
    pub task: TaskId,
    /// Whether the result counts, or why it does not.
    pub verdict: Verdict,
}

/// Whether the result of a task counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Verdict {
    /// The update passed all checks and counts.
    Accepted(AcceptedUpdate),
    /// The update failed a check. It does not count, also if it is sent again.
    Refused {
        /// SHA-256 of the update.
        sha256: String,
        /// What the agent reported with it.
        report: UpdateReport,
        /// Which check failed, for the status.
        problem: Problem,
    },
    /// The worker has no update: its containers failed too often.
    Failed(Problem),
}

/// An update that counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AcceptedUpdate {
    /// The file of the update.
    pub content: ContentReference,
    /// What the agent reported with it.
    pub report: UpdateReport,
    /// The norm of its difference to the base; 0 for first weights.
    pub norm: f64,
}

/// A reason and a text, as in a condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The reason in CamelCase, for conditions.
    pub reason: String,
    /// Human-readable text for the status.
    pub message: String,
}

impl Problem {
    /// Makes a problem of a reason in CamelCase and a text.
    pub fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into() }
    }
}
