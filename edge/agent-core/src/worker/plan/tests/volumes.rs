//! Volumes of workers in the plan.

use neptune_wire::{ContainerMount, EmptyDirMount};

use super::*;
use crate::domain::volume::volume_name;

/// A node whose worker mounts the volume `state`, with its container if that runs.
fn node_with_volume() -> (Node, ObservedContainer) {
    let mut node = node();
    let worker = node.desired.workers.get_mut(&name()).unwrap();
    worker.worker.program.mounts = vec![ContainerMount {
        name: "state".to_owned(),
        path: "/state".to_owned(),
        empty_dir: Some(EmptyDirMount::default()),
        ..ContainerMount::default()
    }];
    let plan = node.plan(Instant::now());
    let [Step::Start { spec, .. }] = &plan.steps[..] else { unreachable!("{plan:?}") };
    let mut running = observed("1", ContainerState::Running);
    running.identity.spec_hash = spec.hash().to_string();
    (node, running)
}

fn volume(volume: &str, instance: &str) -> ObservedVolume {
    let mut identity = observed("1", ContainerState::Running).identity;
    identity.instance = AgentInstance(instance.to_owned());
    ObservedVolume { name: volume_name(&node_context().node, &name(), volume), identity }
}

/// The containers and volumes that the plan removes without starting anything.
fn removals(plan: &NodePlan) -> Vec<(Vec<String>, Vec<String>)> {
    let removals = plan.steps.iter().filter_map(|step| match step {
        Step::Remove { ids, volumes, .. } => Some((ids.clone(), volumes.clone())),
        Step::Start { .. } | Step::Stop { .. } | Step::Place { .. } => None,
    });
    removals.collect()
}

#[test]
fn volume_that_the_container_does_not_mount_any_more_is_removed() {
    let ((mut node, running), now) = (node_with_volume(), Instant::now());
    node.volumes = vec![volume("state", "this"), volume("cache", "this")];
    assert_eq!(removals(&node.plan(now)), [], "the container is started first");
    node.observe(vec![running], now);
    let cache = volume("cache", "this").name;
    assert_eq!(removals(&node.plan(now)), [(Vec::new(), vec![cache])]);
    node.volumes.pop();
    assert_eq!(node.plan(now).steps, [], "converged");
}

#[test]
fn volume_of_a_worker_that_left_is_removed_after_its_container() {
    let ((mut node, running), now) = (node_with_volume(), Instant::now());
    node.volumes = vec![volume("state", "this")];
    node.observe(vec![running.clone()], now);
    node.desired.workers.clear();
    let state = volume("state", "this").name;
    assert_eq!(removals(&node.plan(now)), [(vec!["1".to_owned()], vec![state.clone()])]);
    // The agent was killed between the two.
    node.containers.clear();
    node.attempts.clear();
    assert_eq!(removals(&node.plan(now)), [(Vec::new(), vec![state])]);
}

#[test]
fn volume_of_an_earlier_data_directory_waits_for_every_object_of_the_index() {
    let ((mut node, mut running), now) = (node_with_volume(), Instant::now());
    running.identity.instance = AgentInstance("other".into());
    node.volumes = vec![volume("state", "other")];
    node.observe(vec![running], now);
    node.desired.workers.clear();
    node.is_complete = false;
    assert_eq!(node.plan(now).steps, []);
    // The container of the other data directory stays, and may use the volume of this one.
    node.volumes = vec![volume("state", "this")];
    assert_eq!(node.plan(now).steps, []);
    node.is_complete = true;
    node.keep.insert(wanted_worker().owner);
    node.volumes = vec![volume("state", "other")];
    assert_eq!(node.plan(now).steps, []);
    node.keep.clear();
    assert_eq!(removals(&node.plan(now)).len(), 1);
}
