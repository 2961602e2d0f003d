//! Workers that are refused, fail, have no data or are left out.

use super::*;

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
