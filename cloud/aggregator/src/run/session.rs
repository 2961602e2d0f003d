//! Sessions: an engine decides the rounds. Which attempt of its server runs, and what the run has when
//! it ends.

use std::mem;

use neptune_wire::{
    ContentReference,
    aggregator::{MeasuredWeights, RoundRecord},
};
use serde::{Deserialize, Serialize};

use super::{
    MAX_HISTORY, Problem, Run, SessionAttempt, SessionRound, SessionStart, Stage, UnixSeconds,
    Verdict, Work,
};

/// The attempts of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempts {
    /// How often the server was started.
    pub attempt: u32,
    /// How often it failed.
    failures: u32,
    /// Why it failed last.
    problem: Option<Problem>,
}

impl Run {
    /// Begins the next attempt with all workers. Nothing of the rounds before it counts.
    pub(super) fn open_session(&mut self, now: UnixSeconds) {
        self.attempts.attempt += 1;
        self.round = 0;
        self.history.clear();
        self.results.clear();
        self.selected = self.settings.workers.keys().cloned().collect();
        self.enter(Stage::Session { is_ready: false, since: now });
        self.problem = Some(self.attempts.problem.clone().unwrap_or_else(|| {
            let message = "the server of the session is started";
            Problem::new("WaitingForAggregator", message)
        }));
    }

    /// Returns what to do for a session.
    pub(super) fn session_work(&self, is_ready: bool) -> Option<Work> {
        let session = self.settings.session.as_ref()?;
        let attempt = SessionAttempt { run: self.number, attempt: self.attempts.attempt };
        if is_ready {
            return Some(Work::WatchSession(attempt));
        }
        Some(Work::StartSession(SessionStart {
            attempt,
            server: session.server.clone(),
            // Without one, the controller sends it as soon as the address is known.
            host: self.session_host.clone()?,
            base: self.base.clone(),
            rounds: self.settings.rounds,
            workers: self.settings.workers.len(),
            seed: self.settings.seed,
        }))
    }

    pub(super) fn on_session_started(&mut self, base: Option<ContentReference>, now: UnixSeconds) {
        if let Stage::Session { is_ready: false, .. } = self.stage {
            self.base = base;
            self.stage = Stage::Session { is_ready: true, since: now };
            self.problem.clone_from(&self.attempts.problem);
        }
    }

    /// Records rounds of the current attempt. A round that is reported again keeps its duration.
    pub(super) fn on_session_progress(
        &mut self,
        rounds: Vec<SessionRound>,
        problem: Option<Problem>,
        now: UnixSeconds,
    ) {
        let Stage::Session { is_ready: true, since } = &mut self.stage else { return };
        let known = mem::take(&mut self.history);
        for round in rounds {
            let held = known.iter().find(|it| it.round == round.round);
            let seconds = held.map_or(now.saturating_sub(*since), |it| it.seconds);
            if held.is_none() {
                *since = now;
            }
            self.history.push(RoundRecord {
                round: round.round,
                participants: round.participants,
                samples: 0,
                dataset_samples: 0,
                missing_samples: 0,
                loss: round.loss,
                metrics: round.metrics,
                seconds,
                weights: None,
                workers: Vec::new(),
                omitted_workers: 0,
            });
        }
        let excess = self.history.len().saturating_sub(MAX_HISTORY);
        self.history.drain(..excess);
        self.round = self.history.last().map_or(0, |it| it.round);
        self.problem = problem.or_else(|| self.attempts.problem.clone());
    }

    pub(super) fn on_session_ended(&mut self, result: Result<ContentReference, Problem>) {
        let Stage::Session { is_ready: true, .. } = self.stage else { return };
        match result {
            Ok(weights) => {
                let metrics = self.last_round().map(|it| it.metrics.clone()).unwrap_or_default();
                self.base = Some(weights.clone());
                self.best = Some(MeasuredWeights { round: self.round, weights, metrics });
                self.succeed(None);
            }
            Err(problem) => self.fail_attempt(problem),
        }
    }

    /// Ends the attempt if too few workers are left: an engine may wait for them indefinitely.
    pub(super) fn check_session_workers(&mut self) {
        let failed = self.results.iter().filter_map(|(worker, it)| match &it.verdict {
            Verdict::Failed(problem) => Some((worker, problem)),
            _ => None,
        });
        let failed: Vec<_> = failed.collect();
        let left = self.selected.len().saturating_sub(failed.len());
        if left >= self.fewest(&[]) {
            return;
        }
        let Some((_, Problem { reason, .. })) = failed.first() else { return };
        let mut parts = vec![format!("{left} of at least {} workers are left", self.fewest(&[]))];
        parts.extend(failed.iter().map(|(name, it)| format!("worker \"{name}\" {}", it.message)));
        self.fail_attempt(Problem::new(&reason.clone(), parts.join("; ")));
    }

    /// Lets the next attempt begin, or ends the run.
    fn fail_attempt(&mut self, problem: Problem) {
        let limit = self.settings.session.as_ref().map_or(0, |it| it.backoff_limit);
        let Attempts { attempt, failures, .. } = &mut self.attempts;
        *failures = failures.saturating_add(1);
        let what = format!("attempt {attempt}: {}", problem.message);
        if *failures > limit {
            let message =
                format!("{what}; the session failed {failures} times (backoffLimit {limit})");
            return self.fail(Problem { reason: problem.reason, message });
        }
        let message = format!(
            "{what}; attempt {} begins with the newest weights (failure {failures}, backoffLimit {limit})",
            *attempt + 1
        );
        self.attempts.problem = Some(Problem { reason: problem.reason, message });
        self.enter(Stage::Idle);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use neptune_wire::{
        ContentHash, TaskKind,
        aggregator::{ResultState, RunPhase, RunRequest, SessionSettings},
    };

    use super::*;
    use crate::run::{
        Event,
        tests::{content, failed, task_of},
    };

    fn request(backoff_limit: u32) -> RunRequest {
        let mut request = crate::run::tests::request(&["a", "b"]);
        let server = ContentHash::compute(&"server");
        request.settings.initial = None;
        request.settings.session = Some(SessionSettings { server, backoff_limit });
        request.session_host = Some("h".to_owned());
        request
    }

    fn attempt_of(run: &Run) -> u32 {
        let Some(Work::WatchSession(attempt)) = run.work() else { panic!("{run:?}") };
        attempt.attempt
    }

    fn next(run: &Run, event: Event, now: UnixSeconds) -> Run {
        run.next(event, now).unwrap()
    }

    fn begun(backoff_limit: u32) -> Run {
        let run = Run::start(request(backoff_limit), 10).unwrap();
        assert!(matches!(run.work(), Some(Work::StartSession(_))), "{run:?}");
        assert_eq!((run.phase(), run.open_tasks().len()), (RunPhase::Preparing, 0));
        next(&run, Event::SessionStarted(None), 20)
    }

    fn progress(run: &Run, rounds: &[u32], now: UnixSeconds) -> Run {
        let round = |round: &u32| SessionRound {
            round: *round,
            participants: 2,
            loss: Some(0.5),
            metrics: Vec::new(),
        };
        next(run, Event::SessionProgress(rounds.iter().map(round).collect(), None), now)
    }

    fn fails(run: &Run, now: UnixSeconds) -> Run {
        let problem = Problem::new("ScriptFailed", "the server ended with exit code 137");
        next(run, Event::SessionEnded(Err(problem)), now)
    }

    #[test]
    fn session_that_ends_with_weights_succeeds() {
        let run = begun(3);
        let tasks = run.open_tasks();
        assert!(tasks.iter().all(|it| it.kind == TaskKind::Session && it.round == 1), "{tasks:?}");
        let run = progress(&progress(&run, &[1], 25), &[1, 2], 32);
        assert_eq!((run.phase(), run.round), (RunPhase::Open, 2));
        let seconds: Vec<_> = run.history.iter().map(|it| it.seconds).collect();
        assert_eq!(seconds, [5, 7]);
        let run = next(&run, Event::SessionEnded(Ok(content("last"))), 40);
        let status = run.status(1);
        assert_eq!((status.phase, status.reason), (RunPhase::Succeeded, None));
        let best = status.best.unwrap();
        assert_eq!((best.round, best.weights), (2, content("last")));
        assert_eq!((status.tasks.len(), run.work()), (0, None));
        assert!(run.is_published(&content("last").sha256));
    }

    #[test]
    fn killed_server_begins_again_with_the_newest_weights() {
        let first = progress(&begun(3), &[1], 25);
        let task = task_of(&first, "a").id;
        let run = fails(&first, 30);
        let Some(Work::StartSession(start)) = run.work() else { panic!("{run:?}") };
        assert_eq!((start.attempt.attempt, start.workers), (2, 2));
        assert_eq!((run.round, run.open_tasks().len()), (0, 0));
        // Files of the attempt before do not count.
        assert_eq!(progress(&run, &[1, 2], 31), run);
        assert_eq!(fails(&run, 31), run);
        let run = next(&run, Event::SessionStarted(Some(content("checkpoint"))), 32);
        assert_eq!(attempt_of(&run), 2);
        let again = task_of(&run, "a");
        assert_ne!(again.id, task, "the agents begin other containers");
        assert_eq!(again.base, Some(content("checkpoint")));
        assert!(run.is_readable_by_nodes(&content("checkpoint").sha256));
        let text = &run.problem().unwrap().message;
        assert!(text.starts_with("attempt 1: the server ended with exit code 137; "), "{text}");
        let run = next(&progress(&run, &[1, 2], 40), Event::SessionEnded(Ok(content("w"))), 50);
        assert_eq!((run.phase(), run.problem()), (RunPhase::Succeeded, None));
    }

    #[test]
    fn server_that_fails_too_often_fails_the_run() {
        let run = fails(&begun(1), 30);
        let run = fails(&next(&run, Event::SessionStarted(None), 31), 32);
        assert_eq!(run.phase(), RunPhase::Failed);
        let problem = run.problem().unwrap();
        assert_eq!(problem.reason, "ScriptFailed");
        assert!(problem.message.contains("failed 2 times (backoffLimit 1)"), "{problem:?}");
    }

    #[test]
    fn worker_that_has_failed_ends_the_attempt_if_too_few_are_left() {
        let mut request = request(3);
        request.settings.min_workers = Some(1);
        let run = next(&Run::start(request.clone(), 1).unwrap(), Event::SessionStarted(None), 2);
        let one = failed(&run, request.clone(), "a", 3);
        assert_eq!(attempt_of(&one), 1);
        assert_eq!(one.status(1).workers["a"].state, ResultState::Failed);
        let both = failed(&one, request, "b", 4);
        assert!(matches!(both.work(), Some(Work::StartSession(_))), "{both:?}");
        let text = &both.problem().unwrap().message;
        assert!(text.contains("worker \"a\" script ended"), "{text}");
    }

    #[test]
    fn suspended_session_stops_and_continues_without_a_failure() {
        let (run, request) = (begun(0), request(0));
        let suspended = RunRequest { suspended: true, ..request.clone() };
        let run = next(&run, Event::Request(Box::new(suspended)), 30);
        assert_eq!((run.phase(), run.work()), (RunPhase::Suspended, None));
        assert_eq!(run.open_tasks(), []);
        let run = next(&run, Event::Request(Box::new(request)), 40);
        let run = next(&run, Event::SessionStarted(None), 41);
        assert_eq!((attempt_of(&run), run.problem()), (2, None));
    }

    #[test]
    fn session_waits_for_its_address_and_has_no_evaluation() {
        let without = RunRequest { session_host: None, ..request(0) };
        let run = Run::start(without, 1).unwrap();
        assert_eq!(run.work(), None);
        let run = next(&run, Event::Request(Box::new(request(0))), 2);
        assert!(matches!(run.work(), Some(Work::StartSession(_))), "{run:?}");
        let mut evaluated = request(0);
        let stop =
            neptune_wire::aggregator::EarlyStop { patience: 1, min_delta: 0.0, target: None };
        evaluated.settings.early_stop = Some(stop);
        assert!(Run::start(evaluated, 1).is_err());
    }
}
