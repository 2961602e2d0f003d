//! Reads the ports that objects use on nodes from the caches.

use std::{collections::BTreeSet, sync::Arc};

use neptune_api::{InferenceModel, JointInferenceService};

use crate::{
    cache::{Cached as _, Caches},
    kubernetes::nodes::is_agent_node,
    worker::ports::{NodePort, has_cloud_worker_on, of_cloud_workers, of_gateway, of_model},
};

impl Caches {
    /// The ports that model servers, gateways and cloud workers use on these nodes.
    pub fn node_ports(&self, nodes: &BTreeSet<String>) -> Vec<NodePort> {
        let (mut models, mut services) = match nodes.first() {
            None => return Vec::new(),
            Some(only) if nodes.len() == 1 => (
                InferenceModel::cache(self).on_node(only, |_| true),
                JointInferenceService::cache(self).on_node(only, |_| true),
            ),
            Some(_) => {
                (InferenceModel::cache(self).state(), JointInferenceService::cache(self).state())
            }
        };
        // An object may have several keys.
        models.sort_by(|a, b| a.metadata.uid.cmp(&b.metadata.uid));
        models.dedup_by(|a, b| Arc::ptr_eq(a, b));
        services.sort_by(|a, b| a.metadata.uid.cmp(&b.metadata.uid));
        services.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let of_models = models.iter().flat_map(|model| of_model(model));
        let of_gateways = services.iter().flat_map(|service| of_gateway(service));
        let mut ports: Vec<NodePort> =
            of_models.chain(of_gateways).filter(|port| nodes.contains(&port.node)).collect();
        for node in
            nodes.iter().filter(|node| self.node(node).as_deref().is_some_and(is_agent_node))
        {
            let on_node = services.iter().map(Arc::as_ref);
            let on_node: Vec<_> =
                on_node.filter(|service| has_cloud_worker_on(service, node)).collect();
            let of_workers = of_cloud_workers(node, &on_node, &ports);
            ports.extend(of_workers);
        }
        ports
    }
}
