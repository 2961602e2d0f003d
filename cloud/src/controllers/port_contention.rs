//! Enqueues the objects whose ports depend on those that another object has, or had before. Visits only
//! the objects on its nodes, and those that wait for one of its ports.

use std::collections::{BTreeSet, HashSet};

use neptune_api::{InferenceModel, JointInferenceService};

use super::runtime::{Context, Controller};
use crate::{
    cache::{Cached as _, IndexKey},
    worker::ports,
};

/// The ports that an object may have on its nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OccupiedPorts {
    /// The nodes of its server or gateway.
    pub nodes: BTreeSet<String>,
    /// The ports of its server or gateway.
    pub ports: BTreeSet<u16>,
    /// The node of its cloud worker, which may have any port of the range.
    pub of_cloud_worker: BTreeSet<String>,
}

/// The key of an object that waits for this port.
pub fn awaits(port: u16) -> IndexKey {
    IndexKey::AwaitsPort((!ports::may_be_of_cloud_worker(port)).then_some(port))
}

impl OccupiedPorts {
    /// Adds the nodes and ports of `others` to these.
    #[must_use]
    pub fn and(mut self, mut others: Self) -> Self {
        self.nodes.append(&mut others.nodes);
        self.ports.append(&mut others.ports);
        self.of_cloud_worker.append(&mut others.of_cloud_worker);
        self
    }

    /// Enqueues the other objects that have one of these ports, may have to use another one, or wait for
    /// one of them. `object` is the one that has them.
    pub fn enqueue_contenders<K: Controller>(&self, object: &K, context: &Context) {
        let own = object.meta().uid.as_deref();
        let (models, services) = (
            InferenceModel::cache(context.caches()),
            JointInferenceService::cache(context.caches()),
        );
        let in_range = |port: &u16| ports::may_be_of_cloud_worker(*port);
        for node in self.nodes.union(&self.of_cloud_worker) {
            let on_node = IndexKey::Node(node.clone());
            let is_range_taken = self.of_cloud_worker.contains(node);
            let has_port =
                |port: u16| self.ports.contains(&port) || is_range_taken && in_range(&port);
            for model in models.with_key(&on_node) {
                if ports::model_ports(&model).any(has_port) {
                    enqueue_other(&*model, own, context);
                }
            }
            let moves_worker = self.ports.iter().any(in_range);
            for service in services.with_key(&on_node) {
                let has_worker = moves_worker && ports::has_cloud_worker_on(&service, node);
                if has_worker || ports::of_gateway(&service).iter().any(|it| has_port(it.port)) {
                    enqueue_other(&*service, own, context);
                }
            }
        }
        let of_worker = (!self.of_cloud_worker.is_empty()).then_some(IndexKey::AwaitsPort(None));
        let awaited: HashSet<_> =
            self.ports.iter().map(|port| awaits(*port)).chain(of_worker).collect();
        for key in awaited {
            models.with_key(&key).iter().for_each(|model| enqueue_other(&**model, own, context));
            services.with_key(&key).iter().for_each(|it| enqueue_other(&**it, own, context));
        }
    }
}

fn enqueue_other<K: Controller>(object: &K, own: Option<&str>, context: &Context) {
    if object.meta().uid.as_deref() != own {
        context.enqueue(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_of_the_range_of_cloud_workers_is_awaited_by_its_range() {
        assert_eq!(awaits(8080), IndexKey::AwaitsPort(Some(8080)));
        assert_eq!(awaits(20_000), IndexKey::AwaitsPort(None));
        assert_eq!(awaits(29_999), awaits(20_000));
    }
}
