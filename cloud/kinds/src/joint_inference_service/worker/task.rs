//! Describes a program of the user for the agent of a node. A part of `plan`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use neptune_api::WorkerSpec;
use neptune_wire::{ObjectName, RestartPolicy, Role, Worker, WorkerUpdateMode};

use crate::{joint_inference_service::resolved::ResolvedWorker, worker::environment::set};

/// The task of a worker, with these variables beside those of the spec.
pub fn planned_worker<const N: usize>(
    role: Role,
    resolved: &ResolvedWorker,
    spec: &WorkerSpec,
    variables: [(&str, String); N],
    port: Option<u16>,
) -> Worker {
    let mut program = resolved.program.clone();
    set(&mut program.env, variables);
    Worker {
        name: resolved.name.clone(),
        role,
        program,
        scripts: resolved.scripts.clone(),
        model: Some(object_name(&resolved.model.metadata)),
        restart_policy: spec.restart_policy.map(|policy| match policy {
            neptune_api::RestartPolicy::Always => RestartPolicy::Always,
            neptune_api::RestartPolicy::OnFailure => RestartPolicy::OnFailure,
            neptune_api::RestartPolicy::Never => RestartPolicy::Never,
        }),
        restarted_at: None,
        model_update: match spec.model_update.unwrap_or_default() {
            neptune_api::ModelUpdate::Restart => WorkerUpdateMode::Restart,
            neptune_api::ModelUpdate::Reload => WorkerUpdateMode::Reload,
        },
        dataset: None,
        port,
        hosts: BTreeMap::new(),
        gateway: None,
    }
}

/// The name of an object of the API server.
pub fn object_name(metadata: &ObjectMeta) -> ObjectName {
    let name = metadata.name.as_deref().unwrap_or_default();
    name.parse().expect("an API server names objects by RFC 1123")
}
