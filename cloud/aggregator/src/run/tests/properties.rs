//! Invariants of a run after any sequence of events.

use proptest::prelude::*;

use super::*;

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

/// Checks the invariants between a state and the next one.
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
