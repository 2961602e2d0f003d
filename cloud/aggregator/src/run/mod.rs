//! The state machine of a run: a state and an event make a new state. Pure; `now` is a value.
//!
//! Everything that remains to do is a function of the state ([`Run::work`], [`Run::open_tasks`],
//! [`Run::deadline`]), so a restart at any moment continues where the stored state is.
//!
//! # Guarantees
//! - A task has one result: the first one. Repetitions change nothing.
//! - What a round closes with is a part of the state before the aggregation begins.
//! - Deadlines are measured from stored times. A clock that jumps forward by J between two starts
//!   closes a round at most J early; one that jumps back prolongs it by at most one timeout.

mod absence;
mod evaluation;
mod event;
mod request;
mod round;
mod rows;
mod session;
mod stage;
mod status;
mod tasks;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};

use neptune_wire::{
    ContentReference, KeyPin, NodeName, TaskId,
    aggregator::{
        InitialWeights, MeasuredWeights, RoundRecord, RunRequest, RunSettings, WorkerProblem,
    },
};
use serde::{Deserialize, Serialize};

pub use event::{Event, FetchFailure, Rejection, SessionAttempt, SessionRound, SessionStart, Work};
pub use round::credible_samples;
pub use stage::{AcceptedUpdate, Closing, OpenRound, Outputs, Problem, Stage, TaskResult, Verdict};

/// A time in seconds since 1970-01-01 00:00 UTC.
pub type UnixSeconds = u64;

/// Closed rounds that a status lists.
pub const MAX_HISTORY: usize = 100;

/// The state of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// UID of the `TrainingModel`.
    pub uid: String,
    /// Number of the run, from 1.
    pub number: u32,
    /// What the run depends on; frozen.
    pub settings: RunSettings,
    /// The keys of the nodes, of the newest request.
    pub nodes: BTreeMap<NodeName, KeyPin>,
    /// Whether no further round is opened and the open one has no tasks, of the newest request.
    pub suspended: bool,
    /// Digests of published contents, of the newest request.
    pub keep: BTreeSet<String>,
    /// Workers that cannot take part now, of the newest request.
    #[serde(default)]
    unavailable: BTreeMap<String, WorkerProblem>,
    /// Workers whose last results do not count.
    #[serde(default)]
    setbacks: BTreeMap<String, absence::Setback>,
    /// The host of the server of a session, of the newest request.
    #[serde(default)]
    session_host: Option<String>,
    /// The attempts of a session.
    #[serde(default)]
    pub attempts: session::Attempts,
    /// The failed tasks of the newest request. Only those that it adds count.
    reported_failed: BTreeSet<TaskId>,
    /// The stage of the run, with what it waits for.
    pub stage: Stage,
    /// The current round; the last closed one in [`Stage::Idle`].
    pub round: u32,
    /// The weights that the current round begins with.
    pub base: Option<ContentReference>,
    /// The momentum after the last closed round.
    velocity: Option<ContentReference>,
    /// The workers that take part in the current round.
    selected: BTreeSet<String>,
    /// The results of the current round, by worker.
    pub results: BTreeMap<String, TaskResult>,
    /// The accepted updates of the current round whose norm is too large, with the text.
    norm_refused: BTreeMap<String, String>,
    /// The share of each worker in the last round that it took part in.
    shares: BTreeMap<String, f64>,
    history: Vec<RoundRecord>,
    best: Option<MeasuredWeights>,
    present: Option<MeasuredWeights>,
    /// The metric of the last improvement that counts for `earlyStop`.
    improved_to: Option<f64>,
    /// Measured rounds since then.
    unimproved: u32,
    /// The last evaluation task whose result counted.
    pub evaluated: Option<TaskId>,
    /// What prevents progress at this stage, or why the run ended.
    problem: Option<Problem>,
    /// Why the last evaluation has no result.
    evaluation_problem: Option<Problem>,
}

impl Run {
    /// Begins a run.
    ///
    /// # Errors
    /// The request is not meaningful.
    pub fn start(request: RunRequest, now: UnixSeconds) -> Result<Self, Rejection> {
        let request = request::validated(request)?;
        let mut run = Self {
            uid: request.uid,
            number: request.run,
            nodes: request.nodes,
            suspended: request.suspended,
            unavailable: request.unavailable,
            setbacks: BTreeMap::new(),
            keep: request.keep.into_iter().collect(),
            session_host: request.session_host,
            attempts: session::Attempts::default(),
            reported_failed: BTreeSet::new(),
            stage: Stage::New,
            round: 0,
            base: None,
            velocity: None,
            selected: request.settings.workers.keys().cloned().collect(),
            results: BTreeMap::new(),
            norm_refused: BTreeMap::new(),
            shares: BTreeMap::new(),
            history: Vec::new(),
            best: None,
            present: None,
            improved_to: None,
            unimproved: 0,
            evaluated: None,
            problem: None,
            evaluation_problem: None,
            settings: request.settings,
        };
        run.advance(now);
        Ok(run)
    }

    /// Returns the state after an event. An event that comes too late, or again, changes nothing.
    ///
    /// # Errors
    /// The sender of the event has to know that it does not count.
    pub fn next(&self, event: Event, now: UnixSeconds) -> Result<Self, Rejection> {
        let mut run = self.clone();
        match event {
            Event::Request(request) => run.on_request(*request, now)?,
            Event::Fetched(result) => run.on_fetched(result),
            Event::Judged(result) => run.on_judged(result)?,
            Event::Computed(outputs) => run.on_computed(outputs),
            Event::Stored => run.on_stored(now),
            Event::SessionStarted(base) => run.on_session_started(base, now),
            Event::SessionProgress(rounds, problem) => {
                run.on_session_progress(rounds, problem, now);
            }
            Event::SessionEnded(result) => run.on_session_ended(result),
            Event::Delayed(problem)
                if matches!(run.stage, Stage::Closing(_) | Stage::Session { .. }) =>
            {
                run.problem = Some(problem);
            }
            Event::Impossible(problem) if matches!(run.stage, Stage::Closing(_)) => {
                run.fail(problem);
            }
            Event::Tick | Event::Delayed(_) | Event::Impossible(_) => {}
            Event::Evaluated { task, report } => run.on_evaluated(&task, &report)?,
        }
        run.advance(now);
        Ok(run)
    }

    /// Returns what to do next.
    pub fn work(&self) -> Option<Work> {
        match &self.stage {
            Stage::FetchingInitial => self.settings.initial.clone().map(Work::Fetch),
            Stage::FindingPresent => {
                let sha256 = self.settings.evaluation.as_ref()?.present.clone()?;
                Some(Work::Fetch(InitialWeights { url: None, sha256 }))
            }
            Stage::Closing(closing) => Some(Work::Aggregate {
                record: closing.record.clone(),
                base: self.base.clone()?,
                velocity: self.velocity.clone(),
                round: self.round,
            }),
            Stage::Session { is_ready, .. } => self.session_work(*is_ready),
            _ => None,
        }
    }

    /// Whether results of workers can count now.
    pub fn is_accepting(&self) -> bool {
        matches!(self.stage, Stage::Initializing | Stage::Open { .. })
    }

    /// Returns the recorded outputs of the round that closes.
    pub fn outputs(&self) -> Option<&Outputs> {
        match &self.stage {
            Stage::Closing(closing) => closing.outputs.as_ref(),
            _ => None,
        }
    }

    /// Returns the last closed round.
    pub fn last_round(&self) -> Option<&RoundRecord> {
        self.history.last()
    }

    /// Whether the run succeeded or failed.
    pub fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Succeeded | Stage::Failed)
    }

    /// Takes the steps that need no event. Each of them makes the next one impossible or ends at a
    /// stage that waits.
    fn advance(&mut self, now: UnixSeconds) {
        loop {
            match self.stage {
                Stage::New if !self.suspended => {
                    self.enter(match (&self.settings.initial, &self.settings.session) {
                        (Some(_), _) => Stage::FetchingInitial,
                        (None, Some(_)) => Stage::Idle,
                        (None, None) => Stage::Initializing,
                    });
                }
                Stage::Initializing => {
                    self.initialize();
                    if self.stage == Stage::Initializing {
                        return;
                    }
                }
                Stage::Idle if self.settings.session.is_some() && !self.suspended => {
                    self.open_session(now);
                }
                Stage::Idle if self.settings.session.is_some() => return,
                // It cannot wait between two rounds.
                Stage::Session { .. } if self.suspended => self.enter(Stage::Idle),
                Stage::Session { .. } => {
                    self.check_session_workers();
                    if matches!(self.stage, Stage::Session { .. }) {
                        return;
                    }
                }
                Stage::Idle if self.round >= self.settings.rounds => self.succeed(None),
                Stage::Idle if !self.suspended => self.open_round(now),
                Stage::Open { .. } => {
                    self.close_if_due(now);
                    return;
                }
                _ => return,
            }
        }
    }

    fn on_fetched(&mut self, result: Result<ContentReference, FetchFailure>) {
        match (&self.stage, result) {
            (Stage::FetchingInitial, Ok(content)) => self.begin_with(content),
            (Stage::FetchingInitial, Err(failure)) => {
                let problem = Problem::new("DownloadFailed", failure.message);
                if failure.is_permanent { self.fail(problem) } else { self.problem = Some(problem) }
            }
            (Stage::FindingPresent, Ok(weights)) => self.measure(0, weights),
            (Stage::FindingPresent, Err(failure)) => {
                self.evaluation_problem = Some(Problem::new("EvaluationFailed", failure.message));
                self.enter(Stage::Idle);
            }
            _ => {}
        }
    }

    /// Uses the first weights.
    fn begin_with(&mut self, weights: ContentReference) {
        self.base = Some(weights);
        let has_present = self.settings.evaluation.as_ref().is_some_and(|it| it.present.is_some());
        self.enter(if has_present { Stage::FindingPresent } else { Stage::Idle });
    }

    /// Enters a stage at which the problem of the one before does not exist.
    fn enter(&mut self, stage: Stage) {
        self.problem = None;
        self.stage = stage;
    }

    fn fail(&mut self, problem: Problem) {
        self.stage = Stage::Failed;
        self.problem = Some(problem);
    }

    /// Ends the run; `early` is why, if rounds remain.
    fn succeed(&mut self, early: Option<Problem>) {
        self.stage = Stage::Succeeded;
        self.problem = early;
    }
}

#[cfg(test)]
mod tests;
