//! Wakes the services that a change may concern, and forgets those that are gone.

use futures::{StreamExt as _, channel::mpsc::UnboundedReceiver};
use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};
use neptune_api::JointInferenceService;

use super::{
    context::{Context, reference},
    validate::{self, is_agent_node},
};
use crate::stores::Change;

/// Wakes the services that a change may concern, until there are no more changes.
pub async fn dispatch(mut changes: UnboundedReceiver<Change>, context: Context) {
    while let Some(change) = changes.next().await {
        on_change(change, &context);
        let services = context.stores().joint_inference_services.len();
        context.metrics().set_services(services);
    }
}

fn on_change(change: Change, context: &Context) {
    match change {
        Change::Service(service) => {
            context.send(ObjectRef::from_obj(&*service));
            let seen = service.status.as_ref().and_then(|status| status.observed_generation);
            if seen != service.metadata.generation {
                wake_neighbours(&service, context);
            }
        }
        Change::ServiceGone(service) => {
            forget(&service, context);
            wake_neighbours(&service, context);
        }
        Change::Model { namespace, name } => context.wake_where(|service| {
            let spec = &service.spec;
            service.metadata.namespace.as_ref() == Some(&namespace)
                && (spec.edge_worker.model.name == name || spec.cloud_worker.model.name == name)
        }),
        Change::Node(name) => context.wake_where(|service| {
            let spec = &service.spec;
            spec.edge_worker.node_name == name || spec.cloud_worker.node_name == name
        }),
        Change::Owned { namespace, service, gone } => {
            let reference = ObjectRef::new(&service).within(&namespace);
            if gone && let Some(owner) = context.stores().joint_inference_services.get(&reference) {
                context.memory(&owner, |memory| memory.applied = None);
            }
            context.send(reference);
        }
        Change::Frameworks => context.wake_where(|_| true),
        Change::Relisted => {
            forget_vanished(context);
            context.wake_where(|_| true);
        }
    }
}

/// The ports of the services that share an agent's node depend on each other.
fn wake_neighbours(service: &JointInferenceService, context: &Context) {
    let node = &service.spec.cloud_worker.node_name;
    let by_agent = context.stores().nodes.get(&ObjectRef::<Node>::new(node));
    if by_agent.as_deref().is_some_and(is_agent_node) {
        context.wake_where(|other| other.spec.cloud_worker.node_name == *node);
    }
}

/// A service is gone: so is what its nodes had of it.
pub fn forget(service: &JointInferenceService, context: &Context) {
    let uid = service.uid().unwrap_or_default();
    if let Some(key) = validate::key(service) {
        context.downstream().remove(&key);
        context.fleet().forget(&key, &uid);
    }
    context.forget(&uid);
}

/// After a gap in the watch: what went in it left no event.
fn forget_vanished(context: &Context) {
    let store = &context.stores().joint_inference_services;
    for key in context.downstream().services() {
        if store.get(&reference(&key)).is_none() {
            context.downstream().remove(&key);
        }
    }
    context.remember_only(&store.state().iter().filter_map(|service| service.uid()).collect());
}
