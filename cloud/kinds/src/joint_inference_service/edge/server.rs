//! Resolves the model server behind a gateway. A part of `validate`.

use std::collections::BTreeSet;

use neptune_api::{InferenceModel, JointInferenceService};
use neptune_wire::{NodeName, Role};

use crate::{
    finding::Finding,
    inference_model::target::is_on_many,
    joint_inference_service::{
        facts::ServiceFacts,
        resolved::ResolvedServer,
        server::{
            named::named_server,
            owned::{ServerPlace, owned_server},
        },
        spec::forms::EdgeForm,
        worker::resolve::resolve_model,
    },
    kubernetes::labels::contains,
    reason::Reason,
};

/// The model server of a gateway's nodes; `None` with findings if it is invalid.
pub fn edge_server(
    service: &JointInferenceService,
    form: EdgeForm,
    nodes: &[NodeName],
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) -> Option<ResolvedServer> {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    match form {
        EdgeForm::Worker(_) => None,
        EdgeForm::Server(spec) => {
            let field = "spec.edgeWorker.model.name";
            let name = facts.edge_model_name(service)?;
            resolve_model(field, name, facts.edge_model.as_ref(), namespace, findings)?;
            owned_server(service, Role::Edge, spec, &ServerPlace::Edge(nodes), facts, findings)
        }
        EdgeForm::InferenceModel(name) => {
            let field = "spec.edgeWorker.inferenceModel.name";
            let model = facts.gateway.edge_server.as_ref();
            let server = named_server(name, field, model, facts, namespace, findings)?;
            check_nodes(name, model?, nodes, facts, findings);
            Some(server)
        }
    }
}

/// Checks that an `InferenceModel` of the user serves on all nodes of the edge worker.
pub fn check_nodes(
    name: &str,
    model: &InferenceModel,
    nodes: &[NodeName],
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) {
    let is_on_many = is_on_many(model);
    let selects = |node: &NodeName| contains(facts.edge_labels(node), &model.spec.node_selector);
    let is_served = |node: &NodeName| is_on_many && selects(node);
    let field = "spec.edgeWorker.inferenceModel.name";
    let status = model.status.iter();
    let mut serving: BTreeSet<&str> = status
        .flat_map(|status| {
            let servers = status.servers.iter().map(|server| server.node.as_str());
            status.node.as_deref().into_iter().chain(servers)
        })
        .collect();
    let is_edge = model.spec.deploy_to_layer == "edge";
    serving.extend(model.spec.node_name.as_deref().filter(|name| is_edge && !name.is_empty()));
    if serving.is_empty() && is_edge && !is_on_many {
        let message = format!("{field}: waiting for InferenceModel {name:?} to choose a node");
        findings.push(Finding::new(Reason::ServerAddressUnknown, message));
    } else if let Some(missing) =
        nodes.iter().find(|node| !serving.contains(node.as_str()) && !is_served(node))
    {
        let at = if serving.is_empty() {
            "in the cloud".to_owned()
        } else {
            format!("on node {}", serving.into_iter().collect::<Vec<_>>().join(", "))
        };
        let message = format!(
            "{field}: InferenceModel {name:?} is {at} and the edge worker on node {missing}; place both on the same nodes"
        );
        findings.push(Finding::new(Reason::InferenceModelElsewhere, message));
    }
}
