//! Which ports of a gateway others use. Pure: a part of `validate`.

use neptune_api::{Gateway, JointInferenceService};
use neptune_wire::NodeName;

use crate::{
    finding::Finding,
    joint_inference_service::{gateway::fields::invalid, spec::forms::gateway_settings},
    reason::Reason,
    worker::ports::{self, Age, NodePort, PortUse, gateway_port},
};

/// Checks that the ports of the gateway differ, and that no older object and not its own model
/// server uses one of them on one of its nodes.
pub fn check_ports(
    service: &JointInferenceService,
    nodes: &[NodeName],
    used: &[NodePort],
    findings: &mut Vec<Finding>,
) {
    let gateway = gateway_settings(service);
    let rest = gateway_port(&gateway);
    if gateway.grpc_port == Some(rest.into()) {
        invalid("grpcPort", &rest, "is also gateway.port; choose another port", findings);
        return;
    }
    for (field, _) in port_fields(&gateway) {
        let on_nodes = |(used_field, taken): &(&str, &NodePort)| {
            *used_field == field && nodes.iter().any(|node| node.as_str() == taken.node)
        };
        if let Some((_, taken)) = taken_ports(service, used).into_iter().find(on_nodes) {
            let message = format!(
                "spec.gateway.{field} {} is already used by {taken} on node {}; choose another port or node",
                taken.port, taken.node
            );
            findings.push(Finding::new(Reason::PortTaken, message));
        }
    }
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
