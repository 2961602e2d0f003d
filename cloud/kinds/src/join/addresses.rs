//! The names and addresses at which nodes reach the broker and the join server.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, Service};
use kube_core::ResourceExt as _;

use crate::kubernetes::{node_view::NodeView, nodes::NodeReadiness};

/// Nodes of the cluster whose addresses are used, in the order of their names. More are not needed,
/// and a certificate with thousands of names fits into no handshake.
const MAX_NODES: usize = 64;

/// The annotation of the Service of the join server with the address for nodes.
pub const ADDRESS_ANNOTATION: &str = "neptune.io/address";

/// The Services of the broker, which the manifests create.
const BROKER_SERVICES: [&str; 2] = ["neptune-mosquitto", "neptune-mosquitto-nodes"];

/// The addresses of the nodes that are ready and no edge nodes: the external ones first.
pub fn node_addresses<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Vec<String> {
    let is_cloud = |node: &&Node| {
        let view = NodeView::new(&node.name_any(), Some(node), None);
        view.is_some_and(|view| !view.is_edge && view.readiness == NodeReadiness::Ready)
    };
    let mut nodes: Vec<&Node> = nodes.into_iter().filter(is_cloud).collect();
    nodes.sort_by_key(|node| node.name_any());
    nodes.truncate(MAX_NODES);
    let mut addresses = Vec::new();
    for kind in ["ExternalIP", "InternalIP"] {
        for node in &nodes {
            let listed = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
            let matching = listed.filter(|address| address.type_ == kind);
            addresses.extend(matching.map(|address| address.address.clone()));
        }
    }
    addresses
}

/// The names of the broker's certificate: `addresses`, or else those of the nodes, the names of its
/// Services, and loopback.
pub fn broker_names<'a>(
    addresses: &[String],
    nodes: impl IntoIterator<Item = &'a Node>,
    namespace: &str,
    cluster_domain: &str,
) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = if addresses.is_empty() {
        node_addresses(nodes).into_iter().collect()
    } else {
        addresses.iter().cloned().collect()
    };
    names.extend(["localhost", "127.0.0.1"].map(str::to_owned));
    for service in BROKER_SERVICES {
        let in_namespace = format!("{service}.{namespace}");
        names.insert(service.to_owned());
        names.insert(format!("{in_namespace}.svc"));
        names.insert(format!("{in_namespace}.svc.{cluster_domain}"));
        names.insert(in_namespace);
    }
    names
}

/// The URL at which nodes reach the join server, by its Service; `None` if it has no address yet.
/// The second value is whether the address is a guess: the first one of a node of the cluster.
pub fn join_url(service: &Service, nodes: &[Node]) -> Option<(String, bool)> {
    let spec = service.spec.as_ref()?;
    let port = spec.ports.as_ref()?.first()?;
    let is_balanced = spec.type_.as_deref() == Some("LoadBalancer");
    let port = if is_balanced { port.port } else { port.node_port? };
    let url = |host: &str| {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        format!("https://{host}:{port}")
    };
    if let Some(address) = service.annotations().get(ADDRESS_ANNOTATION) {
        return Some((url(address), false));
    }
    if is_balanced {
        let status = service.status.as_ref()?.load_balancer.as_ref()?;
        let ingress = status.ingress.as_ref()?.first()?;
        return Some((url(ingress.hostname.as_ref().or(ingress.ip.as_ref())?), false));
    }
    Some((url(node_addresses(nodes).first()?), true))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    #![allow(clippy::needless_pass_by_value, reason = "json! makes values")]
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, labels: Value, ready: &str, addresses: &[(&str, &str)]) -> Node {
        let addresses: Vec<Value> =
            addresses.iter().map(|(kind, it)| json!({"type": kind, "address": it})).collect();
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "status": {
            "conditions": [{"type": "Ready", "status": ready}], "addresses": addresses}}))
        .unwrap()
    }

    fn nodes() -> [Node; 4] {
        let edge = json!({"node-role.kubernetes.io/edge": ""});
        [
            node("b", json!({}), "True", &[("InternalIP", "10.0.0.2"), ("Hostname", "b")]),
            node("a", json!({}), "True", &[("InternalIP", "10.0.0.1"), ("ExternalIP", "1.2.3.4")]),
            node("c", json!({}), "False", &[("InternalIP", "10.0.0.3")]),
            node("d", edge, "True", &[("InternalIP", "10.0.0.4")]),
        ]
    }

    fn service(spec: Value, annotations: Value, status: Value) -> Service {
        let metadata = json!({"name": "neptune-join", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status}))
            .unwrap()
    }

    #[test]
    fn ready_nodes_of_the_cloud_have_addresses_the_external_first() {
        assert_eq!(node_addresses(&nodes()), ["1.2.3.4", "10.0.0.1", "10.0.0.2"]);
    }

    #[test]
    fn certificate_has_the_given_addresses_or_those_of_nodes_and_the_services() {
        let names = broker_names(&[], &nodes(), "neptune-system", "cluster.local");
        assert!(names.contains("10.0.0.2") && !names.contains("10.0.0.4"));
        assert!(names.contains("neptune-mosquitto.neptune-system.svc.cluster.local"));
        let given = broker_names(&["b.example".to_owned()], &nodes(), "n", "cluster.local");
        assert!(given.contains("b.example") && !given.contains("10.0.0.2"));
    }

    #[test]
    fn url_is_by_the_type_of_the_service() {
        let none = Value::Null;
        let port = json!({"ports": [{"port": 443, "nodePort": 30884}]});
        let balanced = json!({"type": "LoadBalancer", "ports": [{"port": 443}]});
        let ingress = json!({"loadBalancer": {"ingress": [{"ip": "2001:db8::1"}]}});
        let named = json!({ADDRESS_ANNOTATION: "join.example"});
        let url = |spec: &Value, annotations: &Value, status: &Value| {
            join_url(&service(spec.clone(), annotations.clone(), status.clone()), &nodes())
        };
        let known = |url: &str, guessed| Some((url.to_owned(), guessed));
        assert_eq!(url(&port, &none, &none), known("https://1.2.3.4:30884", true));
        assert_eq!(url(&port, &named, &none), known("https://join.example:30884", false));
        assert_eq!(url(&balanced, &none, &none), None);
        assert_eq!(url(&balanced, &none, &ingress), known("https://[2001:db8::1]:443", false));
    }
}
