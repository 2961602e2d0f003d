//! Collects the objects that a service refers to, from the caches and the fleet.

use std::sync::Arc;

use kube::ResourceExt as _;
use neptune_api::{JointInferenceService, Model};
use neptune_wire::NodeName;

use super::{ports, validate::ServiceFacts};
use crate::{
    cache::{Cached as _, Caches},
    controllers::runtime::Context,
    kubernetes::nodes::is_agent_node,
};

/// The objects that the service refers to, if they exist, and the address and port of its cloud
/// worker.
pub fn facts(service: &JointInferenceService, context: &Context) -> ServiceFacts {
    let caches = context.caches();
    let spec = &service.spec;
    let namespace = service.namespace().unwrap_or_default();
    let model = |name: &str| -> Option<Arc<Model>> { caches.get(&namespace, name) };
    let cloud_node = caches.node(&spec.cloud_worker.node_name);
    let by_agent = cloud_node.as_deref().is_some_and(is_agent_node);
    let cloud_name = spec.cloud_worker.node_name.parse::<NodeName>().ok();
    let dataset = spec.edge_worker.dataset.as_ref();
    ServiceFacts {
        edge_model: model(&spec.edge_worker.model.name),
        cloud_model: model(&spec.cloud_worker.model.name),
        edge_dataset: dataset.and_then(|dataset| caches.get(&namespace, &dataset.name)),
        edge_node: caches.node(&spec.edge_worker.node_name),
        cloud_node,
        frameworks: caches.framework_table(),
        agent_address: cloud_name
            .and_then(|name| context.fleet().address(&name).map(str::to_owned)),
        agent_port: if by_agent { port(service, caches) } else { 0 },
    }
}

fn port(service: &JointInferenceService, caches: &Caches) -> u16 {
    let node = &service.spec.cloud_worker.node_name;
    let on_node = JointInferenceService::cache(caches)
        .state_filter(|other| other.spec.cloud_worker.node_name == *node);
    let on_node: Vec<_> = on_node.iter().map(Arc::as_ref).collect();
    ports::port(service, &on_node)
}
