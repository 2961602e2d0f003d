//! How rounds open, close and wait.

use super::*;

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
