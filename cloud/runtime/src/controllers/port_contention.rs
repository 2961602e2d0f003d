//! Enqueues the objects whose ports depend on those that another object has, or had before. Visits only
//! the objects on its nodes, and those that wait for one of its ports.

use std::collections::HashSet;

use neptune_api::{InferenceModel, JointInferenceService};
use neptune_cloud_kinds::{
    index_key::IndexKey,
    port_contention::{OccupiedPorts, awaits},
    worker::ports,
};

use super::runtime::{Context, Controller};
use crate::cache::Cached as _;

/// Enqueues the other objects that have one of the `occupied` ports, may have to use another one, or
/// wait for one of them. `object` is the one that has them.
pub fn enqueue_contenders<K: Controller>(occupied: &OccupiedPorts, object: &K, context: &Context) {
    let own = object.meta().uid.as_deref();
    let (models, services) =
        (InferenceModel::cache(context.caches()), JointInferenceService::cache(context.caches()));
    let in_range = |port: &u16| ports::may_be_of_cloud_worker(*port);
    for node in occupied.nodes.union(&occupied.of_cloud_worker) {
        let on_node = IndexKey::Node(node.clone());
        let is_range_taken = occupied.of_cloud_worker.contains(node);
        let has_port =
            |port: u16| occupied.ports.contains(&port) || is_range_taken && in_range(&port);
        for model in models.with_key(&on_node) {
            if ports::model_ports(&model).any(has_port) {
                enqueue_other(&*model, own, context);
            }
        }
        let moves_worker = occupied.ports.iter().any(in_range);
        for service in context.caches().services_on(node) {
            let has_worker = moves_worker && ports::has_cloud_worker_on(&service, node);
            let of_gateway = ports::of_gateway_on(&service, std::iter::once(node));
            if has_worker || of_gateway.iter().any(|it| has_port(it.port)) {
                enqueue_other(&*service, own, context);
            }
        }
    }
    let of_worker = (!occupied.of_cloud_worker.is_empty()).then_some(IndexKey::AwaitsPort(None));
    let awaited: HashSet<_> =
        occupied.ports.iter().map(|port| awaits(*port)).chain(of_worker).collect();
    for key in awaited {
        models.with_key(&key).iter().for_each(|model| enqueue_other(&**model, own, context));
        services.with_key(&key).iter().for_each(|it| enqueue_other(&**it, own, context));
    }
}

fn enqueue_other<K: Controller>(object: &K, own: Option<&str>, context: &Context) {
    if object.meta().uid.as_deref() != own {
        context.enqueue(object);
    }
}
