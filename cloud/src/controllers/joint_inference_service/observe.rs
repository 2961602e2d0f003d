//! Collects what a service depends on: from the copies of the API's objects and from the fleet.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::{Node, Pod},
    jiff::Timestamp,
};
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};
use neptune_api::{JointInferenceService, Model};
use neptune_wire::{NodeName, ObjectKey, Role};

use crate::{
    cache::{Caches, framework_table},
    controllers::{
        joint_inference_service::{
            observed::{self, AgentFacts, View},
            ports, validate,
        },
        runtime::context::Context,
    },
    kubernetes::{identity::is_owned, nodes::is_agent_node, workloads::SERVICE_ANNOTATION},
    reason::{Finding, Reason},
    worker::names::worker_name,
};

/// What the cluster has of what the service names.
pub fn facts(service: &JointInferenceService, context: &Context) -> validate::Facts {
    let caches = context.caches();
    let spec = &service.spec;
    let namespace = service.namespace().unwrap_or_default();
    let model = |name: &str| -> Option<Arc<Model>> {
        caches.models.get(&ObjectRef::new(name).within(&namespace))
    };
    let node = |name: &str| -> Option<Arc<Node>> { caches.nodes.get(&ObjectRef::new(name)) };
    let cloud_node = node(&spec.cloud_worker.node_name);
    let by_agent = cloud_node.as_deref().is_some_and(is_agent_node);
    let cloud_name = spec.cloud_worker.node_name.parse::<NodeName>().ok();
    validate::Facts {
        edge_model: model(&spec.edge_worker.model.name),
        cloud_model: model(&spec.cloud_worker.model.name),
        edge_dataset: spec.edge_worker.dataset.as_ref().and_then(|dataset| {
            caches.datasets.get(&ObjectRef::new(&dataset.name).within(&namespace))
        }),
        edge_node: node(&spec.edge_worker.node_name),
        cloud_node,
        frameworks: framework_table::frameworks(caches),
        agent_address: cloud_name
            .and_then(|name| context.fleet().address(&name).map(str::to_owned)),
        agent_port: if by_agent { port(service, caches) } else { 0 },
    }
}

fn port(service: &JointInferenceService, caches: &Caches) -> u16 {
    let node = &service.spec.cloud_worker.node_name;
    let on_node = caches
        .joint_inference_services
        .state_filter(|other| other.spec.cloud_worker.node_name == *node);
    let on_node: Vec<_> = on_node.iter().map(Arc::as_ref).collect();
    ports::port(service, &on_node)
}

/// How the two workers fare.
pub fn workers(
    service: &JointInferenceService,
    key: &ObjectKey,
    context: &Context,
    now: Timestamp,
) -> [View; 2] {
    let (edge, cloud) = (&service.spec.edge_worker, &service.spec.cloud_worker);
    let caches = context.caches();
    let cloud_node = caches.nodes.get(&ObjectRef::<Node>::new(&cloud.node_name));
    let edge = by_agent(service, key, context, now, Role::Edge, &edge.name, &edge.node_name);
    let cloud = if cloud_node.as_deref().is_some_and(is_agent_node) {
        by_agent(service, key, context, now, Role::Cloud, &cloud.name, &cloud.node_name)
    } else {
        by_kubelet(service, caches)
    };
    [edge, cloud]
}

fn by_agent(
    service: &JointInferenceService,
    key: &ObjectKey,
    context: &Context,
    now: Timestamp,
    role: Role,
    worker: &str,
    node: &str,
) -> View {
    let Ok(node) = node.parse::<NodeName>() else {
        // `validate` says so as well, and its word comes first.
        let message = format!("there can be no node {node:?}");
        return View::Failed(Finding::new(Reason::NameInvalid, message));
    };
    let worker = worker_name(key.namespace.as_str(), key.name.as_str(), role, worker);
    let uid = service.metadata.uid.as_deref().unwrap_or_default();
    let fleet = context.fleet();
    observed::of_agent(AgentFacts {
        role,
        worker: &worker,
        node: &node,
        presence: fleet.presence(&node),
        report: fleet.report(&node, key, uid),
        settled: now >= fleet.settled_at(),
        connected: context.publisher().transport().is_connected(),
    })
}

fn by_kubelet(service: &JointInferenceService, caches: &Caches) -> View {
    let (namespace, name) = (service.namespace(), service.name_any());
    let owned = caches.deployments.find(|deployment| is_owned(&deployment.metadata, service));
    let pods = caches.pods.state_filter(|pod| {
        pod.namespace() == namespace
            && pod.annotations().get(SERVICE_ANNOTATION) == Some(&name)
            && pod.metadata.deletion_timestamp.is_none()
    });
    let pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
    observed::of_deployment(owned.as_deref(), &pods)
}
