//! Secrets of workers in the plan.

use std::sync::Arc;

use neptune_wire::SecretBytes;

use super::*;
use crate::domain::secret_env::SecretEnv;

/// The values of a worker with one variable.
fn values(fingerprint: &str) -> WorkerValues {
    let value = SecretBytes::new(fingerprint.as_bytes().to_vec());
    let variables = Arc::new([("URL".to_owned(), value)].into());
    let env = Some(SecretEnv { fingerprint: fingerprint.to_owned(), variables });
    WorkerValues { env, ..WorkerValues::default() }
}

fn unreadable() -> Problem {
    Problem { reason: WorkerReason::SecretUnreadable, message: "another key".to_owned() }
}

#[test]
fn worker_waits_for_its_secret_and_keeps_running_without_it() {
    let (mut node, now) = (node(), Instant::now());
    node.values = [(name(), Err(unreadable()))].into();
    let plan = node.plan(now);
    let waiting = (WorkerState::Pending, Some(WorkerReason::SecretUnreadable));
    assert_eq!((health(&plan), plan.steps.len()), (waiting, 0));
    assert_eq!(plan.health[&name()].message, "another key");

    node.values = [(name(), Ok(values("1")))].into();
    let plan = node.plan(now);
    let [Step::Start { spec, identity, .. }] = &plan.steps[..] else { unreachable!("{plan:?}") };
    assert_eq!(spec.secret_env, values("1").env);
    let mut running = observed("1", ContainerState::Running);
    running.identity.spec_hash.clone_from(&identity.spec_hash);
    node.observe(vec![running], now);
    assert_eq!(node.plan(now).steps, [], "converged");

    node.values = [(name(), Err(unreadable()))].into();
    let plan = node.plan(now);
    let degraded = (WorkerState::Running, Some(WorkerReason::WorkerDegraded));
    assert_eq!((health(&plan), plan.steps.len()), (degraded, 0));

    // Equal values of another version, and other values.
    node.values = [(name(), Ok(values("1")))].into();
    assert_eq!(node.plan(now).steps, []);
    node.values = [(name(), Ok(values("2")))].into();
    assert_eq!(removed(&node.plan(now)), ["1"]);
}
