//! What happens to a run, what it wants done, and why an event changes nothing.

use neptune_aggregate::close::CloseRecord;
use neptune_wire::{
    ContentReference, TaskId,
    aggregator::{InitialWeights, RunRequest, UpdateReport},
};

use super::{Outputs, Problem, TaskResult};

/// What happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// The controller sent the desired state of this run.
    Request(Box<RunRequest>),
    /// Time passed.
    Tick,
    /// [`Work::Fetch`] ended.
    Fetched(Result<ContentReference, FetchFailure>),
    /// An update was checked.
    Judged(TaskResult),
    /// [`Work::Aggregate`] computed its outputs. They are not stored by their digests yet.
    Computed(Outputs),
    /// The outputs are stored by their digests.
    Stored,
    /// [`Work::Aggregate`] failed, and is repeated.
    Delayed(Problem),
    /// [`Work::Aggregate`] can never succeed.
    Impossible(Problem),
    /// An evaluation reported its metrics.
    Evaluated {
        /// The task.
        task: TaskId,
        /// Its result.
        report: UpdateReport,
    },
}

/// Why a file is not here.
#[derive(Debug, Clone)]
pub struct FetchFailure {
    /// Human-readable.
    pub message: String,
    /// Whether another attempt cannot help.
    pub is_permanent: bool,
}

/// What to do next besides waiting for results.
#[derive(Debug, Clone, PartialEq)]
pub enum Work {
    /// Download weights, or search them among the contents; report [`Event::Fetched`].
    Fetch(InitialWeights),
    /// Compute new weights; report [`Event::Computed`], store the files, report [`Event::Stored`].
    Aggregate {
        /// The record of the round.
        record: CloseRecord,
        /// The weights that the round began with.
        base: ContentReference,
        /// The momentum after the round before.
        velocity: Option<ContentReference>,
        /// The round.
        round: u32,
    },
}

/// Why an event changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The request is not meaningful.
    #[error("{0}")]
    Invalid(String),
    /// The request is for another object.
    #[error("this aggregator serves the TrainingModel with UID {0}; use another data directory")]
    OtherTrainingModel(String),
    /// The request is for an earlier run.
    #[error("run {requested} has ended; the current run is {current}")]
    RunEnded {
        /// The number in the request.
        requested: u32,
        /// The number of the current run.
        current: u32,
    },
    /// The request changes what the run depends on.
    #[error("the running run keeps its settings; the next run takes the new ones")]
    RunChanged,
    /// The task is not open.
    #[error("the task is not open: its round is closed, or it belongs to another run")]
    RoundClosed,
    /// The update has no report yet.
    #[error("the report of the update is missing: send PUT .../report before the last block")]
    ReportMissing,
    /// The task has another result.
    #[error("another update of this task was accepted, with SHA-256 {0}")]
    OtherUpdateAccepted(String),
}
