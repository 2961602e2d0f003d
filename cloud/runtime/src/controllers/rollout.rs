//! Observes the rollouts of objects, and remembers which nodes may have their revision.

use k8s_openapi::jiff::Timestamp;
use neptune_cloud_kinds::rollout::{
    observe::{ReportedState, RolloutObject, RolloutObservation, RolloutObserver},
    planned::GrantedNodes,
    step::Moment,
};
use neptune_wire::{NodeName, StatusReport};

use super::runtime::{Context, NODES_PER_LOCK, Stateful};

/// The nodes that may have the present revision of an object, which may not exist yet.
pub fn granted<K: Stateful>(object: &K, context: &Context) -> GrantedNodes {
    let uid = object.meta().uid.as_deref().unwrap_or_default();
    let known = K::state(context.states()).with_known(uid, |state| state.rollout.granted());
    known.unwrap_or_default()
}

/// What is observed of a rollout on these nodes. `state` reads a report on the object.
pub fn observe<K: Stateful>(
    object: &K,
    rollout: RolloutObject,
    nodes: &[&NodeName],
    state: impl Fn(&StatusReport) -> ReportedState,
    (context, now): (&Context, Timestamp),
) -> RolloutObservation {
    let mut memory = context.object_state(object, |state| std::mem::take(&mut state.rollout));
    let is_settled = now >= context.fleet().settled_at();
    let moment = Moment { now, wall: Context::wall_now(), is_settled };
    let delayed = context.publisher().delayed_nodes(rollout.key);
    let mut observer = RolloutObserver::new(rollout, &mut memory, delayed, moment);
    // Not one lock for all: reports of nodes must not wait for it.
    for nodes in nodes.chunks(NODES_PER_LOCK) {
        let views: Vec<_> =
            nodes.iter().map(|node| (*node, context.caches().node(node.as_str()))).collect();
        let fleet = context.fleet();
        for (node, view) in &views {
            observer.add(node, view.as_ref().map(|view| &*view.labels), &fleet, &state);
        }
    }
    let observation = observer.finish();
    context.object_state(object, |state| state.rollout = memory);
    if observation.has_withdrawn {
        context.enqueue(object);
    }
    observation
}

/// The API server has the status of an observation: its grants apply.
pub fn use_grants<K: Stateful>(
    object: &K,
    observed: Option<&RolloutObservation>,
    context: &Context,
) {
    let Some(observed) = observed.filter(|observed| !observed.grants.is_empty()) else { return };
    let revision = &observed.status.revision;
    let is_new = context
        .object_state(object, |state| state.rollout.add_grants(revision, observed.grants.clone()));
    if is_new {
        context.enqueue(object);
    }
}
