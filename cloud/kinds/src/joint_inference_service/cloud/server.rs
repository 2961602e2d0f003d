//! The address of a model server in the cloud. A part of `validate`.

use std::net::IpAddr;

use crate::{
    finding::Finding,
    joint_inference_service::{facts::ServiceFacts, resolved::ResolvedServer},
    kubernetes::node_view::NodeView,
    reason::Reason,
};

/// The address at which a server in the cloud answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddress {
    /// A host name or an IP address.
    pub host: String,
    /// The address of the host name, if no DNS is needed.
    pub ip: Option<IpAddr>,
}

/// The address of the cloud's model server: of its node if an agent runs it, else of its Service,
/// whose name is known before it exists.
pub fn server_address(
    facts: &ServiceFacts,
    server: &ResolvedServer,
    node: Option<&NodeView>,
    service_host: String,
    findings: &mut Vec<Finding>,
) -> Option<ServerAddress> {
    let gateway = &facts.gateway;
    if let Some(node) = node.filter(|node| node.runs_agent) {
        let address = facts.cloud_node_address();
        if address.is_none() {
            let message = format!(
                "InferenceModel {:?} has no address: node {} has no InternalIP in its status and its agent has not reported an address; start neptune-edge on the node",
                server.name, node.name
            );
            findings.push(Finding::new(Reason::ServerAddressUnknown, message));
        }
        return address.map(|host| ServerAddress { host, ip: None });
    }
    if let Some(host) = &gateway.cloud_server_node_address {
        return Some(ServerAddress { host: host.clone(), ip: None });
    }
    if server.owned.is_none() && gateway.cloud_server_service.is_none() {
        let message = format!(
            "waiting for an address of InferenceModel {:?}; see its status for what it waits for",
            server.name
        );
        findings.push(Finding::new(Reason::ServerAddressUnknown, message));
        return None;
    }
    let ip = gateway.cloud_server_service.and_then(|service| service.cluster_ip);
    Some(ServerAddress { host: service_host, ip })
}
