//! The rows of a closed round.

use super::*;

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
