//! Reads the ports that objects use on nodes from the caches. Visits only the objects that have one
//! of these nodes by their name or status, and those on more nodes than a status lists: no other object
//! uses a port there.

use std::{collections::BTreeSet, sync::Arc};

use neptune_api::{InferenceModel, JointInferenceService};
use neptune_cloud_kinds::{
    index_key::IndexKey,
    kubernetes::labels::contains,
    worker::ports::{
        NodePort, has_cloud_worker_on, of_cloud_workers, of_gateway, of_model, of_model_on,
    },
};

use crate::cache::{Cached as _, Caches};

impl Caches {
    /// The ports that model servers, gateways and cloud workers use on these nodes.
    pub fn node_ports(&self, nodes: &BTreeSet<String>) -> Vec<NodePort> {
        let on_many = InferenceModel::cache(self).with_key(&IndexKey::OnManyNodes);
        nodes.iter().flat_map(|node| self.ports_of_node(node, &on_many)).collect()
    }

    /// `on_many` are the model servers on more nodes than a status lists.
    fn ports_of_node(&self, node: &str, on_many: &[Arc<InferenceModel>]) -> Vec<NodePort> {
        let key = IndexKey::Node(node.to_owned());
        let view = self.node(node);
        let models = InferenceModel::cache(self).with_key(&key);
        let services = JointInferenceService::cache(self).with_key(&key);
        let of_models = models.iter().flat_map(|model| of_model(model));
        let of_gateways = services.iter().flat_map(|service| of_gateway(service));
        let is_selected = |model: &&Arc<InferenceModel>| {
            let labels = view.as_deref().map(|view| &*view.labels);
            labels.is_some_and(|labels| contains(labels, &model.spec.node_selector))
        };
        let selected = on_many.iter().filter(is_selected);
        let selected = selected.flat_map(|model| of_model_on(model, node));
        let listed = of_models.chain(of_gateways).filter(|port| port.node == node);
        let mut ports: Vec<NodePort> = listed.chain(selected).collect();
        if view.as_deref().is_some_and(|node| node.runs_agent) {
            let on_node = services.iter().map(Arc::as_ref);
            let on_node: Vec<_> =
                on_node.filter(|service| has_cloud_worker_on(service, node)).collect();
            let of_workers = of_cloud_workers(node, &on_node, &ports);
            ports.extend(of_workers);
        }
        ports
    }
}
