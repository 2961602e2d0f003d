//! The configuration file of a gateway, checked as the gateway checks it. A part of `validate`.

use std::net::{Ipv4Addr, SocketAddr};

use http::header::{HeaderName, HeaderValue};
use neptune_api::{Gateway, GatewayClient, GatewayTimeouts, JointInferenceService, ServerProtocol};
use neptune_gateway_config::{
    AllowedHosts, Client, Config, Edge, Limits, NeverUpload, Timeouts, Tls, check_clients,
};
use neptune_program::duration::parse_spec;

use crate::{
    finding::Finding,
    joint_inference_service::{
        cloud::endpoint::is_file_name,
        gateway::{
            fields::{invalid, read},
            hard_example::hard_example_config,
        },
        resolved::{CloudTarget, ResolvedServer},
        spec::forms::gateway_settings,
    },
    kubernetes::quantities,
    reason::Reason,
    worker::ports::{self, gateway_port},
};

/// Characters of a UID that identify a gateway.
const ID_LENGTH: usize = 12;

/// The configuration of the gateway, without the members that the agent sets. `edge` is the node's
/// model server.
pub fn gateway_config(
    service: &JointInferenceService,
    protocol: ServerProtocol,
    edge: &ResolvedServer,
    cloud: Option<&CloudTarget>,
    findings: &mut Vec<Finding>,
) -> Option<Config> {
    let before = findings.len();
    let gateway = gateway_settings(service);
    check_port_range(&gateway, findings);
    let hard_example =
        hard_example_config(&service.spec.edge_worker.hard_example_algorithm, protocol, findings);
    let listen = match gateway.expose {
        Some(true) => Ipv4Addr::UNSPECIFIED,
        _ => Ipv4Addr::LOCALHOST,
    };
    let mut config = Config {
        service: service.metadata.name.clone().unwrap_or_default(),
        id: id(service, &gateway),
        protocol,
        listen: SocketAddr::new(listen.into(), gateway_port(&gateway)),
        metrics_listen: None,
        grpc_listen: None,
        allowed_hosts: AllowedHosts::default(),
        clients: clients(&gateway, findings),
        tls: tls(&gateway, findings),
        edge: Edge {
            address: format!("127.0.0.1:{}", edge.port),
            grpc_address: None,
            model: Some(edge.model_name.clone()),
            model_version: None,
        },
        cloud: cloud.map(|target| target.config.clone()),
        hard_example,
        on_cloud_failure: gateway.on_cloud_failure.unwrap_or_default(),
        on_edge_failure: gateway.on_edge_failure.unwrap_or_default(),
        streaming: gateway.streaming.unwrap_or_default(),
        never_upload: never_upload(&gateway, findings),
        timeouts: timeouts(gateway.timeouts.as_ref(), findings),
        limits: limits(&gateway, findings),
        state: None,
        capture: None,
    };
    let has_url = cloud.is_some_and(|target| target.config.grpc_url.is_some());
    if let (Some(port), Some(edge), true) =
        (ports::valid(gateway.grpc_port), edge.grpc_port, has_url)
    {
        config.grpc_listen = Some(SocketAddr::new(listen.into(), port));
        config.edge.grpc_address = Some(format!("127.0.0.1:{edge}"));
    } else if let Some(cloud) = &mut config.cloud {
        cloud.grpc_url = None;
    }
    // Another gateway answers when it has asked its own cloud.
    let is_chained = cloud.is_some_and(|target| target.is_gateway);
    if is_chained && config.timeouts.cloud_first_byte.is_none() {
        config.timeouts.cloud_first_byte = Some(config.cloud_total());
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

fn check_port_range(gateway: &Gateway, findings: &mut Vec<Finding>) {
    for (field, port) in [("port", gateway.port), ("grpcPort", gateway.grpc_port)] {
        if let Some(port) = port.filter(|port| !(1..=65_535).contains(port)) {
            invalid(field, &port, "must be 1 to 65535", findings);
        }
    }
}

/// The clients, checked by the function that the gateway uses.
fn clients(gateway: &Gateway, findings: &mut Vec<Finding>) -> Vec<Client> {
    let client = |client: &GatewayClient| Client {
        name: client.name.clone(),
        key_sha256: client.key_sha256.clone(),
        // One below 0 is refused as 0 is.
        requests_per_minute: client.requests_per_minute.map(|it| it.try_into().unwrap_or(0)),
        uploads: client.uploads.unwrap_or_default(),
        models: client.models.clone(),
    };
    let clients: Vec<Client> = gateway.clients.iter().map(client).collect();
    if let Err(error) = check_clients(&clients) {
        let message = format!("spec.gateway: {error}");
        findings.push(Finding::new(Reason::GatewayInvalid, message));
    }
    clients
}

/// The certificate, by the names of its files: the agent knows their paths.
fn tls(gateway: &Gateway, findings: &mut Vec<Finding>) -> Option<Tls> {
    let files = gateway.tls.as_ref()?;
    for (field, name) in [("tls.certFile", &files.cert_file), ("tls.keyFile", &files.key_file)] {
        if !is_file_name(name) {
            let why = "must be the name of a file in the node's directory of secrets";
            invalid(field, name, why, findings);
        }
    }
    Some(Tls { cert_file: (&files.cert_file).into(), key_file: (&files.key_file).into() })
}

fn never_upload(gateway: &Gateway, findings: &mut Vec<Finding>) -> NeverUpload {
    let Some(requests) = &gateway.never_upload else { return NeverUpload::default() };
    headers(&requests.headers, findings);
    NeverUpload { headers: requests.headers.clone() }
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

fn timeouts(timeouts: Option<&GatewayTimeouts>, findings: &mut Vec<Finding>) -> Timeouts {
    let defaults = Timeouts::default();
    let Some(timeouts) = timeouts else { return defaults };
    let mut limit = |field: &str, text: &Option<String>| {
        let (field, why) =
            (format!("timeouts.{field}"), "must be a duration such as 500ms, 10s or 2m");
        read(&field, text.as_ref(), |text| parse_spec(text), why, findings)
    };
    Timeouts {
        edge: limit("edge", &timeouts.edge),
        cloud_connect: limit("cloudConnect", &timeouts.cloud_connect)
            .unwrap_or(defaults.cloud_connect),
        cloud_first_byte: limit("cloudFirstByte", &timeouts.cloud_first_byte),
        cloud_total: limit("cloudTotal", &timeouts.cloud_total),
        ..defaults
    }
}

fn limits(gateway: &Gateway, findings: &mut Vec<Finding>) -> Limits {
    let defaults = Limits::default();
    // The agent's node may have 32 bits.
    let bytes = |text: &String| {
        let bytes = quantities::parse(text, 1).filter(|bytes| (1..1 << 31).contains(bytes));
        usize::try_from(bytes?).ok()
    };
    let why = "must be a Kubernetes quantity above 0 and below 2Gi, such as \"32Mi\"";
    let max_body_bytes =
        read("maxBodyBytes", gateway.max_body_bytes.as_ref(), bytes, why, findings);
    let number =
        |number: &i32| usize::try_from(*number).ok().filter(|it| (1..=65_535).contains(it));
    let why = "must be 1 to 65535";
    let max_in_flight = read("maxInFlight", gateway.max_in_flight.as_ref(), number, why, findings);
    Limits {
        max_body_bytes: max_body_bytes.unwrap_or(defaults.max_body_bytes),
        max_in_flight: max_in_flight.unwrap_or(defaults.max_in_flight),
        ..defaults
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_gateway_config::Document;
    use serde_json::json;

    use super::*;
    use crate::joint_inference_service::fixtures;

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
                "clients": [
                    {"name": "hall", "keySha256": ["0a".repeat(32)], "requestsPerMinute": 600},
                    {"name": "line", "keySha256": ["0b".repeat(32)], "uploads": "Never", "models": ["m"]},
                ],
                "tls": {"certFile": "web.crt", "keyFile": "web.key"},
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
                    let mut cloud = CloudTarget::at(url.to_owned());
                    cloud.config.grpc_url = Some(grpc_url.to_owned());
                    cloud.config.allow_plain_http = allow_plain_http;
                    let mut findings = Vec::new();
                    if protocol == ServerProtocol::Oip && number % 3 == 0 {
                        service.spec.gateway.as_mut().unwrap().grpc_port = Some(10);
                    }
                    let built =
                        gateway_config(&service, protocol, &server(), Some(&cloud), &mut findings);
                    let Some(built) = built else {
                        assert!(!findings.is_empty());
                        counts.1 += 1;
                        continue;
                    };
                    counts.0 += 1;
                    let sent = Document::from(&built).file_content();
                    let parsed = Config::parse(&sent);
                    let parsed = parsed.unwrap_or_else(|error| unreachable!("{built:?}: {error}"));
                    assert_eq!(parsed, built);
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
        let cloud = Some(CloudTarget::at("https://llm.example".to_owned()));
        let (openai, mut findings) = (ServerProtocol::Openai, Vec::new());
        let built = gateway_config(&service, openai, &server(), cloud.as_ref(), &mut findings);
        let built = built.unwrap();
        assert_eq!(
            serde_json::to_value(built).unwrap(),
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
}
