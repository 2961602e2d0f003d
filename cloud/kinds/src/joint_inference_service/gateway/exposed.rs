//! The Service of an exposed gateway, and the Endpoints with the addresses of its nodes.
//!
//! `EdgeMesh` needs core/v1 Endpoints with `nodeName`; it does not read an `EndpointSlice`.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints, ServiceSpec,
};
use neptune_api::JointInferenceService;

use crate::{
    joint_inference_service::resolved::ValidGateway,
    kubernetes::workloads::{self, ExposedService},
};

/// The Service of a gateway; `None` if it is not exposed or no node has an IP address that others
/// reach.
pub fn exposed(service: &JointInferenceService, gateway: &ValidGateway) -> Option<ExposedService> {
    let addresses: Vec<EndpointAddress> = gateway
        .exposed
        .iter()
        .flatten()
        .filter(|(_, address)| is_reachable(address))
        .map(|(node, address)| EndpointAddress {
            ip: address.clone(),
            node_name: Some(node.to_string()),
            ..EndpointAddress::default()
        })
        .collect();
    if addresses.is_empty() {
        return None;
    }
    let metadata = workloads::metadata(service, &gateway.name, "gateway");
    let named = || ["http", "grpc"].into_iter().zip(gateway.ports.iter().copied());
    let ports: Vec<_> = named().collect();
    let mut address = workloads::service(metadata.clone(), &gateway.name, &ports, None);
    address.spec = address.spec.map(|spec| ServiceSpec { selector: None, ..spec });
    let endpoints = Endpoints {
        metadata,
        subsets: Some(vec![EndpointSubset {
            addresses: Some(addresses),
            not_ready_addresses: None,
            ports: Some(named().map(endpoint_port).collect()),
        }]),
    };
    Some(ExposedService { service: address, endpoints })
}

/// Whether other nodes can reach an address. Kubernetes refuses loopback addresses, which an agent
/// reports if the broker has one.
pub fn is_reachable(address: &str) -> bool {
    address.parse::<IpAddr>().is_ok_and(|ip| !ip.is_loopback())
}

/// Makes a port of Endpoints. `name` is that of the Service's port.
fn endpoint_port((name, port): (&str, u16)) -> EndpointPort {
    EndpointPort {
        name: Some(name.to_owned()),
        port: i32::from(port),
        protocol: Some("TCP".to_owned()),
        ..EndpointPort::default()
    }
}
