//! What happens to a run, what it wants done, and why an event changes nothing.

use neptune_aggregate::close::CloseRecord;
use neptune_wire::{
    ContentHash, ContentReference, Metric, TaskId,
    aggregator::{InitialWeights, RunRequest, UpdateReport},
};

use super::{Outputs, Problem, TaskResult};

/// An input of the state machine of a run.
#[derive(Debug, Clone)]
pub enum Event {
    /// The controller sent the desired state of this run.
    Request(Box<RunRequest>),
    /// Time passed, so a deadline may be over.
    Tick,
    /// [`Work::Fetch`] ended, with the reference of the file or why it is not here.
    Fetched(Result<ContentReference, FetchFailure>),
    /// The update of a worker was checked, with this result.
    Judged(TaskResult),
    /// [`Work::Aggregate`] computed its outputs. They are not stored by their digests yet.
    Computed(Outputs),
    /// The outputs are stored by their digests.
    Stored,
    /// [`Work::Aggregate`] failed and is repeated; the problem goes to the status meanwhile.
    Delayed(Problem),
    /// [`Work::Aggregate`] fails at each repetition, so the run ends with this problem.
    Impossible(Problem),
    /// An evaluation reported its metrics.
    Evaluated {
        /// ID of the evaluation task.
        task: TaskId,
        /// The metrics that the worker reports, or its failure.
        report: UpdateReport,
    },
    /// [`Work::StartSession`] ended, with the weights to begin with, if there are any.
    SessionStarted(Option<ContentReference>),
    /// [`Work::WatchSession`] read rounds of the current attempt, and what is wrong with others.
    SessionProgress(Vec<SessionRound>, Option<Problem>),
    /// The server of the current attempt ended: the weights, or why there are none.
    SessionEnded(Result<ContentReference, Problem>),
}

/// A round that the server of a session reported.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRound {
    /// Number of the round, from 1.
    pub round: u32,
    /// Number of workers that took part.
    pub participants: u32,
    /// Loss over these workers; `None` if the server does not know it.
    pub loss: Option<f64>,
    /// Metrics of the server apart from the loss.
    pub metrics: Vec<Metric>,
}

/// Why a file is not here.
#[derive(Debug, Clone)]
pub struct FetchFailure {
    /// Human-readable text for the status of the run.
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
        /// Number of the round, from 1.
        round: u32,
    },
    /// Let the server of a session start; report [`Event::SessionStarted`].
    StartSession(SessionStart),
    /// Read what the server of the session wrote; report [`Event::SessionProgress`] and
    /// [`Event::SessionEnded`].
    WatchSession(SessionAttempt),
}

/// An attempt of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionAttempt {
    /// Number of the run.
    pub run: u32,
    /// Number of the attempt within the run, from 1.
    pub attempt: u32,
}

/// What the server of a session starts with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionStart {
    /// The run and the attempt to start.
    pub attempt: SessionAttempt,
    /// Hash of the container that may run it.
    pub server: ContentHash,
    /// The host name or IP address of its certificate.
    pub host: String,
    /// The weights to begin with, unless the attempt before wrote newer ones.
    pub base: Option<ContentReference>,
    /// Number of rounds of the run.
    pub rounds: u32,
    /// Number of workers that the server waits for.
    pub workers: usize,
    /// Seed of the run.
    pub seed: u64,
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
