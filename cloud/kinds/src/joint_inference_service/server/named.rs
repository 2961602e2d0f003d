//! The `InferenceModel` that a service names. A part of `validate`.

use std::sync::Arc;

use neptune_api::InferenceModel;
use neptune_wire::Resource;

use crate::{
    finding::Finding,
    joint_inference_service::{facts::ServiceFacts, resolved::ResolvedServer},
    reason::Reason,
    worker::ports,
};

/// The server of an `InferenceModel` that the spec names.
pub fn named_server(
    name: &str,
    field: &str,
    model: Option<&Arc<InferenceModel>>,
    facts: &ServiceFacts,
    namespace: &str,
    findings: &mut Vec<Finding>,
) -> Option<ResolvedServer> {
    let Some(model) = model else {
        findings.push(Finding::missing_object(
            Reason::InferenceModelNotFound,
            Resource::InferenceModels,
            namespace,
            name,
            field,
        ));
        return None;
    };
    let Some(port) = ports::valid(model.spec.serving_port) else {
        let message =
            format!("{field}: InferenceModel {name:?} has no servingPort; set it to 1 to 65535");
        findings.push(Finding::new(Reason::ServerAddressUnknown, message));
        return None;
    };
    let protocol = facts.frameworks.as_ref().ok();
    let protocol = protocol
        .and_then(|frameworks| frameworks.server(&model.spec.framework_type))
        .and_then(|server| server.protocol);
    Some(ResolvedServer {
        name: name.to_owned(),
        model_name: model.spec.model_name.clone(),
        port,
        grpc_port: ports::valid(model.spec.grpc_port),
        protocol,
        owned: None,
    })
}

/// The text about an `InferenceModel` without the gRPC that a gateway needs.
pub fn without_grpc(field: &str, model: &str) -> String {
    format!(
        "{field}: InferenceModel {model:?} has no grpcPort, which spec.gateway.grpcPort needs; set its spec.grpcPort, or remove the one of the gateway"
    )
}
