//! Collects the objects that a `TrainingModel` refers to, from the caches.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{Node, Service};
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};
use neptune_api::{Dataset, Model, TrainingModel};
use neptune_wire::{
    KeyPin, NodeName, ObjectName,
    aggregator::{RunRequest, RunStatus},
};

use super::{
    aggregator::{PORT, reported_pin},
    frozen::CurrentRun,
    on_node, session,
};
use crate::{
    cache::{Cached as _, Caches},
    controllers::runtime::Context,
    kubernetes::{labels::Labels, nodes::in_url},
    worker::{frameworks::Frameworks, names::aggregator_name},
};

/// The inputs of `validate` from the cluster.
#[derive(Debug, Clone)]
pub struct TrainingFacts {
    /// The Datasets that the spec or the run names, or that labels select, by name.
    pub datasets: BTreeMap<String, Arc<Dataset>>,
    /// The nodes, by name.
    pub nodes: BTreeMap<String, Arc<Node>>,
    /// The framework table, or the error of its `ConfigMap`.
    pub frameworks: Result<Arc<Frameworks>, String>,
    /// The Model of the first weights, if it exists.
    pub initial_model: Option<Arc<Model>>,
    /// The Model of the output, if it exists.
    pub output_model: Option<Arc<Model>>,
    /// The aggregator.
    pub aggregator: AggregatorFacts,
}

/// What is known of the aggregator.
#[derive(Debug, Clone, Default)]
pub struct AggregatorFacts {
    /// Its image.
    pub image: String,
    /// Whether its Pod may run on a control-plane node.
    pub allow_control_plane: bool,
    /// `host:port` at which nodes and the controller reach it.
    pub address: Option<String>,
    /// `host:port` at which workers reach the server of an engine.
    pub session_address: Option<String>,
    /// The pin of the controller's key, once its volume exists.
    pub controller_pin: Option<KeyPin>,
    /// The pin of its key, once it is reported.
    pub pin: Option<KeyPin>,
    /// Its newest state.
    pub state: Option<Arc<RunStatus>>,
    /// The node that runs it; `None` for a Deployment.
    pub node: Option<NodeName>,
    /// What its node has to send to it.
    pub request: Option<RunRequest>,
}

/// The Datasets, nodes, frameworks and Models of a `TrainingModel`, and its aggregator.
pub fn facts(model: &TrainingModel, context: &Context) -> TrainingFacts {
    let caches = context.caches();
    let namespace = model.namespace().unwrap_or_default();
    let datasets = datasets(model, &namespace, caches);
    let spec = &model.spec;
    let named = spec.training_workers.iter().filter_map(|worker| worker.node_name.clone());
    let evaluating = spec.evaluation.iter().filter_map(|it| it.node_name.clone());
    let with_data = datasets.values().map(|dataset| dataset.spec.node_name.clone());
    let aggregating = on_node::spec_node(model).map(str::to_owned);
    let nodes = named.chain(evaluating).chain(with_data).chain(aggregating);
    let nodes = nodes.filter_map(|name| Some((name.clone(), caches.node(&name)?))).collect();
    let model_named = |name: &String| caches.get::<Model>(&namespace, name);
    let initial = spec.initial_weights.as_ref().and_then(|weights| weights.model.as_ref());
    let output = spec.output.as_ref().map(|output| &output.model.name);
    let node = on_node::placement(model);
    let address = match &node {
        Some(node) => on_node::address(model, context.fleet().address(node)),
        None => address(model, caches, context.cluster_domain(), PORT),
    };
    let frameworks = caches.framework_table();
    let session_port = session::port(model, frameworks.as_deref().ok());
    let session_address =
        session_port.and_then(|port| self::address(model, caches, context.cluster_domain(), port));
    let view = context.aggregators().view(model.metadata.uid.as_deref().unwrap_or_default());
    let reported = match &node {
        Some(_) => view.pin,
        None => reported_pin(caches.pods_of(model).iter().map(Arc::as_ref)),
    };
    TrainingFacts {
        datasets,
        nodes,
        frameworks,
        initial_model: initial.and_then(|model| model_named(&model.name)),
        output_model: output.and_then(model_named),
        aggregator: AggregatorFacts {
            image: context.aggregator_image().to_owned(),
            allow_control_plane: context.pod_policy().allow_control_plane,
            address,
            session_address,
            controller_pin: view.controller_pin,
            pin: reported.or_else(|| last_pin(model)),
            state: view.state,
            node,
            request: view.request,
        },
    }
}

fn datasets(
    model: &TrainingModel,
    namespace: &str,
    caches: &Caches,
) -> BTreeMap<String, Arc<Dataset>> {
    let current = model.status.as_ref().and_then(CurrentRun::of);
    let of_run = current.iter().flat_map(|current| current.frozen.datasets());
    let named = used_datasets(model).chain(of_run.map(ObjectName::as_str));
    let named = named.filter_map(|name| caches.get::<Dataset>(namespace, name));
    let select = |labels| Dataset::cache(caches).with_labels(namespace, labels);
    let all = named.chain(selectors(model).flat_map(select));
    all.map(|dataset| (dataset.name_any(), dataset)).collect()
}

/// The names of the Datasets that the spec uses.
pub fn used_datasets(model: &TrainingModel) -> impl Iterator<Item = &str> {
    let spec = &model.spec;
    let workers = spec.training_workers.iter().filter_map(|worker| worker.dataset.name.as_deref());
    let evaluation = spec.evaluation.iter().map(|it| it.dataset.name.as_str());
    let scheduled = spec.schedule.iter().filter_map(|it| it.dataset.as_ref());
    workers.chain(evaluation).chain(scheduled.map(|dataset| dataset.name.as_str()))
}

/// The labels by which workers select Datasets.
pub fn selectors(model: &TrainingModel) -> impl Iterator<Item = &Labels> {
    model.spec.training_workers.iter().filter_map(|worker| worker.dataset.match_labels.as_ref())
}

/// The pin that was reported last: between two Pods, and after the start of the controller, the
/// aggregator has no other key.
fn last_pin(model: &TrainingModel) -> Option<KeyPin> {
    model.status.as_ref()?.aggregator.as_ref()?.pin.clone().map(KeyPin)
}

/// Whether the Service has an address outside the cluster, which may be that of any node.
pub fn is_external(model: &TrainingModel) -> bool {
    let service = model.spec.aggregation.as_ref().and_then(|it| it.service.as_ref());
    let given = service.and_then(|service| service.address.as_ref());
    let type_ = service.and_then(|service| service.type_).unwrap_or_default();
    given.is_none() && type_ != neptune_api::AggregatorServiceType::ClusterIP
}

/// The address in the spec, or else that of the Service: outside the cluster if it has one, or its
/// full DNS name. `None` while a Service that will have one does not exist yet. The address in the
/// spec has the port of the aggregator; other ports have the same host.
fn address(
    model: &TrainingModel,
    caches: &Caches,
    cluster_domain: &str,
    port: u16,
) -> Option<String> {
    let service = model.spec.aggregation.as_ref().and_then(|it| it.service.as_ref());
    if let Some(given) = service.and_then(|service| service.address.clone()) {
        let host = given.rsplit_once(':').map(|(host, _)| host);
        return match host {
            Some(host) if port != PORT => Some(format!("{host}:{port}")),
            _ => Some(given),
        };
    }
    let namespace = model.namespace().unwrap_or_default();
    let name = aggregator_name(&namespace, &model.name_any());
    let reference = ObjectRef::<Service>::new(name.as_str()).within(&namespace);
    caches.services.get(&reference)?;
    let external =
        is_external(model).then(|| caches.external_address(&reference, port, None)).flatten();
    Some(match external {
        Some((host, port)) => format!("{}:{port}", in_url(&host)),
        None => format!("{name}.{namespace}.svc.{cluster_domain}:{port}"),
    })
}
