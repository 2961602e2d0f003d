//! Tests of one run, also with random histories.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn probes(probes: Value) -> ContainerProbes {
    serde_json::from_value(probes).unwrap()
}

fn tcp(fields: &Value) -> Value {
    let mut probe = json!({"tcpPort": 5, "periodMs": 1000});
    probe.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    probe
}

fn success() -> ProbeAnswer {
    Ok(()).into()
}

fn failure() -> ProbeAnswer {
    Err("exec: exit code 255".to_owned()).into()
}

fn unknown() -> ProbeAnswer {
    ProbeAnswer { result: ProbeResult::Unknown, running_exec: None }
}

/// Runs the probe that is due, which must be one of this kind.
fn answer(run: &mut RunProbes, kind: ProbeKind, answer: ProbeAnswer, now: Instant) {
    let started = run.start_due(now).map(|started| started.kind);
    assert_eq!(started, Some(kind));
    assert_eq!((run.start_due(now), run.next_at()), (None, None), "one at a time");
    run.record(answer, now);
}

#[test]
fn liveness_fails_after_consecutive_failures_only() {
    let mut now = Instant::now();
    let mut run = RunProbes::new(probes(json!({"liveness": tcp(&json!({}))})), false, now);
    assert_eq!(run.verdict(), ProbeVerdict::Unconfirmed);
    for outcome in [failure(), failure(), success(), failure(), unknown(), failure()] {
        answer(&mut run, ProbeKind::Liveness, outcome, now);
        assert!(!matches!(run.verdict(), ProbeVerdict::Unhealthy(_)));
        assert_eq!(run.start_due(now), None, "not before the period is over");
        now += SECOND;
    }
    assert_eq!(run.verdict(), ProbeVerdict::Healthy);
    answer(&mut run, ProbeKind::Liveness, failure(), now);
    let ProbeVerdict::Unhealthy(failed) = run.verdict() else { unreachable!("{run:?}") };
    assert_eq!(failed.to_string(), "livenessProbe failed 3 times (exec: exit code 255)");
    assert_eq!(run.next_at(), None, "it is not probed any more");
}

#[test]
fn other_probes_wait_for_the_startup_and_for_their_delay() {
    let start = Instant::now();
    let all = json!({
        "startup": tcp(&json!({"failures": 60})), "liveness": tcp(&json!({})),
        "readiness": tcp(&json!({"initialDelayMs": 3000, "successes": 2})),
    });
    let mut run = RunProbes::new(probes(all), false, start);
    assert_eq!(run.verdict(), ProbeVerdict::NotReady(ProbeKind::Startup, None));
    answer(&mut run, ProbeKind::Startup, failure(), start);
    let why = Some("exec: exit code 255");
    assert_eq!(run.verdict(), ProbeVerdict::NotReady(ProbeKind::Startup, why));
    answer(&mut run, ProbeKind::Startup, success(), start + SECOND);
    assert_eq!(run.verdict(), ProbeVerdict::NotReady(ProbeKind::Readiness, None));
    answer(&mut run, ProbeKind::Liveness, success(), start + SECOND);
    assert_eq!(run.start_due(start + SECOND), None, "readiness has its delay");
    let mut now = start + SECOND * 3;
    for _ in 0..2 {
        answer(&mut run, ProbeKind::Liveness, success(), now);
        assert_eq!(run.verdict(), ProbeVerdict::NotReady(ProbeKind::Readiness, None));
        answer(&mut run, ProbeKind::Readiness, success(), now);
        now += SECOND;
    }
    assert_eq!(run.verdict(), ProbeVerdict::Healthy);
    answer(&mut run, ProbeKind::Liveness, success(), now);
    assert_eq!(run.start_due(now), None, "readiness is not run any more");
}

#[test]
fn startup_that_runs_out_restarts_and_readiness_does_not() {
    let now = Instant::now();
    for (probe, expected) in [("startup", true), ("readiness", false)] {
        let one = json!({ probe: tcp(&json!({"failures": 1})) });
        let mut run = RunProbes::new(probes(one), false, now);
        run.start_due(now).unwrap();
        run.record(failure(), now);
        assert_eq!(matches!(run.verdict(), ProbeVerdict::Unhealthy(_)), expected, "{probe}");
    }
}

#[test]
fn container_that_ran_before_is_ready_until_a_probe_fails() {
    let now = Instant::now();
    let both = probes(json!({"startup": tcp(&json!({})), "readiness": tcp(&json!({}))}));
    let mut run = RunProbes::new(both, true, now);
    assert_eq!(run.verdict(), ProbeVerdict::Healthy);
    answer(&mut run, ProbeKind::Startup, failure(), now);
    assert!(matches!(run.verdict(), ProbeVerdict::NotReady(ProbeKind::Startup, Some(_))));
}

#[test]
fn exec_that_still_runs_is_passed_on_to_the_next_probe() {
    let now = Instant::now();
    let exec = json!({"liveness": {"exec": ["a"], "periodMs": 1000}});
    let mut run = RunProbes::new(probes(exec.clone()), false, now);
    assert_eq!(run.start_due(now).unwrap().running_exec, None);
    run.record(ProbeAnswer { running_exec: Some("e1".into()), ..failure() }, now);
    let mut run = run.with_probes(probes(exec), now);
    let started = run.start_due(now + SECOND).unwrap();
    assert_eq!(started.running_exec.as_deref(), Some("e1"));
    let mut changed = run.with_probes(probes(json!({"liveness": tcp(&json!({}))})), now);
    assert_eq!(changed.start_due(now + SECOND), None, "one is in flight");
    changed.record(failure(), now + SECOND);
    assert_eq!(changed.liveness.failures, 0, "it was that of another probe");
    assert!(changed.start_due(now + SECOND).is_some());
}

/// A thing that happens to a container and its agent.
#[derive(Debug, Clone)]
enum Event {
    Pass(u64),
    Start,
    Answer(ProbeResult),
    Suspend,
    Resume,
    AgentRestart,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0_u64..3000).prop_map(Event::Pass),
        8 => Just(Event::Start),
        6 => Just(Event::Answer(ProbeResult::Failure("no".to_owned()))),
        2 => Just(Event::Answer(ProbeResult::Success)),
        1 => Just(Event::Answer(ProbeResult::Unknown)),
        1 => Just(Event::Suspend),
        2 => Just(Event::Resume),
        1 => Just(Event::AgentRestart),
    ]
}

/// The failures of one kind since the last success, pause or restart of the agent, and what
/// succeeded: kept without the code under test.
#[derive(Debug, Default)]
struct Expected {
    in_flight: Option<(ProbeKind, bool)>,
    is_suspended: bool,
    startup_passed: bool,
    failures: [u32; 3],
}

proptest! {
    /// No container is restarted without enough failures of its own: a pause, an engine that does not
    /// answer and a restart of the agent start the count again, and liveness waits for the startup.
    #[test]
    fn only_failures_in_a_row_restart_a_container(
        events in prop::collection::vec(event(), 1..200),
        has_startup: bool,
        limit in 1_u32..4,
    ) {
        let mut now = Instant::now();
        let probe = || tcp(&json!({"failures": limit}));
        let mut all = json!({"liveness": probe(), "readiness": probe()});
        if has_startup {
            all["startup"] = probe();
        }
        let all = probes(all);
        let new = |now| RunProbes::new(all.clone(), false, now);
        let (mut run, mut expected) = (new(now), Expected::default());
        for event in events {
            match event {
                Event::Pass(milliseconds) => now += Duration::from_millis(milliseconds),
                Event::Start => {
                    if let Some(started) = run.start_due(now) {
                        prop_assert_eq!(expected.in_flight, None, "one at a time");
                        prop_assert!(!expected.is_suspended);
                        let may_run = !has_startup || expected.startup_passed;
                        prop_assert!(may_run == (started.kind != ProbeKind::Startup));
                        expected.in_flight = Some((started.kind, true));
                    }
                }
                Event::Answer(result) => {
                    if let Some((kind, true)) = expected.in_flight.take() {
                        let failures = &mut expected.failures[kind as usize];
                        match result {
                            ProbeResult::Success => {
                                *failures = 0;
                                expected.startup_passed |= kind == ProbeKind::Startup;
                            }
                            ProbeResult::Failure(_) => *failures += 1,
                            ProbeResult::Unknown => {}
                        }
                    }
                    run.record(ProbeAnswer { result, running_exec: None }, now);
                }
                Event::Suspend => {
                    run.suspend();
                    expected.failures = [0; 3];
                    expected.is_suspended = true;
                    expected.in_flight = expected.in_flight.map(|(kind, _)| (kind, false));
                }
                Event::Resume => {
                    run.resume(now);
                    expected.is_suspended = false;
                }
                Event::AgentRestart => (run, expected) = (new(now), Expected::default()),
            }
            let [startup, liveness, _] = expected.failures;
            let is_failed = startup >= limit || liveness >= limit;
            let is_unhealthy = matches!(run.verdict(), ProbeVerdict::Unhealthy(_));
            prop_assert_eq!(is_unhealthy, is_failed, "{:?}", run);
            // A probe is due, in flight, or not wanted: nothing is forgotten.
            let idle = expected.in_flight.is_none() && !is_unhealthy && !expected.is_suspended;
            prop_assert_eq!(run.next_at().is_some(), idle);
        }
    }
}
