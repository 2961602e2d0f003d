//! Describes a program of the user for the agent of a node. Pure: a part of `plan`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use neptune_api::WorkerSpec;
use neptune_wire::{ObjectName, RestartPolicy, Role, Scripts, Worker, WorkerUpdateMode};

use crate::{
    joint_inference_service::resolved::ResolvedWorker, kubernetes::pod_security::container_rights,
};

/// The task of a worker with these variables.
pub fn planned_worker(
    role: Role,
    resolved: &ResolvedWorker,
    spec: &WorkerSpec,
    env: BTreeMap<String, String>,
    port: Option<u16>,
) -> Worker {
    let dir = spec.script_dir.trim_end_matches('/').to_owned();
    let file = spec.script_boot_file.clone();
    let (args, scripts) = if resolved.command.is_empty() {
        (Some(file).filter(|file| !file.is_empty()).into_iter().collect(), None)
    } else {
        (vec![format!("{dir}/{file}")], Some(Scripts { dir, boot_file: file }))
    };
    Worker {
        name: resolved.name.clone(),
        role,
        image: resolved.image.clone(),
        command: resolved.command.clone(),
        args,
        env,
        scripts,
        model: Some(object_name(&resolved.model.metadata)),
        restart_policy: spec.restart_policy.map(|policy| match policy {
            neptune_api::RestartPolicy::Always => RestartPolicy::Always,
            neptune_api::RestartPolicy::OnFailure => RestartPolicy::OnFailure,
            neptune_api::RestartPolicy::Never => RestartPolicy::Never,
        }),
        model_update: match spec.model_update.unwrap_or_default() {
            neptune_api::ModelUpdate::Restart => WorkerUpdateMode::Restart,
            neptune_api::ModelUpdate::Reload => WorkerUpdateMode::Reload,
        },
        dataset: None,
        port,
        hosts: BTreeMap::new(),
        resources: resolved.limits.clone(),
        rights: container_rights(spec.security_context.as_ref()),
        gateway: None,
    }
}

/// The name of an object of the API server.
pub fn object_name(metadata: &ObjectMeta) -> ObjectName {
    let name = metadata.name.as_deref().unwrap_or_default();
    name.parse().expect("an API server names objects by RFC 1123")
}
