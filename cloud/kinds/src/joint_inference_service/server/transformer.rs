//! Checks the transformer of a model server that a service owns. A part of `validate`.

use neptune_api::{JointInferenceService, ModelServer, ServerProtocol};

use crate::{
    finding::Finding,
    joint_inference_service::{facts::ServiceFacts, spec::forms::gateway_settings},
    reason::Reason,
    worker::transformers::{self, Endpoint},
};

/// Checks the transformer of the server that becomes the `InferenceModel` `name`. `in_pod`: whether
/// it runs in a Pod.
pub fn check_transformer(
    service: &JointInferenceService,
    name: &str,
    (server, protocol, in_pod): (&ModelServer, Option<ServerProtocol>, bool),
    field: &str,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) {
    let Some(transformer) = server.transformer.as_deref() else { return };
    if gateway_settings(service).grpc_port.is_some() {
        let message = format!(
            "{field}.transformer has no gRPC, which spec.gateway.grpcPort needs; remove one of them"
        );
        findings.push(Finding::new(Reason::GrpcUnavailable, message));
    }
    let port = transformer.port.unwrap_or_default();
    if u16::try_from(port).is_err() {
        let message = format!(
            "{field}.transformer.port {port} must be a port, 1 to 65535, or 0 to choose one"
        );
        findings.push(Finding::new(Reason::TransformerInvalid, message));
    }
    let endpoint = Endpoint {
        object: (service.metadata.namespace.as_deref().unwrap_or_default(), name),
        model_name: name,
        port: 1,
        proxy: None,
        server_port: 2,
        protocol,
        is_tcp: false,
        in_pod,
    };
    if facts.frameworks.is_err() {
        return; // The server has that finding.
    }
    let field = format!("{field}.transformer");
    // The controller of the InferenceModel resolves it.
    let _ = transformers::resolve(&field, transformer, endpoint, &facts.frameworks, findings);
}
