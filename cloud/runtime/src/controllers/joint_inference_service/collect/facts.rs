//! Collects the objects that a service refers to, from the caches and the fleet.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::ResourceExt as _;
use neptune_api::{EdgeModel, JointInferenceService, Model, ModelReference, Placement};
use neptune_cloud_kinds::{
    index_key::IndexKey,
    joint_inference_service::{
        facts::{CloudService, ServiceFacts},
        spec::placement::{needs_offers, placed_nodes},
    },
    kubernetes::node_selector::SelectedNodes,
    worker::{
        config::{
            objects::ConfigObjects,
            references::{ConfigKind, ConfigName, references},
        },
        names::worker_name,
        needs::NodeOffers,
        ports::{Age, NodePort, PortUse, has_cloud_worker_on},
    },
};
use neptune_wire::{NodeName, Role};

use crate::{
    cache::{Cached as _, Caches},
    controllers::{
        joint_inference_service::collect::{
            gateway::gateway_facts, selection::selection, services::service_named,
            slices::sliced_nodes,
        },
        rollout::granted,
        runtime::Context,
    },
};

/// The objects that the service refers to, if they exist, and the address and port of its cloud
/// worker.
pub fn collect_facts(service: &JointInferenceService, context: &Context) -> ServiceFacts {
    let caches = context.caches();
    let spec = &service.spec;
    let namespace = service.namespace().unwrap_or_default();
    let model = |reference: &Option<ModelReference>| -> Option<Arc<Model>> {
        caches.get(&namespace, &reference.as_ref()?.name)
    };
    let cloud_name = spec.cloud_worker.node_name.as_deref();
    let cloud_node = cloud_name.and_then(|name| caches.node(name));
    let by_agent = cloud_node.as_deref().is_some_and(|node| node.runs_agent);
    let cloud_name = cloud_name.and_then(|name| name.parse::<NodeName>().ok());
    let dataset = spec.edge_worker.dataset.as_ref();
    let edge_node = spec.edge_worker.node_name.as_deref().and_then(|name| caches.node(name));
    let edge_selected = if spec.edge_worker.node_selector.is_empty() {
        SelectedNodes::default()
    } else {
        context.selected_nodes(&spec.edge_worker.node_selector, kept_node(service))
    };
    let selection = selection(service, context);
    let edge_model = match (&selection, &spec.edge_worker.model) {
        (Some(selection), _) => selection.model.clone(),
        (None, Some(EdgeModel { name: Some(name), .. })) => caches.get(&namespace, name),
        (None, _) => None,
    };
    let offers = if needs_offers(service) {
        let edge = edge_node.iter().chain(&edge_selected.nodes).map(|node| &node.name);
        context.offers(edge.chain(&cloud_name))
    } else {
        NodeOffers::new()
    };
    let seal_keys = if has_secrets(service, context) {
        let edge = edge_node.iter().chain(&edge_selected.nodes).map(|node| &node.name);
        context.seal_keys(edge.chain(&cloud_name))
    } else {
        BTreeMap::new()
    };
    let gateway = gateway_facts(service, edge_node.iter().chain(&edge_selected.nodes), context);
    ServiceFacts {
        edge_model,
        selection,
        cloud_model: model(&spec.cloud_worker.model),
        edge_dataset: dataset.and_then(|dataset| caches.get(&namespace, &dataset.name)),
        edge_node,
        edge_selected,
        offers,
        // They are read before, and added then.
        config: ConfigObjects::default(),
        seal_keys,
        sliced: sliced_nodes(service, context),
        cloud_node,
        frameworks: caches.framework_table(),
        agent_address: cloud_name
            .and_then(|name| context.fleet().address(&name).map(str::to_owned)),
        agent_port: if by_agent { port(service, caches) } else { 0 },
        service: cloud_service(service, &namespace, caches),
        cluster_domain: context.cluster_domain().to_owned(),
        pod_policy: context.pod_policy().clone(),
        reports: context
            .report_target()
            .zip(service.uid())
            .map(|(target, uid)| target.access(&namespace, &service.name_any(), &uid)),
        gateway,
        granted: granted(service, context),
    }
}

/// The Secrets and `ConfigMap`s of the workers that agents run.
pub fn config_references(
    service: &JointInferenceService,
    context: &Context,
) -> BTreeSet<ConfigName> {
    let (edge, cloud) = (&service.spec.edge_worker, &service.spec.cloud_worker);
    let cloud_node = cloud.node_name.as_deref().and_then(|name| context.caches().node(name));
    let is_agent = cloud_node.is_some_and(|node| node.runs_agent);
    let cloud = cloud.worker_spec.as_ref().filter(|_| is_agent);
    edge.worker_spec.iter().chain(cloud).flat_map(|spec| references(spec.into())).collect()
}

fn has_secrets(service: &JointInferenceService, context: &Context) -> bool {
    config_references(service, context).iter().any(|it| it.kind == ConfigKind::Secret)
}

/// The node that stays chosen while it matches; `None` if others may be chosen beside it or instead.
fn kept_node(service: &JointInferenceService) -> Option<&str> {
    let worker = &service.spec.edge_worker;
    let is_one = worker.placement != Some(Placement::All) && worker.dataset.is_none();
    placed_nodes(service).next().filter(|_| is_one)
}

/// The Service that has the name of the cloud worker.
fn cloud_service(
    service: &JointInferenceService,
    namespace: &str,
    caches: &Caches,
) -> Option<CloudService> {
    let worker = &service.spec.cloud_worker.name;
    let name = worker_name(namespace, &service.name_any(), Role::Cloud, worker);
    service_named(namespace, name.as_str(), caches)
}

/// The port of the cloud worker, if it is a program on the node of an agent.
fn port(service: &JointInferenceService, caches: &Caches) -> u16 {
    let node = service.spec.cloud_worker.node_name.clone().unwrap_or_default();
    let ports = caches.node_ports(&[node].into());
    let age = Age::from_metadata(&service.metadata);
    let own = |port: &&NodePort| port.used_for == PortUse::CloudWorker && port.age == age;
    ports.iter().find(own).map_or(0, |port| port.port)
}

/// The services whose cloud worker is on this node.
pub fn on_cloud_node(node: &str, caches: &Caches) -> Vec<Arc<JointInferenceService>> {
    let mut services =
        JointInferenceService::cache(caches).with_key(&IndexKey::Node(node.to_owned()));
    services.retain(|service| has_cloud_worker_on(service, node));
    services
}
