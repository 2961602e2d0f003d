//! Which ports of a gateway others use. A part of `validate`.

use std::collections::{BTreeMap, HashMap};

use neptune_api::{Gateway, JointInferenceService};
use neptune_wire::NodeName;

use crate::{
    finding::Finding,
    joint_inference_service::{
        gateway::fields::invalid,
        spec::{forms::gateway_settings, placement::is_on_all_nodes},
    },
    reason::Reason,
    worker::ports::{self, Age, NodePort, PortUse, gateway_port},
};

/// Checks that the ports of the gateway differ, and that no older object and not its own model
/// server uses one of them on its node. Returns the nodes on which one does, if there are several: the
/// others run the gateway.
pub fn check_ports(
    service: &JointInferenceService,
    nodes: &[NodeName],
    used: &[NodePort],
    findings: &mut Vec<Finding>,
) -> BTreeMap<NodeName, Finding> {
    let gateway = gateway_settings(service);
    let rest = gateway_port(&gateway);
    if gateway.grpc_port == Some(rest.into()) {
        invalid("grpcPort", &rest, "is also gateway.port; choose another port", findings);
        return BTreeMap::new();
    }
    let nodes: HashMap<_, _> = nodes.iter().map(|node| (node.as_str(), node)).collect();
    let taken = taken_ports(service, used);
    let on_node = |(field, taken): &(&str, &NodePort)| {
        let node = *nodes.get(taken.node.as_str())?;
        let message = format!(
            "spec.gateway.{field} {} is already used by {taken} on node {node}; choose another port or node",
            taken.port
        );
        Some((node.clone(), Finding::new(Reason::PortTaken, message)))
    };
    if is_on_all_nodes(service) {
        // The finding of a node is that of its first port.
        return taken.iter().rev().filter_map(on_node).collect();
    }
    for (field, _) in port_fields(&gateway) {
        let mut of_field = taken.iter().filter(|(used, _)| *used == field);
        findings.extend(of_field.find_map(on_node).map(|(_, finding)| finding));
    }
    BTreeMap::new()
}

/// The ports of the gateway that an object with priority uses: an older one, or the model server of
/// the gateway itself. With the field of `spec.gateway`.
pub fn taken_ports<'a>(
    service: &JointInferenceService,
    used: &'a [NodePort],
) -> Vec<(&'static str, &'a NodePort)> {
    let age = Age::from_metadata(&service.metadata);
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let named = service.spec.edge_worker.inference_model.as_ref();
    let named = named.map(|model| format!("{namespace}/{}", model.name));
    let has_priority = |used: &&NodePort| {
        let is_its_server =
            used.used_for == PortUse::ModelServer && named.as_ref() == Some(&used.object);
        is_its_server || used.age < age
    };
    let fields = port_fields(&gateway_settings(service));
    let field = |port| fields.iter().find(|(_, own)| *own == Some(port)).map(|(field, _)| *field);
    let with_field = |used: &'a NodePort| Some((field(used.port)?, used));
    used.iter().filter(has_priority).filter_map(with_field).collect()
}

/// The fields of `spec.gateway` with a port.
fn port_fields(gateway: &Gateway) -> [(&'static str, Option<u16>); 2] {
    [("port", Some(gateway_port(gateway))), ("grpcPort", ports::valid(gateway.grpc_port))]
}
