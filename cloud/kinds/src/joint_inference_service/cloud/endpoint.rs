//! Checks a server that Neptune does not run. A part of `validate`.

use neptune_api::Endpoint;
use neptune_gateway_config::UrlProblem;

use crate::{finding::Finding, joint_inference_service::resolved::CloudTarget, reason::Reason};

/// Checks the fields of an endpoint. `has_grpc` is whether clients of the gateway use gRPC.
pub fn endpoint(
    spec: &Endpoint,
    has_grpc: bool,
    findings: &mut Vec<Finding>,
) -> Option<CloudTarget> {
    let before = findings.len();
    let mut invalid = |field: &str, value: &str, why: &str| {
        let message = format!("spec.cloudWorker.endpoint.{field} {value:?} {why}");
        findings.push(Finding::new(Reason::EndpointInvalid, message));
    };
    if let Some(problem) = UrlProblem::of_rest(&spec.url, false) {
        invalid("url", &neptune_wire::redact(&spec.url), url_message(problem));
    }
    match &spec.grpc_url {
        Some(url) => {
            if let Some(problem) = UrlProblem::of_grpc(url, false) {
                invalid("grpcUrl", &neptune_wire::redact(url), url_message(problem));
            } else if !has_grpc {
                invalid("grpcUrl", url, "needs spec.gateway.grpcPort; set it, or remove grpcUrl");
            }
        }
        None if has_grpc => {
            let why =
                "must be the address of the server's gRPC, because spec.gateway.grpcPort is set";
            invalid("grpcUrl", "", why);
        }
        None => {}
    }
    if spec.model_name.as_deref() == Some("") {
        invalid("modelName", "", "must be the name of the model there, or not be set");
    }
    for (field, file) in [("tokenFile", &spec.token_file), ("caFile", &spec.ca_file)] {
        if let Some(name) = file.as_ref().filter(|name| !is_file_name(name)) {
            invalid(field, name, "must be the name of a file in the node's directory of secrets");
        }
    }
    if findings.len() > before {
        return None;
    }
    let mut target = CloudTarget::at(spec.url.clone());
    target.config.grpc_url.clone_from(&spec.grpc_url);
    target.config.model_name.clone_from(&spec.model_name);
    Some(CloudTarget {
        token_file: spec.token_file.clone(),
        ca_file: spec.ca_file.clone(),
        ..target
    })
}

/// Whether a text is the name of a file in a directory of secrets.
pub fn is_file_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let is_edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    name.chars().all(is_allowed)
        && is_edge(name.chars().next())
        && is_edge(name.chars().next_back())
}

/// What is wrong with the URL of an endpoint, in the words of the resource.
pub const fn url_message(problem: UrlProblem) -> &'static str {
    match problem {
        UrlProblem::Malformed => "must be a URL such as https://llm.example/v1",
        UrlProblem::NoHost => "must have a host",
        UrlProblem::Credentials => "must have no user and password; use tokenFile",
        UrlProblem::Query => "must have no query and no fragment",
        UrlProblem::PlainHttp => "must be https: http is only for a loopback address",
        UrlProblem::Scheme => "must be https",
        UrlProblem::NoPort => "must have a port, such as https://models.example:8001",
        UrlProblem::Path => "must have no path: gRPC has no base path",
    }
}
