//! Probes of workers in the plan.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::{
    domain::probe::{FailedProbe, ProbeAnswer, ProbeKind},
    worker::probed::probed_containers,
};

const SECOND: Duration = Duration::from_secs(1);

/// A node whose worker has these probes, and the worker's container.
fn node_with_probes(probes: serde_json::Value) -> (Node, ObservedContainer) {
    let mut node = node();
    let worker = node.desired.workers.get_mut(&name()).unwrap();
    worker.worker.program.probes = serde_json::from_value(probes).unwrap();
    (node, observed("1", ContainerState::Running))
}

fn tcp(failures: u32) -> serde_json::Value {
    json!({"tcpPort": 5, "periodMs": 1000, "failures": failures})
}

impl Node {
    /// Observes this container, and then probes it. Nothing is due without an answer.
    fn probe(&mut self, container: &ObservedContainer, answer: Option<ProbeAnswer>, now: Instant) {
        self.observe(vec![container.clone()], now);
        let context = node_context();
        let inputs = NodeInputs {
            models: &self.models,
            datasets: &self.datasets,
            gateways: &self.gateways,
            values: &self.values,
        };
        let resolved = resolve_workers(&self.desired, inputs, &context);
        let probed =
            probed_containers(&self.desired, &resolved, &self.containers, &self.undescribed);
        self.probes.observe(&probed, now);
        if let Some(answer) = answer {
            let due = self.probes.start_due(now).remove(0);
            self.probes.record(&due.worker, &due.run, answer, now);
        }
    }
}

fn failure() -> ProbeAnswer {
    Err("exec: exit code 255".to_owned()).into()
}

fn success() -> ProbeAnswer {
    Ok(()).into()
}

fn message(plan: &NodePlan) -> &str {
    &plan.health[&name()].message
}

#[test]
fn hanging_worker_is_stopped_and_restarted_with_the_backoff() {
    let (mut node, container) = node_with_probes(json!({"liveness": tcp(3)}));
    let mut now = Instant::now();
    for restart in 1..=3 {
        node.probe(&container, Some(success()), now);
        for _ in 0..3 {
            assert_eq!(node.plan(now).steps, []);
            now += SECOND;
            node.probe(&container, Some(failure()), now);
        }
        let plan = node.plan(now);
        let [Step::Stop { id, failed, at, .. }] = &plan.steps[..] else { unreachable!("{plan:?}") };
        assert_eq!((id.as_str(), *at), ("1", now));
        assert_eq!(health(&plan), (WorkerState::Pending, Some(WorkerReason::Unhealthy)));
        let what = "livenessProbe failed 3 times (exec: exit code 255)";
        assert_eq!(message(&plan), format!("{what}; stopping the container to restart it"));

        // The engine stops it for 10 s.
        node.attempts().busy = true;
        node.attempts().stopping(failed);
        let stopping = (WorkerState::Pending, Some(WorkerReason::Unhealthy));
        assert_eq!(health(&node.plan(now)), stopping);
        let outcome = StepOutcome::Stopped { id: "1".to_owned(), failed: failed.clone(), at: *at };
        let stopped = now + SECOND * 10;
        node.attempts().done(outcome, None, 1, stopped, u64::MAX);
        node.probe(&observed("1", ended(143)), None, stopped);
        let plan = node.plan(now);
        assert_eq!(plan.steps, [], "not before the backoff");
        let backoff = 1 << (restart - 1);
        assert_eq!(message(&plan), format!("{what}; restarted, next attempt in {backoff} s"));
        let state = if restart == 3 { WorkerState::Failed } else { WorkerState::Pending };
        assert_eq!(health(&plan), (state, Some(WorkerReason::Unhealthy)));
        // The time of the stop is a part of the backoff.
        let plan = node.plan(stopped);
        assert_eq!((starts(&plan), removed(&plan)), (true, vec!["1"]));

        let spec = Some((hash().to_string(), restart));
        node.attempts().done(StepOutcome::Started { id: "1".to_owned() }, spec, 1, stopped, 0);
        now = stopped + SECOND;
    }
    // Running again is no news until the probe succeeds.
    node.probe(&container, None, now);
    assert_eq!(health(&node.plan(now)), (WorkerState::Failed, Some(WorkerReason::Unhealthy)));
    now += SETTLED;
    assert_eq!(health(&node.plan(now)), (WorkerState::Failed, Some(WorkerReason::Unhealthy)));
    node.probe(&container, Some(success()), now);
    assert_eq!(health(&node.plan(now)), (WorkerState::Running, None));
}

#[test]
fn worker_is_starting_until_its_probes_succeed() {
    let (mut node, container) = node_with_probes(json!({"startup": tcp(3), "readiness": tcp(3)}));
    let mut now = Instant::now();
    let probes = &node.desired.workers[&name()].worker.program.probes;
    node.probes.set_wanted([(&name(), probes)].into_iter());
    node.probes.started(&name(), "1");
    node.probe(&container, None, now);
    let starting = (WorkerState::Pending, Some(WorkerReason::Starting));
    let plan = node.plan(now);
    assert_eq!((health(&plan), message(&plan)), (starting, "waiting for startupProbe"));
    node.probe(&container, Some(failure()), now);
    let plan = node.plan(now);
    let expected = "waiting for startupProbe: exec: exit code 255";
    assert_eq!((health(&plan), message(&plan)), (starting, expected));
    now += SECOND;
    node.probe(&container, Some(success()), now);
    let plan = node.plan(now);
    assert_eq!((health(&plan), message(&plan)), (starting, "waiting for readinessProbe"));
    for _ in 0..5 {
        node.probe(&container, Some(failure()), now);
        now += SECOND;
    }
    let plan = node.plan(now);
    assert_eq!((health(&plan), plan.steps.len()), (starting, 0), "it is not restarted");
    node.probe(&container, Some(success()), now);
    assert_eq!(health(&node.plan(now)), (WorkerState::Running, None));
}

#[test]
fn container_of_another_specification_is_not_probed() {
    let (mut node, mut container) = node_with_probes(json!({"liveness": tcp(1)}));
    container.identity.spec_hash = "other".to_owned();
    let now = Instant::now();
    node.probe(&container, None, now);
    assert_eq!(node.probes.start_due(now), []);
    // A worker without its model keeps the container that it has.
    node.models.clear();
    node.probe(&observed("1", ContainerState::Running), None, now);
    assert_eq!(node.probes.start_due(now), []);
}

#[test]
fn stop_that_the_engine_refuses_is_repeated_and_counted_once() {
    let (mut node, container) = node_with_probes(json!({"liveness": tcp(1)}));
    let mut now = Instant::now();
    node.probe(&container, Some(failure()), now);
    assert_eq!(node.plan(now).steps.len(), 1);
    let message = "the engine refuses".to_owned();
    let problem = Problem { reason: WorkerReason::DockerUnavailable, message };
    node.attempts().done(StepOutcome::Failed(problem), None, 1, now, 0);
    node.probe(&container, None, now);
    let plan = node.plan(now);
    assert_eq!((plan.steps, plan.next_at), (Vec::new(), Some(now + RECHECK_INTERVAL)));
    now += RECHECK_INTERVAL;
    assert!(matches!(&node.plan(now).steps[..], [Step::Stop { .. }]));
    assert_eq!(node.attempts().failures, 0);
    let why = "no".to_owned();
    let failed = FailedProbe { kind: ProbeKind::Startup, failures: 1, why };
    let outcome = StepOutcome::Stopped { id: "1".to_owned(), failed, at: now };
    node.attempts().done(outcome, None, 1, now, 0);
    assert_eq!(node.attempts().failures, 1);
    let message = &node.attempts().problem.as_ref().unwrap().message;
    assert_eq!(message, "startupProbe failed (no); restarted, next attempt in 1 s");
}
