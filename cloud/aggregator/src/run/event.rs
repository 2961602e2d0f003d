//! What happens to a run, what it wants done, and why an event changes nothing.

use neptune_aggregate::close::CloseRecord;
use neptune_wire::{
    ContentHash, ContentReference, Metric, TaskId,
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
    /// [`Work::StartSession`] ended. The weights to begin with, if there are any.
    SessionStarted(Option<ContentReference>),
    /// [`Work::WatchSession`] found rounds of the current attempt, and what is wrong with others.
    SessionProgress(Vec<SessionRound>, Option<Problem>),
    /// The server of the current attempt ended: the weights, or why there are none.
    SessionEnded(Result<ContentReference, Problem>),
}

/// A round that the server of a session reported.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRound {
    /// From 1.
    pub round: u32,
    /// Number of workers that took part.
    pub participants: u32,
    /// Their loss, if the server knows it.
    pub loss: Option<f64>,
    /// Other numbers.
    pub metrics: Vec<Metric>,
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
    /// From 1.
    pub attempt: u32,
}

/// What the server of a session starts with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionStart {
    /// The attempt.
    pub attempt: SessionAttempt,
    /// Hash of the container that may run it.
    pub server: ContentHash,
    /// The host name or IP address of its certificate.
    pub host: String,
    /// The weights to begin with, unless the attempt before wrote newer ones.
    pub base: Option<ContentReference>,
    /// Number of rounds.
    pub rounds: u32,
    /// Number of workers.
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
