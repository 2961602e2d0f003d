//! Reads the ports that objects use on nodes from the caches. Visits only the objects that have one
//! of these nodes by their name or status, and those on more nodes than a status lists: no other object
//! uses a port there.

use std::{collections::BTreeSet, sync::Arc};

use neptune_api::{InferenceModel, JointInferenceService};
use neptune_cloud_kinds::{
    index_key::IndexKey,
    joint_inference_service::spec::placement::has_slices,
    kubernetes::{labels::contains, node_view::NodeView},
    worker::ports::{
        NodePort, has_cloud_worker_on, of_cloud_workers, of_gateway, of_gateway_on, of_model,
        of_model_on,
    },
};

use crate::cache::{Cached as _, Caches};

impl Caches {
    /// The ports that model servers, gateways and cloud workers use on these nodes.
    pub fn node_ports(&self, nodes: &BTreeSet<String>) -> Vec<NodePort> {
        let models = InferenceModel::cache(self).with_key(&IndexKey::OnManyNodes);
        let services = JointInferenceService::cache(self).with_key(&IndexKey::OnManyNodes);
        nodes.iter().flat_map(|node| self.ports_of_node(node, &models, &services)).collect()
    }

    /// The services that have this node by their name or status, and those whose rows are in slices
    /// and whose labels select it.
    pub fn services_on(&self, node: &str) -> Vec<Arc<JointInferenceService>> {
        let services = JointInferenceService::cache(self);
        let on_many = services.with_key(&IndexKey::OnManyNodes);
        let mut on_node = services.with_key(&IndexKey::Node(node.to_owned()));
        if !on_many.is_empty() {
            let view = self.node(node);
            let selected = on_many.into_iter().filter(|it| selects(it, view.as_deref()));
            on_node.extend(selected);
        }
        on_node
    }

    /// `models` and `services` are those on more nodes than a status lists.
    fn ports_of_node(
        &self,
        node: &str,
        models: &[Arc<InferenceModel>],
        services: &[Arc<JointInferenceService>],
    ) -> Vec<NodePort> {
        let key = IndexKey::Node(node.to_owned());
        let (view, name) = (self.node(node), node.to_owned());
        let on_node = JointInferenceService::cache(self).with_key(&key);
        let in_status = on_node.iter().filter(|service| {
            !has_slices(service) || service.spec.edge_worker.node_name.as_deref() == Some(node)
        });
        let of_gateways = in_status.flat_map(|service| of_gateway(service));
        let of_models = InferenceModel::cache(self).with_key(&key);
        let of_models = of_models.iter().flat_map(|model| of_model(model)).collect::<Vec<_>>();
        let is_selected = |model: &&Arc<InferenceModel>| {
            let labels = view.as_deref().map(|view| &*view.labels);
            labels.is_some_and(|labels| contains(labels, &model.spec.node_selector))
        };
        let selected = models.iter().filter(is_selected);
        let selected = selected.flat_map(|model| of_model_on(model, node));
        let gateways = services.iter().filter(|service| selects(service, view.as_deref()));
        let gateways = gateways.flat_map(|service| of_gateway_on(service, std::iter::once(&name)));
        let listed = of_models.into_iter().chain(of_gateways).filter(|port| port.node == node);
        let mut ports: Vec<NodePort> = listed.chain(selected).chain(gateways).collect();
        if view.as_deref().is_some_and(|node| node.runs_agent) {
            let on_node = on_node.iter().map(Arc::as_ref);
            let on_node: Vec<_> =
                on_node.filter(|service| has_cloud_worker_on(service, node)).collect();
            let of_workers = of_cloud_workers(node, &on_node, &ports);
            ports.extend(of_workers);
        }
        ports
    }
}

/// Whether the labels of a service select this node for its edge worker.
fn selects(service: &JointInferenceService, view: Option<&NodeView>) -> bool {
    let selector = &service.spec.edge_worker.node_selector;
    let is_selected = |view: &NodeView| view.is_edge && contains(&view.labels, selector);
    !selector.is_empty() && view.is_some_and(is_selected)
}
