//! Decides the request that creates a container, with the limits and rights of every worker and
//! model server. Pure.

use std::{collections::HashMap, path::Path};

use bollard::models;

use crate::domain::{
    container::ContainerSpec,
    observed_container::{ContainerIdentity, VERSION},
};

/// Maximum number of processes and threads in a container: enough for a numeric library on a big
/// machine, too few to starve the node.
const MAX_PIDS: i64 = 1024;

/// The body of the request that creates this container.
pub fn create_request(
    identity: &ContainerIdentity,
    spec: &ContainerSpec,
) -> models::ContainerCreateBody {
    models::ContainerCreateBody {
        image: Some(spec.image.clone()),
        entrypoint: some_unless_empty(spec.command.iter().cloned()),
        cmd: some_unless_empty(spec.args.iter().cloned()),
        env: Some(env(spec)),
        labels: Some(labels(identity, spec)),
        stop_timeout: spec.stop_grace_seconds.map(i64::from),
        host_config: Some(host_config(spec)),
        ..Default::default()
    }
}

fn env(spec: &ContainerSpec) -> Vec<String> {
    let fixed = spec.env.iter().map(|(name, value)| format!("{name}={value}"));
    let start = spec.start.iter().map(|start| format!("MODEL_URL={}", start.model_url));
    fixed.chain(start).collect()
}

fn labels(identity: &ContainerIdentity, spec: &ContainerSpec) -> HashMap<String, String> {
    let start = spec.start.iter().map(|start| (VERSION.to_owned(), start.version.clone()));
    identity.labels().into_iter().chain(start).collect()
}

fn some_unless_empty(list: impl Iterator<Item = String>) -> Option<Vec<String>> {
    Some(list.collect()).filter(|list: &Vec<String>| !list.is_empty())
}

fn host_config(spec: &ContainerSpec) -> models::HostConfig {
    let limit = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let memory = spec.memory_bytes.map(limit);
    let read_only = |source: &Path, target: String| models::Mount {
        typ: Some(models::MountType::BIND),
        source: Some(source.to_string_lossy().into_owned()),
        target: Some(target),
        read_only: Some(true),
        ..Default::default()
    };
    let scripts = spec
        .scripts
        .iter()
        .map(|scripts| read_only(&scripts.dir, scripts.dir.to_string_lossy().into_owned()));
    let model = spec.model.iter().map(|model| read_only(&model.source, model.target.clone()));
    let dataset = spec.dataset.iter().map(|data| read_only(&data.source, data.target.clone()));
    let log_limits = [("max-size", "10m"), ("max-file", "2")];
    models::HostConfig {
        network_mode: Some("host".to_owned()),
        mounts: Some(scripts.chain(model).chain(dataset).collect()),
        dns: some_unless_empty(spec.dns.iter().map(ToString::to_string)),
        memory,
        // The limit of memory and swap together: equal to `memory` means no swap.
        memory_swap: memory,
        nano_cpus: spec.cpu_millis.map(|millis| limit(millis.saturating_mul(1_000_000))),
        pids_limit: Some(MAX_PIDS),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        restart_policy: Some(models::RestartPolicy {
            name: Some(models::RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        log_config: Some(models::HostConfigLogConfig {
            typ: Some("json-file".to_owned()),
            config: Some(
                log_limits.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ),
        }),
        ..Default::default()
    }
}
