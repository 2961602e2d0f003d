//! Tables of states and events, without files and clocks.

#![allow(clippy::unwrap_used, clippy::panic)]

use neptune_wire::{
    ContentHash, Metric, TaskKind,
    aggregator::{
        AggregationRule, EarlyStop, FailedTask, OnTooFewWorkers, ResultState, RunEvaluation,
        RunPhase, RunTask, RunWorker, UpdateReport,
    },
};

use proptest::prelude::*;

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
    RunRequest {
        uid: "u".to_owned(),
        run: 1,
        settings: RunSettings {
            workers: workers.iter().map(worker).collect(),
            workload: ContentHash::of(&"workload"),
            rounds: 2,
            min_workers: Some(u32::try_from(workers.len()).unwrap()),
            round_timeout_seconds: Some(3600),
            grace_seconds: None,
            max_deadlines: 3,
            on_too_few_workers: OnTooFewWorkers::Wait,
            fraction: 1.0,
            rule: AggregationRule {
                trim: None,
                equal_weights: false,
                max_weight: 0.5,
                clip: Some(2.0),
                refuse: Some(5.0),
                server_learning_rate: 1.0,
                server_momentum: 0.0,
            },
            seed: 1,
            max_update_bytes: 1 << 20,
            initial: Some(InitialWeights { url: None, sha256: sha("initial") }),
            evaluation: None,
            early_stop: None,
            session: None,
        },
        nodes: BTreeMap::new(),
        failed: Vec::new(),
        unavailable: BTreeMap::new(),
        suspended: false,
        keep: Vec::new(),
        session_host: None,
    }
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

#[test]
fn run_with_all_updates_takes_each_round_once() {
    let mut run = started(request(&["a", "b"]));
    for round in 1..=2 {
        assert_eq!((run.round, run.status(0).phase), (round, RunPhase::Open));
        run = accept(&run, "b", 1010);
        assert_eq!(run.open_tasks().len(), 1);
        run = accept(&run, "a", 1020);
        assert_eq!(run.status(0).phase, RunPhase::Closing);
        assert_eq!(run.open_tasks(), []);
        run = aggregate(&run, 1030);
    }
    let status = run.status(7);
    assert_eq!((status.phase, status.revision, status.round), (RunPhase::Succeeded, 7, 2));
    assert_eq!(status.best.unwrap().weights, content("round 2"));
    let record = &status.history[1];
    assert_eq!((record.participants, record.samples, record.loss), (2, 20, Some(0.5)));
    assert_eq!(status.workers["a"].weight, Some(0.5));
    assert!(run.published().eq([&*sha("round 2")]));
}

#[test]
fn first_workers_make_first_weights_until_one_succeeds() {
    let mut request = request(&["a", "b", "c"]);
    request.settings.initial = None;
    let run = Run::start(request.clone(), 1).unwrap();
    let task = task_of(&run, "a");
    assert_eq!((task.kind, task.round, task.base), (TaskKind::Initialize, 0, None));
    assert_eq!(run.open_tasks().len(), 1);
    let run = failed(&run, request.clone(), "a", 2);
    assert_eq!(run.status(0).workers["a"].state, ResultState::Failed);
    assert_eq!(run.status(0).workers["c"].state, ResultState::Excluded);
    let ready = accept(&run, "b", 3);
    assert_eq!((ready.round, ready.base.clone()), (1, Some(content("b 0"))));
    assert_eq!(ready.open_tasks().len(), 3);
    let run = failed(&run, request.clone(), "b", 3);
    let run = failed(&run, request, "c", 4);
    assert_eq!((run.status(0).phase, &*reason(&run)), (RunPhase::Failed, "ScriptFailed"));
    let text = "no worker made the first weights; worker \"a\" script ended with exit code 1";
    assert!(run.status(0).message.starts_with(text), "{}", run.status(0).message);
}

#[test]
fn first_result_of_a_task_counts() {
    let run = started(request(&["a", "b"]));
    let event = accepted(&run, "a", 1.0);
    let first = run.next(event.clone(), 1).unwrap();
    assert_eq!(first.next(event.clone(), 2).unwrap(), first);
    let Event::Judged(result) = &event else { panic!() };
    let Verdict::Accepted(update) = result.verdict.clone() else { panic!() };
    let other = AcceptedUpdate { content: content("other"), ..update.clone() };
    let other = TaskResult { verdict: Verdict::Accepted(other), ..result.clone() };
    let error = first.next(Event::Judged(other.clone()), 2).unwrap_err();
    assert_eq!(error, Rejection::OtherUpdateAccepted(update.content.sha256));
    let problem = Problem::new("NotFinite", "sent NaN");
    let report = UpdateReport::default();
    let refused = Verdict::Refused { sha256: sha("nan"), report, problem };
    let refused = TaskResult { verdict: refused, ..result.clone() };
    let refused = run.next(Event::Judged(refused), 1).unwrap();
    assert_eq!(refused.next(Event::Judged(other), 2).unwrap(), refused);
    assert_eq!(refused.status(0).workers["a"].reason.as_deref(), Some("NotFinite"));
}

#[test]
fn late_and_unknown_tasks_are_answered_with_round_closed() {
    let run = started(request(&["a", "b"]));
    let late = accepted(&run, "a", 1.0);
    let run = accept(&accept(&run, "a", 1), "b", 1);
    let run = aggregate(&run, 2);
    assert_eq!(run.next(late, 3).unwrap_err(), Rejection::RoundClosed);
    let task = TaskId(sha("unknown"));
    let report = UpdateReport::default();
    let evaluated = Event::Evaluated { task, report };
    assert_eq!(run.next(evaluated, 3).unwrap_err(), Rejection::RoundClosed);
}

#[test]
fn deadline_closes_a_round_with_enough_updates() {
    let mut request = request(&["a", "b", "c"]);
    request.settings.min_workers = Some(2);
    request.settings.grace_seconds = Some(7200);
    let run = started(request);
    let run = accept(&accept(&run, "a", 1001), "c", 1002);
    assert_eq!(run.deadline(), Some(4600));
    assert_eq!(run.next(Event::Tick, 4599).unwrap(), run);
    let late = task_of(&run, "b").id;
    let closing = run.next(Event::Tick, 4600).unwrap();
    assert_eq!(closing.status(0).phase, RunPhase::Closing);
    assert_eq!(closing.task_of("b").unwrap().id, late);
    let worker = "b".to_owned();
    let result = TaskResult { worker, task: late, verdict: Verdict::Failed(Problem::new("x", "")) };
    assert_eq!(closing.next(Event::Judged(result), 1).unwrap_err(), Rejection::RoundClosed);
    assert_eq!(aggregate(&closing, 4700).status(0).history[0].seconds, 3700);
}

#[test]
fn deadline_with_too_few_updates_waits_or_fails() {
    let mut request = request(&["a", "b"]);
    let run = accept(&started(request.clone()), "a", 1001);
    let waiting = run.next(Event::Tick, 5000).unwrap();
    assert_eq!((waiting.deadline(), &*reason(&waiting)), (Some(8600), "TooFewWorkers"));
    let text = "round 1: 1 of at least 2 workers answered within 1h; \
        waiting (onTooFewWorkers: Wait); repair the workers, or lower \
        spec.aggregation.minWorkers to 1, which takes effect at once";
    assert_eq!(waiting.status(0).message, text);
    let closing = accept(&waiting, "b", 6000);
    assert_eq!((closing.status(0).phase, &*reason(&closing)), (RunPhase::Closing, ""));
    request.settings.on_too_few_workers = OnTooFewWorkers::Fail;
    let mut run = accept(&started(request), "a", 1001);
    for repetition in 1..=3 {
        run = run.next(Event::Tick, run.deadline().unwrap()).unwrap();
        assert_eq!(run.status(0).phase, RunPhase::Open);
        let text = format!("its deadline begins again ({repetition} of 3)");
        assert!(run.status(0).message.contains(&text), "{}", run.status(0).message);
    }
    let run = run.next(Event::Tick, run.deadline().unwrap()).unwrap();
    assert_eq!((run.status(0).phase, &*reason(&run)), (RunPhase::Failed, "TooFewWorkers"));
    assert!(run.status(0).message.contains("kubectl neptune training restart"));
    assert_eq!(run.work(), None);
}

#[test]
fn failed_tasks_are_opened_again_at_the_next_deadline() {
    let request = request(&["a", "b"]);
    let run = accept(&started(request.clone()), "a", 1001);
    let run = failed(&run, request.clone(), "b", 1002);
    assert_eq!((run.open_tasks().len(), &*reason(&run)), (0, "TooFewWorkers"));
    let mut repeated = request.clone();
    repeated.failed = run
        .results
        .iter()
        .filter(|(worker, _)| *worker == "b")
        .map(|(_, it)| FailedTask {
            id: it.task.clone(),
            reason: "ScriptFailed".to_owned(),
            message: String::new(),
            is_refused: false,
        })
        .collect();
    let run = run.next(Event::Tick, 5000).unwrap();
    assert_eq!(run.open_tasks().len(), 1);
    // The controller has not seen yet that the task is open again.
    let run = run.next(Event::Request(Box::new(repeated.clone())), 5001).unwrap();
    assert_eq!(run.open_tasks().len(), 1);
    let run = run.next(Event::Request(Box::new(request)), 5002).unwrap();
    let run = run.next(Event::Request(Box::new(repeated)), 5003).unwrap();
    assert_eq!(run.open_tasks().len(), 0);
}

#[test]
fn failed_worker_does_not_hold_up_a_round_with_enough_others() {
    let mut request = request(&["a", "b", "c"]);
    request.settings.min_workers = Some(2);
    request.settings.round_timeout_seconds = None;
    let run = started(request.clone());
    assert_eq!(run.deadline(), None);
    let run = failed(&run, request, "b", 1001);
    let run = accept(&accept(&run, "a", 1001), "c", 1001);
    assert_eq!(run.status(0).phase, RunPhase::Closing);
}

#[test]
fn update_replaces_the_report_that_its_task_failed() {
    let mut request = request(&["a", "b"]);
    request.settings.min_workers = Some(1);
    let run = started(request.clone());
    let event = accepted(&run, "a", 1.0);
    let run = failed(&run, request, "a", 1001);
    let run = run.next(event, 1002).unwrap();
    assert_eq!(run.status(0).workers["a"].state, ResultState::Accepted);
}

#[test]
fn clock_that_was_set_back_prolongs_a_round_by_one_timeout() {
    let run = started(request(&["a", "b"]));
    let run = run.next(Event::Tick, 10).unwrap();
    assert_eq!(run.deadline(), Some(3610));
    let later = run.next(Event::Tick, 100).unwrap();
    assert_eq!(later.deadline(), Some(3610));
}

#[test]
fn norm_too_large_is_refused_at_the_close() {
    let mut request = request(&["a", "b", "c", "d"]);
    request.settings.min_workers = Some(3);
    let mut run = started(request);
    for (worker, norm) in [("a", 1.0), ("b", 1.1), ("c", 0.9), ("d", 41.0)] {
        run = run.next(accepted(&run, worker, norm), 1001).unwrap();
    }
    let worker = &run.status(0).workers["d"];
    assert_eq!(
        (worker.state, worker.reason.as_deref()),
        (ResultState::Refused, Some("NormTooLarge"))
    );
    let text = "norm 41.000 is 41 times the median 1.000 of this round (limit 5)";
    assert_eq!(worker.message, text);
    let run = aggregate(&run, 1002);
    assert_eq!(run.status(0).history[0].participants, 3);
}

#[test]
fn norms_that_all_grew_are_compared_with_each_other() {
    let mut run = started(request(&["a", "b"]));
    for norm in [1.0, 10.0] {
        for worker in ["a", "b"] {
            run = run.next(accepted(&run, worker, norm), 1001).unwrap();
        }
        run = aggregate(&run, 1002);
    }
    assert_eq!(run.status(0).phase, RunPhase::Succeeded);
}

#[test]
fn repeated_aggregation_must_agree() {
    let run = accept(&started(request(&["a"])), "a", 1);
    let outputs = |text: &str| Event::Computed(Outputs { weights: content(text), velocity: None });
    let run = run.next(outputs("x"), 2).unwrap();
    assert!(run.needed_contents().contains(&sha("x")) && run.needs_content(&sha("x")));
    assert_eq!(run.next(outputs("x"), 3).unwrap(), run);
    let run = run.next(outputs("y"), 3).unwrap();
    assert_eq!((run.status(0).phase, &*reason(&run)), (RunPhase::Failed, "NonDeterministic"));
    assert_eq!(run.next(Event::Stored, 4).unwrap(), run);
}

#[test]
fn suspended_run_has_no_tasks_and_continues_its_round() {
    let mut request = request(&["a", "b"]);
    let set = |run: &Run, request: &RunRequest, now| {
        run.next(Event::Request(Box::new(request.clone())), now).unwrap()
    };
    let run = accept(&started(request.clone()), "a", 1001);
    let late = accepted(&run, "b", 1.0);
    request.suspended = true;
    let run = set(&run, &request, 1002);
    assert_eq!((run.status(0).phase, run.open_tasks().len()), (RunPhase::Suspended, 0));
    assert_eq!((run.deadline(), run.next(Event::Tick, 90_000).unwrap()), (None, run.clone()));
    // An upload that had begun.
    let complete = run.next(late, 1003).unwrap();
    assert_eq!(complete.status(0).phase, RunPhase::Suspended);
    let closing = set(&complete, &self::request(&["a", "b"]), 1004);
    assert_eq!(closing.status(0).phase, RunPhase::Closing);
    request.suspended = false;
    let run = set(&run, &request, 90_000);
    assert_eq!((run.status(0).phase, run.round, run.deadline()), (RunPhase::Open, 1, Some(93_600)));
    assert_eq!(run.open_tasks().len(), 1);
    request.suspended = true;
    let run = Run::start(request, 1).unwrap();
    assert_eq!((run.status(0).phase, run.work()), (RunPhase::Suspended, None));
}

#[test]
fn round_closes_when_the_grace_ends() {
    let mut request = request(&["a", "b", "c"]);
    request.settings.min_workers = Some(2);
    let run = started(request.clone());
    let quick = accept(&accept(&run, "a", 1003), "b", 1004);
    assert_eq!(quick.deadline(), Some(1014));
    let slow = accept(&accept(&run, "a", 1003), "b", 1100);
    assert_eq!(slow.deadline(), Some(1200));
    assert_eq!(slow.next(Event::Tick, 1200).unwrap().status(0).phase, RunPhase::Closing);
    request.settings.grace_seconds = Some(0);
    let live = slow.next(Event::Request(Box::new(request)), 1101).unwrap();
    assert_eq!(live.status(0).phase, RunPhase::Closing);
}

#[test]
fn limits_of_a_round_change_while_it_is_open() {
    let mut request = request(&["a", "b", "c"]);
    request.settings.round_timeout_seconds = None;
    let run = accept(&accept(&started(request.clone()), "a", 1001), "b", 1002);
    assert_eq!(run.deadline(), None);
    request.settings.min_workers = Some(2);
    request.settings.rule.clip = None;
    let run = run.next(Event::Request(Box::new(request.clone())), 1003).unwrap();
    assert_eq!((run.deadline(), run.settings.rule.clip), (Some(1013), None));
    request.settings.rule.server_momentum = 0.5;
    let error = run.next(Event::Request(Box::new(request)), 1004).unwrap_err();
    assert_eq!(error, Rejection::RunChanged);
}

fn refused(run: &Run, worker: &str, now: UnixSeconds) -> Run {
    let RunTask { id: task, worker, .. } = task_of(run, worker);
    let (report, problem) = (UpdateReport::default(), Problem::new("NotFinite", "sent NaN"));
    let verdict = Verdict::Refused { sha256: sha("nan"), report, problem };
    run.next(Event::Judged(TaskResult { worker, task, verdict }), now).unwrap()
}

#[test]
fn worker_refused_three_times_rests_and_is_tried_again() {
    let mut request = request(&["a", "b", "c"]);
    (request.settings.min_workers, request.settings.rounds) = (None, 8);
    let mut run = started(request);
    let mut tried = Vec::new();
    for round in 1..=8 {
        if run.open_tasks().iter().any(|it| it.worker == "c") {
            tried.push(round);
            run = if round < 7 { refused(&run, "c", 1001) } else { accept(&run, "c", 1001) };
        } else {
            let row = &run.status(0).workers["c"];
            assert_eq!(
                (row.state, row.reason.as_deref()),
                (ResultState::Excluded, Some("NotFinite"))
            );
            assert!(row.message.ends_with("tries again in round 7"), "{}", row.message);
        }
        run = aggregate(&accept(&accept(&run, "a", 1001), "b", 1001), 1002);
    }
    assert_eq!(tried, [1, 2, 3, 7, 8]);
    let missing: Vec<_> = run.status(0).history.iter().map(|it| it.missing_samples).collect();
    assert_eq!(missing, [100, 100, 100, 100, 100, 100, 0, 0]);
    assert_eq!(run.status(0).history[0].dataset_samples, 300);
}

#[test]
fn worker_whose_containers_failed_too_often_is_out_at_once() {
    let mut request = request(&["a", "b", "c"]);
    request.settings.min_workers = None;
    let run = failed(&started(request.clone()), request, "c", 1001);
    let run = aggregate(&accept(&accept(&run, "a", 1001), "b", 1001), 1002);
    assert_eq!((run.round, run.open_tasks().len()), (2, 2));
    assert_eq!(run.status(0).workers["c"].state, ResultState::Excluded);
}

#[test]
fn worker_without_data_is_not_waited_for_and_comes_back() {
    let mut request = request(&["a", "b", "c"]);
    request.settings.min_workers = None;
    let run = started(request.clone());
    let why = WorkerProblem { reason: "DatasetEmpty".to_owned(), message: "no sample".to_owned() };
    request.unavailable.insert("c".to_owned(), why);
    let without = run.next(Event::Request(Box::new(request.clone())), 1001).unwrap();
    let row = &without.status(0).workers["c"];
    assert_eq!((row.state, row.reason.as_deref()), (ResultState::Excluded, Some("DatasetEmpty")));
    let run = accept(&without, "a", 1002);
    assert_eq!(accept(&run, "b", 1003).status(0).phase, RunPhase::Closing);
    request.unavailable.clear();
    let run = run.next(Event::Request(Box::new(request)), 1003).unwrap();
    assert_eq!(run.open_tasks().len(), 2);
    assert_eq!(accept(&run, "b", 1003).status(0).phase, RunPhase::Open);
}

#[test]
fn too_few_workers_that_can_answer_fail_the_run_within_seconds() {
    let mut request = request(&["a", "b", "c"]);
    request.settings.on_too_few_workers = OnTooFewWorkers::Fail;
    let run = accept(&started(request.clone()), "a", 1001);
    let run = failed(&run, request.clone(), "c", 1002);
    assert_eq!((run.deadline(), run.phase()), (Some(1007), RunPhase::Open));
    let ended = run.next(Event::Tick, 1007).unwrap();
    assert_eq!((ended.phase(), &*reason(&ended)), (RunPhase::Failed, "TooFewWorkers"));
    let text = "round 1: 1 of at least 3 workers answered within 1h; \
        worker \"c\": script ended with exit code 1; repair the workers or lower \
        spec.aggregation.minWorkers, and start another run: kubectl neptune training restart";
    assert_eq!(ended.status(0).message, text);
    request.settings.min_workers = Some(2);
    let run = run.next(Event::Request(Box::new(request)), 1005).unwrap();
    assert_eq!(accept(&run, "b", 1006).phase(), RunPhase::Closing);
}

#[test]
fn fraction_takes_effect_with_the_default_of_min_workers() {
    let mut request = request(&["a", "b", "c", "d", "e", "f"]);
    (request.settings.min_workers, request.settings.fraction) = (None, 0.5);
    let run = started(request.clone());
    assert_eq!((run.open_tasks().len(), run.fewest(&[])), (3, 3));
    // Those without data are drawn last.
    let without: Vec<_> = run.open_tasks().into_iter().map(|it| it.worker).collect();
    for worker in &without {
        let why = WorkerProblem { reason: "DatasetEmpty".to_owned(), message: String::new() };
        request.unavailable.insert(worker.clone(), why);
    }
    let drawn = started(request).open_tasks();
    assert_eq!(drawn.len(), 3);
    assert!(drawn.iter().all(|it| !without.contains(&it.worker)));
}

#[test]
fn first_weights_are_made_by_a_worker_with_data() {
    let mut request = request(&["a", "b"]);
    request.settings.initial = None;
    let why =
        |text: &str| WorkerProblem { reason: "DatasetEmpty".to_owned(), message: text.to_owned() };
    request.unavailable.insert("a".to_owned(), why("no sample"));
    let run = Run::start(request.clone(), 1).unwrap();
    assert_eq!(task_of(&run, "b").kind, TaskKind::Initialize);
    request.unavailable.insert("b".to_owned(), why("no sample"));
    let run = run.next(Event::Request(Box::new(request.clone())), 2).unwrap();
    assert_eq!((run.open_tasks().len(), &*reason(&run)), (0, "DatasetEmpty"));
    request.unavailable.clear();
    let run = run.next(Event::Request(Box::new(request)), 3).unwrap();
    assert_eq!((run.open_tasks().len(), &*reason(&run)), (1, ""));
}

#[test]
fn default_of_min_workers_counts_those_that_can_answer() {
    for (workers, lost, expected) in
        [(3, 0, 3), (3, 1, 2), (4, 0, 3), (4, 2, 2), (9, 0, 6), (9, 9, 1)]
    {
        let names: Vec<_> = (0..workers).map(|it| format!("w{it}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut request = request(&names);
        request.settings.min_workers = None;
        for name in &names[..lost] {
            let why = WorkerProblem { reason: "DatasetEmpty".to_owned(), message: String::new() };
            request.unavailable.insert((*name).to_owned(), why);
        }
        assert_eq!(started(request).fewest(&[]), expected, "{workers} {lost}");
    }
}

#[test]
fn requests_that_contradict_the_run_are_refused() {
    let run = started(request(&["a"]));
    let rejection = |change: &dyn Fn(&mut RunRequest)| {
        let mut request = request(&["a"]);
        request.run = 1;
        change(&mut request);
        run.next(Event::Request(Box::new(request)), 1).unwrap_err()
    };
    assert_eq!(rejection(&|it| it.settings.seed = 2), Rejection::RunChanged);
    let other = rejection(&|it| it.uid = "v".to_owned());
    assert_eq!(other, Rejection::OtherTrainingModel("u".to_owned()));
    for (change, text) in [
        ((|it| it.run = 0) as fn(&mut RunRequest), "run must be at least 1"),
        (|it| it.settings.workers.clear(), "workers must not be empty"),
        (|it| it.settings.rounds = 0, "rounds must be at least 1"),
        (|it| it.settings.round_timeout_seconds = Some(0), "roundTimeoutSeconds"),
        (|it| it.settings.max_update_bytes = 0, "maxUpdateBytes"),
        (|it| it.settings.fraction = 0.0, "fraction"),
        (|it| it.settings.rule.trim = Some(0.5), "trim"),
        (|it| it.settings.rule.max_weight = 0.0, "maxWeight"),
        (|it| it.settings.rule.clip = Some(-1.0), "clip"),
        (|it| it.settings.rule.server_learning_rate = 0.0, "serverLearningRate"),
        (|it| it.settings.rule.server_momentum = 1.0, "serverMomentum"),
        (|it| it.keep = vec!["short".to_owned()], "\"short\": sha256 must be 64 hex digits"),
    ] {
        let rejection = rejection(&change).to_string();
        assert!(rejection.contains(text), "{rejection}");
    }
    let mut next = request(&["a"]);
    next.run = 2;
    let second = run.next(Event::Request(Box::new(next)), 1).unwrap();
    assert_eq!((second.number, second.round), (2, 0));
    let ended = second.next(Event::Request(Box::new(request(&["a"]))), 1).unwrap_err();
    assert_eq!(ended, Rejection::RunEnded { requested: 1, current: 2 });
}

#[test]
fn first_weights_that_cannot_be_downloaded_are_retried_or_fail() {
    let run = Run::start(request(&["a"]), 1).unwrap();
    let failure = |is_permanent| FetchFailure { message: "no route".to_owned(), is_permanent };
    let waiting = run.next(Event::Fetched(Err(failure(false))), 2).unwrap();
    assert_eq!(
        (waiting.status(0).phase, &*reason(&waiting)),
        (RunPhase::Preparing, "DownloadFailed")
    );
    assert_eq!(waiting.work(), run.work());
    let run = waiting.next(Event::Fetched(Ok(content("initial"))), 3).unwrap();
    assert_eq!((run.status(0).phase, &*reason(&run)), (RunPhase::Open, ""));
    let run = waiting.next(Event::Fetched(Err(failure(true))), 3).unwrap();
    assert_eq!(run.status(0).phase, RunPhase::Failed);
}

#[test]
fn later_weights_of_equal_metrics_are_the_best() {
    let mut run = started(evaluated_request(2));
    for value in ["0.8", "0.9", "0.9"] {
        run = evaluate(&trained(&trained(&run)), value);
    }
    assert_eq!(run.status(0).best.unwrap().round, 6);
}

#[test]
fn best_weights_are_the_best_measured_ones() {
    let mut run = started(evaluated_request(2));
    for value in ["0.8", "0.9", "0.85"] {
        run = trained(&trained(&run));
        assert_eq!(run.status(0).phase, RunPhase::Evaluating);
        let task = task_of(&run, "");
        assert_eq!((task.kind, task.base.clone()), (TaskKind::Evaluate, run.base.clone()));
        assert!(run.is_readable_by_nodes(&run.base.as_ref().unwrap().sha256));
        run = evaluate(&run, value);
        let repeated = Event::Evaluated { task: task.id, report: UpdateReport::default() };
        assert_eq!(run.next(repeated, 2000).unwrap(), run);
    }
    let status = run.status(0);
    assert_eq!((status.phase, status.best.unwrap().round), (RunPhase::Succeeded, 4));
    let metrics: Vec<_> = status.history.iter().map(|it| it.metrics.len()).collect();
    assert_eq!(metrics, [0, 1, 0, 1, 0, 1]);
}

#[test]
fn weights_in_use_are_measured_first() {
    let mut request = evaluated_request(1);
    request.settings.evaluation.as_mut().unwrap().present = Some(sha("present"));
    let run = started(request);
    let sha256 = sha("present");
    assert_eq!(run.work(), Some(Work::Fetch(InitialWeights { url: None, sha256 })));
    let missing = FetchFailure { message: "not here".to_owned(), is_permanent: true };
    let without = run.next(Event::Fetched(Err(missing)), 1).unwrap();
    assert_eq!((without.round, &*reason(&without)), (1, "EvaluationFailed"));
    let run = run.next(Event::Fetched(Ok(content("present"))), 1).unwrap();
    let task = task_of(&run, "");
    assert_eq!((task.round, task.base), (0, Some(content("present"))));
    let run = evaluate(&run, "0.946");
    assert_eq!(run.status(0).present.unwrap().metrics[0].value, "0.946");
    assert_eq!((run.round, run.status(0).best), (1, None));
}

#[test]
fn evaluation_that_fails_three_times_lets_the_run_continue() {
    let request = evaluated_request(1);
    let mut run = trained(&started(request.clone()));
    let mut ids = BTreeSet::new();
    for _ in 0..2 {
        ids.insert(task_of(&run, "").id);
        run = failed(&run, request.clone(), "", 2000);
    }
    ids.insert(task_of(&run, "").id);
    assert_eq!(ids.len(), 3);
    // A report without the metric is a failure too.
    run = evaluate(&run, "none");
    assert_eq!((run.round, run.status(0).phase), (2, RunPhase::Open));
    assert_eq!((&*reason(&run), run.status(0).best), ("EvaluationFailed", None));
    let text = "the weights of round 1 were not measured in 3 of 3 attempts: \
        the program reported no number as metric \"accuracy\"";
    assert_eq!(run.status(0).message, text);
    run = evaluate(&trained(&run), "0.9");
    assert_eq!((&*reason(&run), run.status(0).best.unwrap().round), ("", 2));
}

/// Their node may be offline for as long as it likes.
#[test]
fn evaluation_and_first_weights_have_no_deadline() {
    let year = 365 * 24 * 60 * 60;
    let evaluated = trained(&started(evaluated_request(1)));
    let mut request = request(&["a"]);
    request.settings.initial = None;
    let without_weights = Run::start(request, 1000).unwrap();
    for (run, worker) in [(evaluated, ""), (without_weights, "a")] {
        let later = run.next(Event::Tick, 2000 + year).unwrap();
        assert_eq!(task_of(&later, worker).id, task_of(&run, worker).id);
        assert_eq!(later.status(0).phase, run.status(0).phase);
    }
}

#[test]
fn run_stops_early_at_the_target_or_without_improvement() {
    for (values, target, minimize, expected) in [
        (
            &["0.9", "0.98"][..],
            Some(0.97),
            false,
            "accuracy 0.98 reached the target 0.97; stopped after round 2 of 6",
        ),
        (
            &["0.9", "0.9005", "0.8"],
            None,
            false,
            "accuracy did not improve by 0.001 in 2 measured rounds; stopped after round 3 of 6",
        ),
        (
            &["0.5", "0.4", "0.4", "0.6"],
            None,
            true,
            "accuracy did not improve by 0.001 in 2 measured rounds; stopped after round 4 of 6",
        ),
    ] {
        let mut request = evaluated_request(1);
        request.settings.evaluation.as_mut().unwrap().minimize = minimize;
        request.settings.early_stop = Some(EarlyStop { patience: 2, min_delta: 0.001, target });
        let mut run = started(request);
        for value in values {
            assert!(!run.has_ended());
            run = evaluate(&trained(&run), value);
        }
        assert_eq!((run.status(0).phase, &*reason(&run)), (RunPhase::Succeeded, "EarlyStop"));
        assert_eq!(run.status(0).message, expected);
    }
}

#[test]
fn samples_above_the_counted_ones_are_noted() {
    let run = started(request(&["a", "b"]));
    let mut event = accepted(&run, "a", 1.0);
    let Event::Judged(TaskResult { verdict: Verdict::Accepted(update), .. }) = &mut event else {
        panic!()
    };
    (update.report.samples, update.report.counted_samples) = (400_000, Some(344));
    let worker = run.next(event, 1).unwrap().status(0).workers["a"].clone();
    assert_eq!(
        (worker.state, worker.reason.as_deref()),
        (ResultState::Accepted, Some("SamplesNotCredible"))
    );
    let text = "reported 400000 samples, its dataset digits-a has 344: 344 is used";
    assert_eq!(worker.message, text);
}

#[test]
fn state_is_read_back_exactly() {
    let mut request = request(&["a", "b", "c"]);
    request.settings.rule.max_weight = 0.1 + 0.2;
    let mut run = started(request);
    for (worker, norm) in [("a", 0.1 + 0.7), ("b", 1.0 / 3.0), ("c", 1e-300)] {
        run = run.next(accepted(&run, worker, norm), 1).unwrap();
        let text = serde_json::to_string(&run).unwrap();
        assert_eq!(serde_json::from_str::<Run>(&text).unwrap(), run);
    }
}

/// Something that may happen at any moment, also twice or late.
#[derive(Debug, Clone)]
enum Happening {
    /// A worker's update with one of two contents; the flag is whether it is usable.
    Update(usize, u8, bool),
    Failure(usize),
    Seconds(i32),
    Suspended(bool),
    Fetched(bool),
    Computed,
    Stored,
    Evaluated(usize, &'static str),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        6 => (0..64_usize, 0..2_u8, prop::bool::weighted(0.9)).prop_map(|(a, b, c)| Happening::Update(a, b, c)),
        1 => (0..64_usize).prop_map(Happening::Failure),
        1 => (-4000..8000).prop_map(Happening::Seconds),
        1 => any::<bool>().prop_map(Happening::Suspended),
        1 => any::<bool>().prop_map(Happening::Fetched),
        2 => Just(Happening::Computed),
        2 => Just(Happening::Stored),
        2 => (0..64_usize, prop_oneof![Just("0.5"), Just("0.9"), Just("no number")])
            .prop_map(|(task, value)| Happening::Evaluated(task, value)),
    ]
}

/// Makes the event; `known` are all tasks that were open at any time.
fn event(happening: &Happening, request: &RunRequest, known: &[RunTask], run: &Run) -> Event {
    let task = |at: usize| known.get(at % known.len().max(1)).map(|it| it.id.clone());
    let task = |at: usize| task(at).unwrap_or_else(|| TaskId(sha("none")));
    let worker = |at: usize| {
        known.get(at % known.len().max(1)).map(|it| it.worker.clone()).unwrap_or_default()
    };
    match *happening {
        Happening::Update(at, which, is_usable) => {
            let report = UpdateReport { samples: 5, ..Default::default() };
            let update = content(&format!("{} {which}", task(at).0));
            let verdict = if is_usable {
                let norm = 1.0 + f64::from(which);
                Verdict::Accepted(AcceptedUpdate { content: update, report, norm })
            } else {
                let problem = Problem::new("NotFinite", "sent NaN");
                Verdict::Refused { sha256: update.sha256, report, problem }
            };
            Event::Judged(TaskResult { worker: worker(at), task: task(at), verdict })
        }
        Happening::Failure(at) => {
            let mut request = request.clone();
            let (reason, message) = ("ScriptFailed".to_owned(), String::new());
            request.failed = vec![FailedTask { id: task(at), reason, message, is_refused: false }];
            Event::Request(Box::new(request))
        }
        Happening::Seconds(_) => Event::Tick,
        Happening::Suspended(suspended) => {
            Event::Request(Box::new(RunRequest { suspended, ..request.clone() }))
        }
        Happening::Fetched(true) => Event::Fetched(Ok(content("fetched"))),
        Happening::Fetched(false) => {
            let message = "no route".to_owned();
            Event::Fetched(Err(FetchFailure { message, is_permanent: false }))
        }
        Happening::Computed => {
            let weights = content(&format!("weights {}", run.round));
            Event::Computed(Outputs { weights, velocity: None })
        }
        Happening::Stored => Event::Stored,
        Happening::Evaluated(at, value) => {
            let metrics = vec![Metric { key: "accuracy".to_owned(), value: value.to_owned() }];
            let report = UpdateReport { metrics, ..Default::default() };
            Event::Evaluated { task: task(at), report }
        }
    }
}

/// What holds between a state and the next one.
fn check_step(before: &Run, after: &Run) -> Result<(), TestCaseError> {
    let text = serde_json::to_string(after).unwrap();
    prop_assert_eq!(&serde_json::from_str::<Run>(&text).unwrap(), after);
    prop_assert!(after.round == before.round || after.round == before.round + 1);
    if before.has_ended() {
        prop_assert_eq!(&after.stage, &before.stage);
    }
    if after.round == before.round {
        for (worker, result) in &before.results {
            if !matches!(result.verdict, Verdict::Failed(_)) {
                prop_assert_eq!(after.results.get(worker), Some(result));
            }
        }
    }
    if let (Stage::Closing(first), Stage::Closing(second)) = (&before.stage, &after.stage) {
        prop_assert_eq!(&first.record, &second.record);
    }
    let rounds: Vec<_> = after.status(0).history.iter().map(|it| it.round).collect();
    prop_assert_eq!(rounds, (1..=u32::try_from(after.history.len()).unwrap()).collect::<Vec<_>>());
    for record in &after.status(0).history {
        prop_assert!(record.participants >= 2);
    }
    let open = after.open_tasks();
    let ids: BTreeSet<_> = open.iter().map(|it| &it.id).collect();
    prop_assert_eq!(ids.len(), open.len());
    let needed = after.needed_contents();
    prop_assert!(needed.iter().all(|it| after.needs_content(it)));
    prop_assert!(
        before.needed_contents().iter().all(|it| needed.contains(it) == after.needs_content(it))
    );
    for base in open.iter().filter_map(|it| it.base.as_ref()) {
        prop_assert!(needed.contains(&base.sha256) && after.is_readable_by_nodes(&base.sha256));
    }
    if let Some(Work::Aggregate { record, .. }) = after.work() {
        prop_assert!(record.entries.iter().all(|it| needed.contains(&it.sha256)));
    }
    Ok(())
}

proptest! {
    #[test]
    fn invariants_hold_after_any_events(
        happenings in prop::collection::vec(happening(), 1..120),
        has_file: bool,
        has_present: bool,
    ) {
        let mut request = request(&["a", "b", "c"]);
        request.settings.min_workers = Some(2);
        request.settings.rounds = 3;
        request.settings.evaluation = evaluated_request(2).settings.evaluation;
        if has_present {
            request.settings.evaluation.as_mut().unwrap().present = Some(sha("present"));
        }
        if !has_file {
            request.settings.initial = None;
        }
        let mut run = Run::start(request.clone(), 10_000).unwrap();
        let (mut now, mut known) = (10_000_u64, Vec::new());
        for happening in &happenings {
            let new: Vec<_> = run.open_tasks().into_iter().filter(|it| !known.contains(it)).collect();
            known.extend(new);
            if let Happening::Seconds(seconds) = happening {
                now = now.saturating_add_signed(i64::from(*seconds));
            }
            let event = event(happening, &request, &known, &run);
            let Ok(after) = run.next(event.clone(), now) else { continue };
            check_step(&run, &after)?;
            // A repetition changes nothing, or is refused.
            if !matches!(event, Event::Computed(_) | Event::Stored | Event::Fetched(_))
                && let Ok(again) = after.next(event, now)
            {
                prop_assert_eq!(&again, &after);
            }
            run = after;
        }
    }
}

#[test]
fn closed_round_has_a_row_for_each_of_its_workers() {
    let mut request =
        request(&["absent", "accepted", "empty", "failed", "large", "refused", "second"]);
    (request.settings.min_workers, request.settings.grace_seconds) = (Some(2), Some(10));
    let (reason, message) = ("DatasetEmpty".to_owned(), "no sample".to_owned());
    request.unavailable.insert("empty".to_owned(), WorkerProblem { reason, message });
    let mut run = started(request.clone());
    for (worker, norm) in [("accepted", 1.0), ("second", 1.0), ("large", 90.0)] {
        run = run.next(accepted(&run, worker, norm), 1010).unwrap();
    }
    run = refused(&run, "refused", 1010);
    run = failed(&run, request.clone(), "failed", 1010);
    let run = aggregate(&run.next(Event::Tick, 1030).unwrap(), 1030);
    let record = &run.status(0).history[0];
    let rows: Vec<_> = record
        .workers
        .iter()
        .map(|it| {
            let text = format!("{} {:?} {:?} {:?}", it.name, it.state, it.samples, it.weight);
            format!("{text} {:?} {}", it.norm, it.reason.as_deref().unwrap_or("-"))
        })
        .collect();
    let expected = [
        "absent Pending None None None -",
        "accepted Accepted Some(10) Some(0.5) Some(1.0) -",
        "empty Excluded None None None DatasetEmpty",
        "failed Failed None None None ScriptFailed",
        "large Refused Some(10) None Some(90.0) NormTooLarge",
        "refused Refused Some(0) None None NotFinite",
        "second Accepted Some(10) Some(0.5) Some(1.0) -",
    ];
    assert_eq!(rows, expected);
}

#[test]
fn worker_that_is_not_drawn_has_no_row() {
    let mut request = request(&["a", "b"]);
    (request.settings.min_workers, request.settings.fraction) = (Some(1), 0.5);
    let run = started(request);
    let drawn = run.open_tasks()[0].worker.clone();
    let run = aggregate(&accept(&run, &drawn, 1010), 1010);
    let rows: Vec<_> = run.status(0).history[0].workers.iter().map(|it| it.name.clone()).collect();
    assert_eq!(rows, [drawn]);
}

#[test]
fn metrics_of_a_hostile_node_are_limited_in_its_row() {
    let run = started(request(&["a"]));
    let RunTask { id: task, worker, .. } = task_of(&run, "a");
    let metric = |key: &str, value: &str| Metric { key: key.to_owned(), value: value.to_owned() };
    let mut metrics = vec![
        metric("\u{7}", "1"),
        metric(&"k".repeat(64), "1"),
        metric("long", &"1".repeat(33)),
        metric("accuracy", "0.9"),
    ];
    metrics.extend((0..32).map(|at| metric(&format!("m{at}"), "1")));
    let report = UpdateReport { samples: 1, loss: Some(0.5), metrics, ..Default::default() };
    let verdict = Verdict::Accepted(AcceptedUpdate { content: content("a"), report, norm: 1.0 });
    let judged = run.next(Event::Judged(TaskResult { worker, task, verdict }), 1010).unwrap();
    let row = aggregate(&judged, 1010).status(0).history[0].workers[0].clone();
    let keys: Vec<_> = row.metrics.iter().map(|it| it.key.as_str()).collect();
    assert_eq!(keys, ["accuracy", "m0", "m1", "m2", "m3", "m4", "m5", "m6"]);
    assert_eq!((row.omitted_metrics, row.loss, row.weight), (28, Some(0.5), Some(1.0)));
}

#[test]
fn rows_of_many_rounds_and_workers_stay_within_their_limit() {
    let names: Vec<_> = (0..100).map(|at| format!("worker-{at:03}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut request = request(&names);
    request.settings.rounds = 8;
    let mut run = started(request);
    for _ in 0..8 {
        for name in &names {
            run = accept(&run, name, 1010);
        }
        run = aggregate(&run, 1010);
    }
    let rounds = run.status(0).history;
    let rows = |it: &RoundRecord| (it.workers.len(), it.omitted_workers);
    assert_eq!((rows(&rounds[0]), rows(&rounds[7])), ((0, 100), (100, 0)));
    assert!(rounds.iter().all(|it| it.workers.len() + it.omitted_workers == 100));
    let bytes: usize =
        rounds.iter().map(|it| serde_json::to_string(&it.workers).unwrap().len()).sum();
    assert!(bytes <= neptune_wire::aggregator::MAX_ROWS_BYTES + 8 * 2, "{bytes}");
}
