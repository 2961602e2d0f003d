//! Resolves the gateway of another service as the cloud. A part of `validate`.

use neptune_api::{JointInferenceService, TierAddress};
use neptune_wire::Resource;

use crate::{
    finding::Finding,
    joint_inference_service::{
        cloud::endpoint::is_file_name, facts::ServiceFacts, resolved::CloudTarget,
        spec::forms::gateway_settings,
    },
    reason::Reason,
};

/// The gateway of the service that `spec.cloudWorker.service` names; `None` with a finding if it cannot
/// answer.
pub fn other_service(
    name: &str,
    service: &JointInferenceService,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) -> Option<CloudTarget> {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let wants_grpc = gateway_settings(service).grpc_port.is_some();
    let field = "spec.cloudWorker.service.name";
    let Some(other) = &facts.gateway.other else {
        findings.push(Finding::missing_object(
            Reason::ServiceNotFound,
            Resource::JointInferenceServices,
            namespace,
            name,
            field,
        ));
        return None;
    };
    let (reason, message) = if let Some(text) = &other.returns_here {
        (Reason::ServiceCycle, text.clone())
    } else if !other.is_exposed {
        let message = format!(
            "{field}: the gateway of JointInferenceService {name:?} is not exposed; set its spec.gateway.expose to true"
        );
        (Reason::ServiceNotExposed, message)
    } else if wants_grpc && !other.has_grpc {
        let message = format!(
            "{field}: the gateway of JointInferenceService {name:?} has no grpcPort, which spec.gateway.grpcPort needs; set its spec.gateway.grpcPort"
        );
        (Reason::GrpcUnavailable, message)
    } else if let Some(url) = &other.url {
        let mut target = CloudTarget::at(url.clone());
        target.config.grpc_url.clone_from(&other.grpc_url);
        target.config.model_name.clone_from(&other.model_name);
        target.config.addresses.clone_from(&other.addresses);
        target.config.allow_plain_http = true;
        let named = service.spec.cloud_worker.service.as_ref();
        let files =
            named.map(|named| [("tokenFile", &named.token_file), ("caFile", &named.ca_file)]);
        for (field, file) in files.into_iter().flatten() {
            if let Some(file) = file.as_ref().filter(|file| !is_file_name(file)) {
                let message = format!(
                    "spec.cloudWorker.service.{field} {file:?} must be the name of a file in the node's directory of secrets"
                );
                findings.push(Finding::new(Reason::EndpointInvalid, message));
                return None;
            }
        }
        return Some(CloudTarget {
            protocol: other.protocol,
            is_gateway: true,
            token_file: named.and_then(|named| named.token_file.clone()),
            ca_file: named.and_then(|named| named.ca_file.clone()),
            ..target
        });
    } else {
        let named = service.spec.cloud_worker.service.as_ref();
        let what = match named.and_then(|named| named.address).unwrap_or_default() {
            TierAddress::Node => "address of the node",
            TierAddress::Service => "Service of the gateway",
        };
        let message = format!("{field}: waiting for the {what} of JointInferenceService {name:?}");
        (Reason::ServerAddressUnknown, message)
    };
    findings.push(Finding::new(reason, message));
    None
}
