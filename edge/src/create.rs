//! Decides what Docker is told when a container is made: the limits and rights of every worker and
//! model server.

use std::path::Path;

use bollard::models;

use crate::{container::ContainerSpec, observed::Identity};

/// Of processes and threads in a worker: enough for a numeric library on a big machine, too few to
/// starve the node.
const PIDS: i64 = 1024;

/// The request.
pub fn request(identity: &Identity, spec: &ContainerSpec) -> models::ContainerCreateBody {
    let some_unless_empty = |list: &Vec<String>| (!list.is_empty()).then(|| list.clone());
    models::ContainerCreateBody {
        image: Some(spec.image.clone()),
        entrypoint: some_unless_empty(&spec.command),
        cmd: some_unless_empty(&spec.args),
        env: Some(spec.env.iter().map(|(name, value)| format!("{name}={value}")).collect()),
        labels: Some(identity.labels()),
        stop_timeout: spec.stop_grace_seconds.map(i64::from),
        host_config: Some(host_config(spec)),
        ..Default::default()
    }
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
    let log_limits = [("max-size", "10m"), ("max-file", "2")];
    models::HostConfig {
        network_mode: Some("host".to_owned()),
        mounts: Some(scripts.chain(model).collect()),
        memory,
        // The same again: no swap, so that the limit is one.
        memory_swap: memory,
        nano_cpus: spec.cpu_millis.map(|millis| limit(millis.saturating_mul(1_000_000))),
        pids_limit: Some(PIDS),
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
