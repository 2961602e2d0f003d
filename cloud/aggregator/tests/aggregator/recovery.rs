//! Kills between any two steps, repetitions, and any order of arrival: the weights stay the same.

use std::{
    path::Path,
    sync::{Arc, LazyLock},
};

use neptune_aggregator::{
    aggregator::Aggregator,
    judge::judge,
    run::{Event, Outputs, Run, Stage, Work},
    work::{aggregate_round, compute, store},
};
use neptune_content::Digest;
use neptune_wire::{
    ContentReference,
    aggregator::{RunPhase, RunRequest, RunStatus, RunTask},
};
use proptest::prelude::*;

use crate::fixtures::{contents, place, report, request, trained};

fn open(directory: &Path) -> Arc<Aggregator> {
    Arc::new(Aggregator::open(directory).unwrap())
}

fn send(aggregator: &Aggregator, request: &RunRequest) -> Arc<Run> {
    aggregator.apply(Event::Request(Box::new(request.clone()))).unwrap()
}

/// A run with momentum, whose first worker makes the first weights.
fn disturbed_request() -> RunRequest {
    let mut request = request(3, 3);
    request.settings.rule.server_momentum = 0.5;
    request
}

/// Lets a worker finish, and stops after `steps`. Returns whether all were done.
fn deliver(aggregator: &Arc<Aggregator>, task: &RunTask, steps: usize) -> bool {
    let bytes = trained(task);
    let digest = Digest::of_bytes(&bytes);
    let held = aggregator.hold(digest);
    aggregator.save_report(&task.id, &digest.to_string(), &report()).unwrap();
    if steps == 0 {
        return false;
    }
    let sha256 = place(aggregator, &bytes);
    if steps == 1 {
        return false;
    }
    let update = ContentReference { sha256: sha256.clone(), bytes: bytes.len() as u64 };
    let base = task.base.as_ref().map(|it| aggregator.content(&it.sha256).unwrap());
    let path = aggregator.content(&sha256).unwrap();
    let report = aggregator.report(&task.id, &sha256).unwrap().unwrap();
    let result = judge(task, update, report, &path, base.as_deref()).unwrap();
    if steps == 2 {
        return false;
    }
    // A late one is refused, which changes nothing.
    let _ = aggregator.apply(Event::Judged(result));
    drop(held);
    true
}

/// Aggregates, and stops after `steps`.
fn aggregate(aggregator: &Aggregator, work: &Work, steps: usize) {
    if steps == 0 {
        return;
    }
    let outputs: Outputs = compute(aggregator, work).unwrap();
    if steps == 1 {
        return;
    }
    aggregator.apply_result(work, Event::Computed(outputs)).unwrap();
    if steps == 2 {
        return;
    }
    store(aggregator, work).unwrap();
    if steps == 3 {
        return;
    }
    aggregator.apply_result(work, Event::Stored).unwrap();
}

/// Runs without any disturbance.
fn undisturbed(request: &RunRequest) -> RunStatus {
    let directory = tempfile::tempdir().unwrap();
    let aggregator = open(directory.path());
    send(&aggregator, request);
    loop {
        let run = aggregator.run().unwrap();
        if run.has_ended() {
            return aggregator.status();
        }
        for task in run.open_tasks() {
            assert!(deliver(&aggregator, &task, 3));
        }
        if let Some(work) = aggregator.run().unwrap().work() {
            assert!(aggregate_round(&aggregator, &work).unwrap());
        }
    }
}

/// What happens next: which task or kind of work, how far it comes, and whether the program is then
/// killed.
#[derive(Debug, Clone)]
struct Turn {
    choice: usize,
    steps: usize,
    is_killed: bool,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let turn = (0..64_usize, 0..6_usize, any::<bool>());
    let turn = turn.prop_map(|(choice, steps, is_killed)| Turn { choice, steps, is_killed });
    prop::collection::vec(turn, 10..60)
}

/// Does the turns, and then what remains. Old tasks are delivered again, too.
fn disturbed(request: &RunRequest, turns: &[Turn]) -> RunStatus {
    let directory = tempfile::tempdir().unwrap();
    let mut aggregator = open(directory.path());
    send(&aggregator, request);
    let mut known: Vec<RunTask> = Vec::new();
    let rest = (0..).map(|choice| Turn { choice, steps: 9, is_killed: false });
    for turn in turns.iter().cloned().chain(rest) {
        let before = aggregator.status();
        let run = aggregator.run().unwrap();
        if run.has_ended() {
            break;
        }
        for task in run.open_tasks() {
            if !known.contains(&task) {
                known.push(task);
            }
        }
        match run.work() {
            Some(work) if turn.choice % 4 != 0 => aggregate(&aggregator, &work, turn.steps),
            _ if turn.choice % 16 == 15 => {
                send(&aggregator, request);
            }
            _ => {
                let tasks = run.open_tasks();
                let is_late = turn.choice % 5 == 0 || tasks.is_empty();
                let from = if is_late { &known } else { &tasks };
                let task = &from[turn.choice % from.len()];
                let has_base =
                    task.base.as_ref().is_none_or(|it| aggregator.content(&it.sha256).is_some());
                if has_base {
                    deliver(&aggregator, task, turn.steps);
                }
            }
        }
        assert!(aggregator.status().revision >= before.revision);
        if turn.is_killed {
            let state = (aggregator.status(), aggregator.run());
            drop(aggregator);
            aggregator = open(directory.path());
            assert_eq!((aggregator.status(), aggregator.run()), state);
        }
    }
    // Weights and momentum are all that is left.
    let run = aggregator.run().unwrap();
    assert_eq!(run.stage, Stage::Succeeded);
    assert_eq!(contents(directory.path()), 2);
    aggregator.status()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn weights_do_not_depend_on_kills_order_and_repetitions(turns in turns()) {
        static EXPECTED: LazyLock<RunStatus> = LazyLock::new(|| undisturbed(&disturbed_request()));
        let (request, expected) = (disturbed_request(), &*EXPECTED);
        let status = disturbed(&request, &turns);
        prop_assert_eq!(status.phase, RunPhase::Succeeded);
        prop_assert_eq!(&status.best, &expected.best);
        let rounds = |status: &RunStatus| -> Vec<_> {
            let records = status.history.iter();
            records.map(|it| (it.round, it.participants, it.weights.clone())).collect()
        };
        prop_assert_eq!(rounds(&status), rounds(expected));
    }
}

#[test]
fn second_aggregator_on_a_data_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let first = open(directory.path());
    let error = Aggregator::open(directory.path()).unwrap_err().to_string();
    assert!(error.contains("another aggregator uses it"), "{error}");
    drop(first);
    open(directory.path());
}

#[test]
fn revision_continues_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let aggregator = open(directory.path());
    assert_eq!(aggregator.status().revision, 0);
    send(&aggregator, &disturbed_request());
    let first = aggregator.status().revision;
    // The same request is no change.
    send(&aggregator, &disturbed_request());
    assert_eq!(aggregator.status().revision, first);
    drop(aggregator);
    let aggregator = open(directory.path());
    assert_eq!(aggregator.status().revision, first);
    let mut suspended = disturbed_request();
    suspended.suspended = true;
    send(&aggregator, &suspended);
    assert_eq!(aggregator.status().revision, first + 1);
}

#[test]
fn damaged_result_of_an_aggregation_ends_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let aggregator = open(directory.path());
    let run = send(&aggregator, &request(1, 1));
    deliver(&aggregator, &run.open_tasks()[0], 3);
    deliver(&aggregator, &aggregator.run().unwrap().open_tasks()[0], 3);
    let work = aggregator.run().unwrap().work().unwrap();
    let mut outputs = compute(&aggregator, &work).unwrap();
    outputs.weights.sha256 = Digest::of_bytes(b"other").to_string();
    aggregator.apply_result(&work, Event::Computed(outputs)).unwrap();
    assert!(aggregate_round(&aggregator, &work).unwrap());
    let status = aggregator.status();
    assert_eq!(
        (status.phase, status.reason.as_deref()),
        (RunPhase::Failed, Some("NonDeterministic"))
    );
}

#[test]
fn missing_update_delays_the_aggregation_until_it_is_back() {
    let directory = tempfile::tempdir().unwrap();
    let aggregator = open(directory.path());
    let run = send(&aggregator, &request(1, 1));
    deliver(&aggregator, &run.open_tasks()[0], 3);
    let task = aggregator.run().unwrap().open_tasks()[0].clone();
    deliver(&aggregator, &task, 3);
    let path = aggregator.content(&Digest::of_bytes(&trained(&task)).to_string()).unwrap();
    let saved = directory.path().join("saved");
    std::fs::rename(&path, &saved).unwrap();
    let work = aggregator.run().unwrap().work().unwrap();
    assert!(!aggregate_round(&aggregator, &work).unwrap());
    let message = aggregator.status().message;
    assert!(message.contains("is missing; retrying"), "{message}");
    std::fs::rename(&saved, &path).unwrap();
    assert!(aggregate_round(&aggregator, &work).unwrap());
    assert_eq!(aggregator.status().phase, RunPhase::Succeeded);
}
