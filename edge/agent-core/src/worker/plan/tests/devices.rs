//! Workers that request devices in the plan.

use super::*;
use crate::domain::device::DeviceUnit;

fn camera(identity: &str) -> DeviceUnit {
    DeviceUnit {
        name: "a.b/camera=/dev/x".to_owned(),
        resource: "a.b/camera".to_owned(),
        identity: identity.to_owned(),
        parts: Vec::new(),
    }
}

#[test]
fn worker_gets_its_device_waits_without_it_and_is_replaced_with_another_one() {
    let (mut node, now) = (node(), Instant::now());
    let worker = node.desired.workers.get_mut(&name()).unwrap();
    worker.worker.program.devices.insert("a.b/camera".to_owned(), 1);
    assert_eq!(node.plan(now).steps, [], "nothing is decided yet");
    let busy = Problem { reason: WorkerReason::DeviceBusy, message: "in use".to_owned() };
    node.devices.insert(name(), Err(busy.clone()));
    for _ in 0..3 {
        let plan = node.plan(now);
        assert_eq!((plan.steps.len(), plan.next_at), (0, None));
        assert_eq!(health(&plan), (WorkerState::Pending, Some(WorkerReason::DeviceBusy)));
    }
    node.devices.insert(name(), Ok(vec![camera("1")]));
    let plan = node.plan(now);
    let [Step::Start { spec, .. }] = &plan.steps[..] else { unreachable!("{plan:?}") };
    assert_eq!(spec.units, [camera("1")]);
    let mut running = observed("1", ContainerState::Running);
    running.identity.spec_hash = spec.hash().to_string();
    running.devices = [(camera("1").name, "1".to_owned())].into();
    node.observe(vec![running], now);
    assert_eq!(node.plan(now).steps, [], "converged");
    node.devices.insert(name(), Ok(vec![camera("2")]));
    let plan = node.plan(now);
    assert!(starts(&plan) && removed(&plan) == ["1"], "it was connected again: {plan:?}");
    node.devices.insert(name(), Err(busy));
    let plan = node.plan(now);
    assert!(!starts(&plan) && removed(&plan) == ["1"], "it is released: {plan:?}");
    assert_eq!(health(&plan), (WorkerState::Pending, Some(WorkerReason::DeviceBusy)));
}
