//! Which weights are measured, and which are the best.

use super::*;

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
