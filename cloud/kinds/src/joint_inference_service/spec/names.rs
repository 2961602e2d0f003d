//! The names that follow from a spec: fields, workers, model servers, Services.

use neptune_api::JointInferenceService;
use neptune_wire::Role;

use crate::{
    joint_inference_service::spec::forms::{CloudForm, EdgeForm, cloud_form, edge_form},
    worker::names::owned_model_name,
};

/// The field of the spec with a worker.
pub const fn worker_field(role: Role) -> &'static str {
    match role {
        Role::Edge => "spec.edgeWorker",
        Role::Cloud => "spec.cloudWorker",
    }
}

/// The name of a worker in the spec.
pub fn worker_name_of(service: &JointInferenceService, role: Role) -> &str {
    match role {
        Role::Edge => &service.spec.edge_worker.name,
        Role::Cloud => &service.spec.cloud_worker.name,
    }
}

/// The name of the `InferenceModel` that a service owns for a worker.
pub fn owned_name(service: &JointInferenceService, role: Role) -> String {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let name = service.metadata.name.as_deref().unwrap_or_default();
    let worker = worker_name_of(service, role);
    let is_second =
        role == Role::Cloud && service.spec.edge_worker.name == service.spec.cloud_worker.name;
    owned_model_name(namespace, name, role, worker, is_second)
}

/// The `InferenceModel` of the edge side.
pub fn edge_model_name(service: &JointInferenceService) -> Option<String> {
    match edge_form(&service.spec.edge_worker)? {
        EdgeForm::Worker(_) => None,
        EdgeForm::Server(_) => Some(owned_name(service, Role::Edge)),
        EdgeForm::InferenceModel(name) => Some(name.to_owned()),
    }
}

/// The `InferenceModel` of the cloud side.
pub fn cloud_model_name(service: &JointInferenceService) -> Option<String> {
    match cloud_form(&service.spec.cloud_worker)? {
        CloudForm::Server(_) => Some(owned_name(service, Role::Cloud)),
        CloudForm::InferenceModel(name) => Some(name.to_owned()),
        CloudForm::Worker(_) | CloudForm::Endpoint(_) | CloudForm::Service(_) => None,
    }
}

/// The service whose gateway answers in the cloud's place.
pub fn other_name(service: &JointInferenceService) -> Option<&str> {
    match cloud_form(&service.spec.cloud_worker)? {
        CloudForm::Service(name) => Some(name),
        _ => None,
    }
}

/// The full name of a Service.
pub fn service_host(name: &str, namespace: &str, domain: &str) -> String {
    format!("{name}.{namespace}.svc.{domain}")
}
