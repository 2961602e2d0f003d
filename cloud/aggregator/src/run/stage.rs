//! The parts of a run's state: where it is, and what its tasks are worth.

use neptune_aggregate::close::CloseRecord;
use neptune_wire::{
    ContentReference, TaskId,
    aggregator::{RoundWorker, UpdateReport},
};
use serde::{Deserialize, Serialize};

use super::UnixSeconds;

/// Where a run is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Stage {
    /// Nothing has begun.
    New,
    /// The first weights are downloaded, or searched.
    FetchingInitial,
    /// A worker makes the first weights.
    Initializing,
    /// The weights in use are searched, to measure them.
    FindingPresent,
    /// Workers train.
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
    /// Weights are measured.
    Evaluating {
        /// The round whose weights are measured; 0 for those in use.
        round: u32,
        /// The weights.
        weights: ContentReference,
        /// From 1.
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
    /// When it was opened.
    pub opened: UnixSeconds,
    /// When its deadline began, again after each round timeout with too few updates.
    pub waiting_since: UnixSeconds,
    /// How often its deadline began again.
    #[serde(default)]
    pub repetitions: u32,
    /// Since when it has enough updates, and those of workers with most of the samples.
    #[serde(default)]
    pub enough_since: Option<UnixSeconds>,
    /// Since when it cannot have enough updates any more.
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
    /// As in the [`RoundRecord`](neptune_wire::aggregator::RoundRecord).
    #[serde(default)]
    pub dataset_samples: u64,
    /// As in the [`RoundRecord`](neptune_wire::aggregator::RoundRecord).
    #[serde(default)]
    pub missing_samples: u64,
    /// What each worker contributed.
    #[serde(default)]
    pub workers: Vec<RoundWorker>,
    /// The digests of the first computation. Later ones must agree.
    pub outputs: Option<Outputs>,
}

/// What an aggregation computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outputs {
    /// The new weights.
    pub weights: ContentReference,
    /// The momentum for the next round.
    pub velocity: Option<ContentReference>,
}

/// The result of a worker's task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskResult {
    /// Name of the worker.
    pub worker: String,
    /// The task.
    pub task: TaskId,
    /// What it is worth.
    pub verdict: Verdict,
}

/// What a result is worth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Verdict {
    /// It counts.
    Accepted(AcceptedUpdate),
    /// It does not, and never will.
    Refused {
        /// SHA-256 of the update.
        sha256: String,
        /// What the agent reported with it.
        report: UpdateReport,
        /// Why.
        problem: Problem,
    },
    /// There is none: the containers failed too often.
    Failed(Problem),
}

/// An update that counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AcceptedUpdate {
    /// The file.
    pub content: ContentReference,
    /// What the agent reported with it.
    pub report: UpdateReport,
    /// The norm of its difference to the base; 0 for first weights.
    pub norm: f64,
}

/// A reason and a text, as in a condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// CamelCase.
    pub reason: String,
    /// Human-readable.
    pub message: String,
}

impl Problem {
    /// Makes a problem.
    pub fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into() }
    }
}
