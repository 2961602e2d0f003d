//! The gateway of a service: its configuration file, checked as the gateway checks it, and its
//! address. Pure: a part of `validate`.

use std::{collections::BTreeMap, net::IpAddr};

use hyper::{
    Uri,
    header::{HeaderName, HeaderValue},
};
use neptune_api::{
    Gateway, GatewayTimeouts, JointInferenceService, OnCloudFailure, OnEdgeFailure, ServerProtocol,
    Streaming,
};
use neptune_wire::{GatewaySpec, NodeName, WorkerName};
use serde_json::{Map, Value, json};

use crate::{
    controllers::joint_inference_service::{hard_example, server::ResolvedServer},
    finding::Finding,
    kubernetes::{nodes::in_url, quantities},
    reason::Reason,
    worker::ports::{self, Age, NodePort, PortUse, gateway_port},
};

/// A gateway with resolved references.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidGateway {
    /// The container name, unique on the node.
    pub name: WorkerName,
    /// The image of the container.
    pub image: String,
    /// What the agent provides for it.
    pub spec: GatewaySpec,
    /// Its ports on the node: for REST, and for gRPC if it has one.
    pub ports: Vec<u16>,
    /// The addresses of its nodes, if a Service is to reach it.
    pub exposed: Option<Vec<(NodeName, String)>>,
    /// The URL of that Service.
    pub service_url: Option<String>,
}

/// The server that answers hard samples.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CloudTarget {
    /// The base URL.
    pub url: String,
    /// The address of its gRPC, if it has one.
    pub grpc_url: Option<String>,
    /// The name of the model there.
    pub model_name: Option<String>,
    /// Its protocol, if it is known.
    pub protocol: Option<ServerProtocol>,
    /// Whether it is the gateway of another service.
    pub is_gateway: bool,
    /// Whether `http://` is permitted: the address is one of the cluster.
    pub allow_plain_http: bool,
    /// Addresses of its host, by name. They are a part of the configuration, so that another address
    /// does not replace the container.
    pub addresses: BTreeMap<String, IpAddr>,
    /// The name of the file with the token.
    pub token_file: Option<String>,
    /// The name of the file with certificates.
    pub ca_file: Option<String>,
}

/// Characters of a UID that identify a gateway.
const ID_LENGTH: usize = 12;

/// The settings of `spec.gateway`.
pub fn settings(service: &JointInferenceService) -> Gateway {
    service.spec.gateway.as_deref().cloned().unwrap_or_default()
}

/// The URL of the gateway. `address` is that of its only node.
pub fn gateway_url(gateway: &Gateway, address: Option<&str>) -> Option<String> {
    url(gateway, address, gateway_port(gateway))
}

/// The URL of the gateway for gRPC, if it has a port for it.
pub fn grpc_url(gateway: &Gateway, address: Option<&str>) -> Option<String> {
    url(gateway, address, ports::valid(gateway.grpc_port)?)
}

fn url(gateway: &Gateway, address: Option<&str>, port: u16) -> Option<String> {
    if gateway.expose == Some(true) {
        return address.map(|address| format!("http://{}:{port}", in_url(address)));
    }
    Some(format!("http://127.0.0.1:{port}"))
}

/// Checks that the ports of the gateway differ, and that no older object and not its own model
/// server uses one of them on one of its nodes.
pub fn check_ports(
    service: &JointInferenceService,
    nodes: &[NodeName],
    used: &[NodePort],
    findings: &mut Vec<Finding>,
) {
    let gateway = settings(service);
    let rest = gateway_port(&gateway);
    if gateway.grpc_port == Some(rest.into()) {
        invalid("grpcPort", &rest, "is also gateway.port; choose another port", findings);
        return;
    }
    for (field, _) in port_fields(&gateway) {
        let on_nodes = |(of, taken): &(&str, &NodePort)| {
            *of == field && nodes.iter().any(|node| node.as_str() == taken.node)
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
    let age = Age::of(&service.metadata);
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let named = service.spec.edge_worker.inference_model.as_ref();
    let named = named.map(|model| format!("{namespace}/{}", model.name));
    let has_priority = |used: &&NodePort| {
        let is_its_server =
            used.used_for == PortUse::ModelServer && named.as_ref() == Some(&used.object);
        is_its_server || used.age < age
    };
    let fields = port_fields(&settings(service));
    let field = |port| fields.iter().find(|(_, own)| *own == Some(port)).map(|(field, _)| *field);
    let with_field = |used: &'a NodePort| Some((field(used.port)?, used));
    used.iter().filter(has_priority).filter_map(with_field).collect()
}

/// The fields of `spec.gateway` with a port.
fn port_fields(gateway: &Gateway) -> [(&'static str, Option<u16>); 2] {
    [("port", Some(gateway_port(gateway))), ("grpcPort", ports::valid(gateway.grpc_port))]
}

/// The configuration file of the gateway, without the members that the agent sets. `edge` is the
/// node's model server.
pub fn config(
    service: &JointInferenceService,
    protocol: ServerProtocol,
    edge: &ResolvedServer,
    cloud: &CloudTarget,
    findings: &mut Vec<Finding>,
) -> Option<Value> {
    let before = findings.len();
    let gateway = settings(service);
    let listen = if gateway.expose == Some(true) { "0.0.0.0" } else { "127.0.0.1" };
    for (field, port) in [("port", gateway.port), ("grpcPort", gateway.grpc_port)] {
        if let Some(port) = port.filter(|port| !(1..=65_535).contains(port)) {
            invalid(field, &port, "must be 1 to 65535", findings);
        }
    }
    let hard_example =
        hard_example::config(&service.spec.edge_worker.hard_example_algorithm, protocol, findings);
    let mut config = json!({
        "service": service.metadata.name.as_deref().unwrap_or_default(),
        "protocol": protocol.to_string(),
        "listen": format!("{listen}:{}", gateway_port(&gateway)),
        "edge": {"address": format!("127.0.0.1:{}", edge.port), "model": edge.model_name},
        "cloud": {"url": cloud.url},
        "hardExample": hard_example,
    });
    if let Some(id) = id(service, &gateway) {
        config["id"] = id.into();
    }
    if let Some(name) = &cloud.model_name {
        config["cloud"]["modelName"] = name.as_str().into();
    }
    if !cloud.addresses.is_empty() {
        config["cloud"]["addresses"] = json!(cloud.addresses);
    }
    if cloud.allow_plain_http {
        config["cloud"]["allowPlainHttp"] = true.into();
    }
    if let (Some(port), Some(edge), Some(url)) =
        (ports::valid(gateway.grpc_port), edge.grpc_port, &cloud.grpc_url)
    {
        config["grpcListen"] = format!("{listen}:{port}").into();
        config["edge"]["grpcAddress"] = format!("127.0.0.1:{edge}").into();
        config["cloud"]["grpcUrl"] = url.as_str().into();
    }
    let on_cloud_failure = gateway.on_cloud_failure.map(|action| match action {
        OnCloudFailure::EdgeAnswer => "EdgeAnswer",
        OnCloudFailure::Error => "Error",
    });
    let on_edge_failure = gateway.on_edge_failure.map(|action| match action {
        OnEdgeFailure::Cloud => "Cloud",
        OnEdgeFailure::Error => "Error",
    });
    let streaming = gateway.streaming.map(|streaming| match streaming {
        Streaming::Auto => "Auto",
        Streaming::Buffer => "Buffer",
        Streaming::Prefix => "Prefix",
        Streaming::EdgeOnly => "EdgeOnly",
    });
    for (name, value) in [
        ("onCloudFailure", on_cloud_failure),
        ("onEdgeFailure", on_edge_failure),
        ("streaming", streaming),
    ] {
        if let Some(value) = value {
            config[name] = value.into();
        }
    }
    if let Some(never_upload) = &gateway.never_upload {
        headers(&never_upload.headers, findings);
        config["neverUpload"] = json!({"headers": never_upload.headers});
    }
    for (name, members) in [
        ("timeouts", timeouts(gateway.timeouts.as_ref(), slowest(protocol, cloud), findings)),
        ("limits", limits(&gateway, findings)),
    ] {
        if !members.is_empty() {
            config[name] = members.into();
        }
    }
    (findings.len() == before).then_some(config)
}

/// The identity of the gateway among others: the beginning of the service's UID. Only a gateway that
/// another one may call, or that may call another one, has one.
fn id(service: &JointInferenceService, gateway: &Gateway) -> Option<String> {
    let cloud = &service.spec.cloud_worker;
    let is_in_a_chain =
        gateway.expose == Some(true) || cloud.service.is_some() || cloud.endpoint.is_some();
    let uid = service.metadata.uid.as_deref().filter(|_| is_in_a_chain)?;
    let id: String = uid.chars().filter(char::is_ascii_alphanumeric).take(ID_LENGTH).collect();
    Some(id).filter(|id| !id.is_empty())
}

/// Adds a finding on a field of `spec.gateway`.
pub fn invalid(field: &str, value: &dyn std::fmt::Debug, why: &str, findings: &mut Vec<Finding>) {
    let message = format!("spec.gateway.{field} {value:?} {why}");
    findings.push(Finding::new(Reason::GatewayInvalid, message));
}

fn headers(headers: &[String], findings: &mut Vec<Finding>) {
    let parse = |text: &String| -> Option<()> {
        let (name, value) = text.split_once(':')?;
        name.parse::<HeaderName>().ok()?;
        // As in the CRD: printable, and not empty.
        let value = value.trim_start_matches(' ');
        let is_plain = value.bytes().all(|b| (b' '..=b'~').contains(&b)) && !value.ends_with(' ');
        let value = Some(value).filter(|value| is_plain && !value.is_empty())?;
        value.parse::<HeaderValue>().ok().map(drop)
    };
    for header in headers.iter().filter(|header| parse(header).is_none()) {
        invalid("neverUpload.headers", header, "must be \"name: value\"", findings);
    }
}

/// How long another gateway may take for the first byte of its answer, by default as long as for all
/// of it: it answers when it has asked its own cloud.
fn slowest(protocol: ServerProtocol, cloud: &CloudTarget) -> Option<&'static str> {
    let total = if protocol == ServerProtocol::Openai { "120s" } else { "5s" };
    cloud.is_gateway.then_some(total)
}

fn timeouts(
    timeouts: Option<&GatewayTimeouts>,
    slowest: Option<&str>,
    findings: &mut Vec<Finding>,
) -> Map<String, Value> {
    let mut timeouts = timeouts.cloned().unwrap_or_default();
    if let (Some(slowest), None) = (slowest, &timeouts.cloud_first_byte) {
        let total = timeouts.cloud_total.as_deref().unwrap_or(slowest);
        timeouts.cloud_first_byte = Some(total.to_owned());
    }
    let mut members = Map::new();
    for (name, value) in [
        ("edge", timeouts.edge),
        ("cloudConnect", timeouts.cloud_connect),
        ("cloudFirstByte", timeouts.cloud_first_byte),
        ("cloudTotal", timeouts.cloud_total),
    ] {
        let Some(value) = value else { continue };
        if !is_duration(&value) {
            let field = format!("timeouts.{name}");
            invalid(&field, &value, "must be a duration such as 500ms, 10s or 2m", findings);
        }
        members.insert(name.to_owned(), value.into());
    }
    members
}

/// Whether a text is a whole number above 0 of at most 6 digits with a unit.
fn is_duration(text: &str) -> bool {
    let units = ["ms", "s", "m", "h"];
    let number = units.iter().find_map(|unit| {
        let number = text.strip_suffix(unit)?;
        number.bytes().all(|b| b.is_ascii_digit()).then_some(number)
    });
    number.is_some_and(|number| (1..=6).contains(&number.len()) && !number.starts_with('0'))
}

fn limits(gateway: &Gateway, findings: &mut Vec<Finding>) -> Map<String, Value> {
    let mut members = Map::new();
    if let Some(text) = &gateway.max_body_bytes {
        // The agent's node may have 32 bits.
        let bytes = quantities::parse(text, 1).filter(|bytes| (1..1 << 31).contains(bytes));
        if bytes.is_none() {
            let why = "must be a Kubernetes quantity above 0 and below 2Gi, such as \"32Mi\"";
            invalid("maxBodyBytes", text, why, findings);
        }
        members.insert("maxBodyBytes".to_owned(), bytes.into());
    }
    if let Some(number) = gateway.max_in_flight {
        if !(1..=65_535).contains(&number) {
            invalid("maxInFlight", &number, "must be 1 to 65535", findings);
        }
        members.insert("maxInFlight".to_owned(), number.into());
    }
    members
}

/// Checks the URL of an endpoint as the gateway does: `http` only to a loopback address.
pub fn check_url(url: &str) -> Result<(), &'static str> {
    let uri: Uri = url.parse().map_err(|_| "must be a URL such as https://llm.example/v1")?;
    let Some(authority) = uri.authority() else { return Err("must have a host") };
    if authority.as_str().contains('@') {
        return Err("must have no user and password; use tokenFile");
    }
    if uri.query().is_some() || url.contains('#') {
        return Err("must have no query and no fragment");
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let is_loopback =
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    match uri.scheme_str() {
        Some("https") => Ok(()),
        Some("http") if is_loopback => Ok(()),
        Some("http") => Err("must be https: http is only for a loopback address"),
        _ => Err("must be https"),
    }
}

/// Checks the address of an endpoint's gRPC as the gateway does: as [`check_url`], with a port and
/// without a path.
pub fn check_grpc_url(url: &str) -> Result<(), &'static str> {
    check_url(url)?;
    let uri: Uri =
        url.parse().map_err(|_| "must be an address such as https://models.example:8001")?;
    if uri.port_u16().is_none() {
        return Err("must have a port, such as https://models.example:8001");
    }
    if !matches!(uri.path(), "" | "/") {
        return Err("must have no path: gRPC has no base path");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::controllers::joint_inference_service::fixtures;

    fn server() -> ResolvedServer {
        ResolvedServer {
            name: "m".to_owned(),
            model_name: "m".to_owned(),
            port: 9001,
            grpc_port: Some(9002),
            protocol: None,
            owned: None,
        }
    }

    #[test]
    fn address_of_grpc_has_a_port_and_no_path() {
        for url in ["https://a:8001", "http://127.0.0.1:1/", "https://[2001:db8::1]:8001"] {
            assert_eq!(check_grpc_url(url), Ok(()), "{url}");
        }
        for url in
            ["", "https://a", "a:8001", "http://10.0.0.1:1", "https://a:1/v2", "https://u@a:1"]
        {
            assert!(check_grpc_url(url).is_err(), "{url}");
        }
    }

    #[test]
    fn plain_http_is_only_for_loopback() {
        for url in [
            "https://a",
            "https://a:8443/v1",
            "http://127.0.0.1:1/v1",
            "http://[::1]:1",
            "http://localhost",
        ] {
            assert_eq!(check_url(url), Ok(()), "{url}");
        }
        for url in [
            "",
            "llm",
            "ftp://a",
            "http://10.0.0.1",
            "https://u:p@a",
            "https://a/?k=1",
            "https://a/#f",
        ] {
            assert!(check_url(url).is_err(), "{url}");
        }
    }

    /// What the controller accepts, the gateway accepts too, with the same meaning.
    #[test]
    fn gateway_accepts_every_configuration_that_the_controller_builds() {
        let algorithms = [
            "LogProb",
            "CrossEntropy",
            "MaxProbability",
            "Margin",
            "IBT",
            "Threshold",
            "Random",
            "CloudOnly",
            "EdgeOnly",
        ];
        let goals = [
            json!({}),
            json!({"uploadRatio": "0.2"}),
            json!({"uploadRatio": "0.2", "maxUploadRatio": "0.2", "shadowRatio": "0"}),
            json!({"agreement": "0.97", "maxUploadRatio": "1.0"}),
            json!({"maxUploadRatio": "0.5"}),
            json!({"uploadRatio": "1", "maxUploadRatio": "0.5"}),
        ];
        let parameters = [
            json!([]),
            json!([{"key": "threshold", "value": "0.75"}]),
            json!([{"key": "threshold_img", "value": "2"}]),
            json!([{"key": "kind", "value": "logits"}, {"key": "output", "value": "scores"}]),
            json!([{"key": "kind", "value": "boxes"}]),
            json!([{"key": "signal", "value": "choice"}, {"key": "labels", "value": "yes, no"}]),
            json!([{"key": "signal", "value": "choice"}]),
            json!([{"key": "signal", "value": "quantile"}, {"key": "quantile", "value": "0.05"}]),
            json!([{"key": "threshold_box", "value": "0.4"}]),
        ];
        let settings = [
            json!({}),
            json!({
                "port": 9, "expose": true, "onCloudFailure": "Error", "onEdgeFailure": "Cloud",
                "timeouts": {"edge": "500ms", "cloudConnect": "1s", "cloudFirstByte": "2m", "cloudTotal": "1h"},
                "streaming": "EdgeOnly", "neverUpload": {"headers": ["x-private: yes"]},
                "maxBodyBytes": "8Mi", "maxInFlight": 16,
            }),
        ];
        let clouds = [
            ("https://llm.example/v1", "https://llm.example:8001", false),
            ("http://127.0.0.1:8000", "http://127.0.0.1:8001/", false),
            ("http://10.96.0.9:5000", "http://10.96.0.9:5001", true),
        ];
        let protocols = [ServerProtocol::Openai, ServerProtocol::Oip, ServerProtocol::Tfserving];
        let mut counts = (0, 0);
        for (name, goal) in algorithms.iter().flat_map(|name| goals.iter().map(move |g| (name, g)))
        {
            for (number, parameters) in parameters.iter().enumerate() {
                for protocol in protocols {
                    let mut service = fixtures::assistant();
                    let algorithm = json!({"name": name, "goal": goal, "parameters": parameters});
                    service.spec.edge_worker.hard_example_algorithm =
                        serde_json::from_value(algorithm).unwrap();
                    let settings = settings[number % settings.len()].clone();
                    service.spec.gateway = serde_json::from_value(settings).unwrap();
                    let (url, grpc_url, allow_plain_http) = clouds[number % clouds.len()];
                    let cloud = CloudTarget {
                        url: url.to_owned(),
                        grpc_url: Some(grpc_url.to_owned()),
                        allow_plain_http,
                        ..CloudTarget::default()
                    };
                    let mut findings = Vec::new();
                    if protocol == ServerProtocol::Oip && number % 3 == 0 {
                        service.spec.gateway.as_mut().unwrap().grpc_port = Some(10);
                    }
                    let built = config(&service, protocol, &server(), &cloud, &mut findings);
                    let Some(built) = built else {
                        assert!(!findings.is_empty());
                        counts.1 += 1;
                        continue;
                    };
                    counts.0 += 1;
                    let parsed =
                        neptune_gateway::config::Config::parse(built.to_string().as_bytes());
                    assert!(parsed.is_ok(), "{built}: {}", parsed.unwrap_err());
                }
            }
        }
        assert!(counts.0 > 200 && counts.1 > 200, "{counts:?}");
    }

    #[test]
    fn settings_reach_the_configuration() {
        let mut service = fixtures::assistant();
        service.spec.gateway = serde_json::from_value(json!({
            "port": 9, "expose": true, "onCloudFailure": "Error", "maxBodyBytes": "8Mi",
            "neverUpload": {"headers": ["x-private: yes"]}, "timeouts": {"cloudTotal": "1m"},
        }))
        .unwrap();
        let cloud = CloudTarget { url: "https://llm.example".to_owned(), ..CloudTarget::default() };
        let openai = ServerProtocol::Openai;
        let built = config(&service, openai, &server(), &cloud, &mut Vec::new()).unwrap();
        assert_eq!(
            built,
            json!({
                "service": "assistant", "protocol": "openai", "listen": "0.0.0.0:9",
                "edge": {"address": "127.0.0.1:9001", "model": "m"},
                "id": "uidofassista", "cloud": {"url": "https://llm.example"},
                "hardExample": {"algorithm": "LogProb", "goal": {"uploadRatio": 0.2}},
                "onCloudFailure": "Error", "neverUpload": {"headers": ["x-private: yes"]},
                "timeouts": {"cloudTotal": "1m"}, "limits": {"maxBodyBytes": 8_388_608},
            })
        );
    }

    #[test]
    fn durations_are_whole_numbers_with_a_unit() {
        for text in ["1s", "500ms", "2m", "999999h"] {
            assert!(is_duration(text), "{text}");
        }
        for text in ["", "s", "0s", "01s", "1", "1.5s", "1d", "1234567s", "-1s", "1 s"] {
            assert!(!is_duration(text), "{text}");
        }
    }

    #[test]
    fn url_is_loopback_unless_exposed() {
        let mut gateway = Gateway { port: Some(81), ..Gateway::default() };
        assert_eq!(gateway_url(&gateway, None).unwrap(), "http://127.0.0.1:81");
        gateway.expose = Some(true);
        assert_eq!(gateway_url(&gateway, None), None, "no address, or several nodes");
        assert_eq!(gateway_url(&gateway, Some("fd00::1")).unwrap(), "http://[fd00::1]:81");
        gateway.port = None;
        assert_eq!(gateway_url(&gateway, Some("192.0.2.7")).unwrap(), "http://192.0.2.7:8080");
        assert_eq!(grpc_url(&gateway, Some("192.0.2.7")), None);
        gateway.grpc_port = Some(8082);
        assert_eq!(grpc_url(&gateway, Some("192.0.2.7")).unwrap(), "http://192.0.2.7:8082");
    }
}
