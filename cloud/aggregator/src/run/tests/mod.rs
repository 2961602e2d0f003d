//! Tables of states and events, without files and clocks.

#![allow(clippy::unwrap_used, clippy::panic)]

mod evaluations;
mod properties;
mod rounds;
mod rows;
mod workers;

use neptune_wire::{
    Metric, TaskKind,
    aggregator::{
        EarlyStop, FailedTask, OnTooFewWorkers, ResultState, RunEvaluation, RunPhase, RunTask,
        RunWorker, UpdateReport,
    },
    fixtures::run_request,
};

use super::*;

pub(super) fn sha(text: &str) -> String {
    neptune_content::Digest::of_bytes(text.as_bytes()).to_string()
}

pub(super) fn content(text: &str) -> ContentReference {
    ContentReference { sha256: sha(text), bytes: 100 }
}

pub(super) fn request(workers: &[&str]) -> RunRequest {
    let worker = |name: &&str| {
        let node = format!("node-{name}").parse().unwrap();
        let dataset = format!("digits-{name}").parse().unwrap();
        ((*name).to_owned(), RunWorker { node, dataset, samples: Some(100) })
    };
    let mut request = run_request(workers.iter().map(worker));
    request.settings.round_timeout_seconds = Some(3600);
    request.settings.initial = Some(InitialWeights { url: None, sha256: sha("initial") });
    request
}

fn evaluated_request(every: u32) -> RunRequest {
    let mut request = request(&["a"]);
    request.settings.rounds = 6;
    request.settings.evaluation = Some(RunEvaluation {
        node: "edge0".parse().unwrap(),
        dataset: "digits-test".parse().unwrap(),
        metric: "accuracy".to_owned(),
        minimize: false,
        every,
        present: None,
    });
    request
}

/// A run whose first weights are here.
fn started(request: RunRequest) -> Run {
    let run = Run::start(request, 1000).unwrap();
    assert!(matches!(run.work(), Some(Work::Fetch(_))), "{run:?}");
    run.next(Event::Fetched(Ok(content("initial"))), 1000).unwrap()
}

pub(super) fn task_of(run: &Run, worker: &str) -> RunTask {
    let tasks = run.open_tasks();
    tasks.into_iter().find(|it| it.worker == worker).unwrap_or_else(|| panic!("{worker}: {run:?}"))
}

fn accepted(run: &Run, worker: &str, norm: f64) -> Event {
    let RunTask { id: task, worker, .. } = task_of(run, worker);
    let report = UpdateReport { samples: 10, loss: Some(0.5), seconds: 3, ..Default::default() };
    let update = content(&format!("{worker} {}", run.round));
    let verdict = Verdict::Accepted(AcceptedUpdate { content: update, report, norm });
    Event::Judged(TaskResult { worker, task, verdict })
}

fn accept(run: &Run, worker: &str, now: UnixSeconds) -> Run {
    run.next(accepted(run, worker, 1.0), now).unwrap()
}

/// Completes the aggregation of the current round.
fn aggregate(run: &Run, now: UnixSeconds) -> Run {
    assert!(matches!(run.work(), Some(Work::Aggregate { .. })), "{run:?}");
    let outputs = Outputs { weights: content(&format!("round {}", run.round)), velocity: None };
    run.next(Event::Computed(outputs), now).unwrap().next(Event::Stored, now).unwrap()
}

pub(super) fn failed(run: &Run, mut request: RunRequest, worker: &str, now: UnixSeconds) -> Run {
    let id = task_of(run, worker).id;
    let message = "script ended with exit code 1".to_owned();
    let reason = "ScriptFailed".to_owned();
    request.failed = vec![FailedTask { id, reason, message, is_refused: false }];
    run.next(Event::Request(Box::new(request)), now).unwrap()
}

fn evaluate(run: &Run, value: &str) -> Run {
    let task = task_of(run, "").id;
    let metrics = vec![Metric { key: "accuracy".to_owned(), value: value.to_owned() }];
    let report = UpdateReport { metrics, ..Default::default() };
    run.next(Event::Evaluated { task, report }, 2000).unwrap()
}

/// Trains one round of an evaluated run with the worker "a", up to its evaluation.
fn trained(run: &Run) -> Run {
    aggregate(&accept(run, "a", 1500), 1500)
}

fn reason(run: &Run) -> String {
    run.status(0).reason.unwrap_or_default()
}

fn refused(run: &Run, worker: &str, now: UnixSeconds) -> Run {
    let RunTask { id: task, worker, .. } = task_of(run, worker);
    let (report, problem) = (UpdateReport::default(), Problem::new("NotFinite", "sent NaN"));
    let verdict = Verdict::Refused { sha256: sha("nan"), report, problem };
    run.next(Event::Judged(TaskResult { worker, task, verdict }), now).unwrap()
}
