//! Collects the objects that a `TrainingModel` refers to, from the caches.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Service;
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};
use neptune_api::{Dataset, Model, TrainingModel};
use neptune_cloud_kinds::{
    kubernetes::nodes::in_url,
    training_model::{
        aggregator::{PORT, reported_pin},
        frozen::CurrentRun,
        on_node,
        references::{is_external, selectors, used_datasets},
        resolved::{AggregatorFacts, TrainingFacts},
        session,
    },
    worker::names::aggregator_name,
};
use neptune_wire::{KeyPin, ObjectName};

use crate::{
    cache::{Cached as _, Caches},
    controllers::runtime::Context,
};

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
    let current = model.status.as_ref().and_then(CurrentRun::from_status);
    let needing =
        current.as_ref().filter(|it| !it.frozen.container.program.required_features().is_empty());
    let of_run = needing.map(|current| current.frozen.nodes()).unwrap_or_default();
    let offers = context.offers(of_run.into_iter());
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
        offers,
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
    let current = model.status.as_ref().and_then(CurrentRun::from_status);
    let of_run = current.iter().flat_map(|current| current.frozen.datasets());
    let named = used_datasets(model).chain(of_run.map(ObjectName::as_str));
    let named = named.filter_map(|name| caches.get::<Dataset>(namespace, name));
    let select = |labels| Dataset::cache(caches).with_labels(namespace, labels);
    let all = named.chain(selectors(model).flat_map(select));
    all.map(|dataset| (dataset.name_any(), dataset)).collect()
}

/// The pin that was reported last: between two Pods, and after the start of the controller, the
/// aggregator has no other key.
fn last_pin(model: &TrainingModel) -> Option<KeyPin> {
    model.status.as_ref()?.aggregator.as_ref()?.pin.clone().map(KeyPin)
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
