//! Where clients connect to a gateway. A part of `validate`.

use neptune_api::{Gateway, ServerProtocol};
use neptune_wire::NodeName;

use crate::{
    joint_inference_service::{gateway::exposed::is_reachable, resolved::GatewayAddress},
    kubernetes::nodes::in_url,
    worker::ports::{self, gateway_port},
};

/// Where clients connect to a gateway on these nodes. `exposed` has the addresses of the nodes, if
/// others reach it, and `host` is the name of its Service.
pub fn gateway_address(
    gateway: &Gateway,
    protocol: ServerProtocol,
    nodes: &[NodeName],
    exposed: Option<&[(NodeName, String)]>,
    host: &str,
) -> GatewayAddress {
    let addresses = exposed.unwrap_or_default();
    let only = addresses.first().filter(|_| nodes.len() == 1);
    let only = only.map(|(_, address)| address.as_str());
    let has_service = addresses.iter().any(|(_, address)| is_reachable(address));
    GatewayAddress {
        url: gateway_url(gateway, only),
        grpc_url: gateway_grpc_url(gateway, only),
        service_url: has_service
            .then(|| format!("{}://{host}:{}", scheme(gateway), gateway_port(gateway))),
        protocol: Some(protocol.as_str().to_owned()),
    }
}

/// The URL of the gateway. `address` is that of its only node.
pub fn gateway_url(gateway: &Gateway, address: Option<&str>) -> Option<String> {
    url(gateway, address, gateway_port(gateway))
}

/// The URL of the gateway for gRPC, if it has a port for it.
pub fn gateway_grpc_url(gateway: &Gateway, address: Option<&str>) -> Option<String> {
    url(gateway, address, ports::valid(gateway.grpc_port)?)
}

fn url(gateway: &Gateway, address: Option<&str>, port: u16) -> Option<String> {
    let scheme = scheme(gateway);
    if gateway.expose == Some(true) {
        return address.map(|address| format!("{scheme}://{}:{port}", in_url(address)));
    }
    Some(format!("{scheme}://127.0.0.1:{port}"))
}

const fn scheme(gateway: &Gateway) -> &'static str {
    if gateway.tls.is_some() { "https" } else { "http" }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn url_is_loopback_unless_exposed() {
        let mut gateway = Gateway { port: Some(81), ..Gateway::default() };
        assert_eq!(gateway_url(&gateway, None).unwrap(), "http://127.0.0.1:81");
        gateway.expose = Some(true);
        assert_eq!(gateway_url(&gateway, None), None, "no address, or several nodes");
        assert_eq!(gateway_url(&gateway, Some("fd00::1")).unwrap(), "http://[fd00::1]:81");
        gateway.port = None;
        assert_eq!(gateway_url(&gateway, Some("192.0.2.7")).unwrap(), "http://192.0.2.7:8080");
        assert_eq!(gateway_grpc_url(&gateway, Some("192.0.2.7")), None);
        gateway.grpc_port = Some(8082);
        assert_eq!(gateway_grpc_url(&gateway, Some("192.0.2.7")).unwrap(), "http://192.0.2.7:8082");
        gateway.tls = Some(neptune_api::GatewayTls::default());
        assert_eq!(gateway_url(&gateway, Some("192.0.2.7")).unwrap(), "https://192.0.2.7:8080");
        assert_eq!(
            gateway_grpc_url(&gateway, Some("192.0.2.7")).unwrap(),
            "https://192.0.2.7:8082"
        );
    }
}
