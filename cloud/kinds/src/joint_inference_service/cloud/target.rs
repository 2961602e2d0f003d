//! Resolves the server that answers the hard samples of a gateway. A part of `validate`.

use std::net::IpAddr;

use neptune_api::JointInferenceService;
use neptune_wire::Role;

use crate::{
    finding::Finding,
    joint_inference_service::{
        cloud::{
            endpoint::endpoint, other_service::other_service, server::server_address,
            worker::cloud_worker_address,
        },
        facts::ServiceFacts,
        resolved::{CloudSide, CloudTarget, ValidCloudWorker},
        server::{
            named::{named_server, without_grpc},
            owned::{ServerPlace, owned_server},
        },
        spec::{
            forms::{CloudForm, gateway_settings},
            names::service_host,
        },
        worker::resolve::resolve_model,
    },
    kubernetes::nodes::in_url,
    reason::Reason,
    worker::names::server_name,
};

/// The server in the cloud that a gateway calls, and the `InferenceModel` that the service owns for
/// it. `worker` is the cloud worker, if the spec has one.
pub fn cloud_target(
    service: &JointInferenceService,
    form: CloudForm,
    worker: Option<&ValidCloudWorker>,
    facts: &ServiceFacts,
    findings: &mut Vec<Finding>,
) -> Option<(CloudTarget, CloudSide)> {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let field = "spec.cloudWorker.inferenceModel.name";
    let (server, node) = match form {
        CloudForm::Worker(_) => {
            let worker = worker?;
            let (host, port, ip) = cloud_worker_address(worker, namespace);
            let target = target(&host, (port, None), ip);
            if gateway_settings(service).grpc_port.is_some() {
                let message = "spec.gateway.grpcPort: remove it: a cloudWorker.workerSpec has one port, which is not for gRPC";
                findings.push(Finding::new(Reason::GatewayInvalid, message));
            }
            return Some((target, CloudSide::Worker(Box::new(worker.clone()))));
        }
        CloudForm::Endpoint(spec) => {
            let has_grpc = gateway_settings(service).grpc_port.is_some();
            return Some((endpoint(spec, has_grpc, findings)?, CloudSide::Endpoint));
        }
        CloudForm::Service(name) => {
            let target = other_service(name, service, facts, findings)?;
            return Some((target, CloudSide::Service));
        }
        CloudForm::Server(spec) => {
            let model = service.spec.cloud_worker.model.as_ref()?;
            let model_field = "spec.cloudWorker.model.name";
            let object = facts.cloud_model.as_ref();
            resolve_model(model_field, &model.name, object, namespace, findings)?;
            let node = facts.cloud_node.as_deref();
            let place = ServerPlace::Cloud(node);
            (owned_server(service, Role::Cloud, spec, &place, facts, findings)?, node)
        }
        CloudForm::InferenceModel(name) => {
            let model = facts.gateway.cloud_server.as_ref();
            let server = named_server(name, field, model, facts, namespace, findings)?;
            if gateway_settings(service).grpc_port.is_some() && server.grpc_port.is_none() {
                let message = without_grpc(field, name);
                findings.push(Finding::new(Reason::GrpcUnavailable, message));
            }
            (server, None)
        }
    };
    let host = service_host(
        server_name(namespace, &server.name).as_str(),
        namespace,
        &facts.cluster_domain,
    );
    let address = server_address(facts, &server, node, host, findings)?;
    let mut target = target(&address.host, (server.port, server.grpc_port), address.ip);
    target.config.model_name = Some(server.model_name);
    target.protocol = server.protocol;
    Some((target, CloudSide::Server { owned: server.owned.map(Box::new) }))
}

/// A server of the cluster, for which `http://` is permitted.
fn target(host: &str, (port, grpc): (u16, Option<u16>), ip: Option<IpAddr>) -> CloudTarget {
    let url = |port| format!("http://{}:{port}", in_url(host));
    let mut target = CloudTarget::at(url(port));
    target.config.grpc_url = grpc.map(url);
    target.config.allow_plain_http = true;
    target.config.addresses = ip.map(|ip| (host.to_owned(), ip)).into_iter().collect();
    target
}
