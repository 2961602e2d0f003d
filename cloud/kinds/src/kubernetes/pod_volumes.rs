//! The volumes of a container in a Pod: what its operator allows, and how the Pod has them.

use k8s_openapi::{
    api::core::v1::{
        EmptyDirVolumeSource, HostPathVolumeSource, PersistentVolumeClaimVolumeSource, Volume,
        VolumeMount,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use neptune_api::{HostPathType, VolumeMedium};

use crate::{
    finding::Finding,
    kubernetes::{
        container_inputs::ContainerInputs,
        pod_config::{config_map_volume, secret_volume},
        pod_policy::PodPolicy,
    },
    reason::Reason,
};

/// The volumes that Neptune adds to the Pods of workers and model servers.
const OF_NEPTUNE: [&str; 3] = ["model", "scripts", "tmp"];

/// Adds the findings of the volumes of a container in a Pod. `field` has them.
pub fn check_pod_volumes(
    field: &str,
    inputs: ContainerInputs<'_>,
    policy: &PodPolicy,
    findings: &mut Vec<Finding>,
) {
    for volume in inputs.volumes {
        let name = &volume.name;
        let mut refuse = |problem: &str| {
            let message = format!("{field}.volumes: volume {name:?} {problem}");
            findings.push(Finding::new(Reason::VolumeInvalid, message));
        };
        if OF_NEPTUNE.contains(&name.as_str()) {
            refuse("has the name of a volume that Neptune adds to the Pod; rename it");
        }
        let Some(host_path) = &volume.host_path else { continue };
        let mut mounts = inputs.volume_mounts.iter().filter(|mount| mount.name == *name);
        if mounts.any(|mount| !mount.read_only) {
            refuse(
                "is a hostPath, which a Pod mounts read-only; set readOnly: true in its volumeMounts",
            );
        }
        let field = format!("{field}.volumes: volume {name:?}");
        findings.extend(policy.check_host_path(&field, &host_path.path));
    }
}

/// The volumes of a container in a Pod, as its spec has them.
pub fn pod_volumes(inputs: ContainerInputs<'_>) -> impl Iterator<Item = Volume> {
    inputs.volumes.iter().map(|volume| Volume {
        name: volume.name.clone(),
        empty_dir: volume.empty_dir.as_ref().map(|source| EmptyDirVolumeSource {
            medium: source.medium.map(|VolumeMedium::Memory| "Memory".to_owned()),
            size_limit: source.size_limit.as_ref().map(|size| Quantity(size.to_string())),
        }),
        host_path: volume.host_path.as_ref().map(|source| HostPathVolumeSource {
            path: source.path.clone(),
            type_: source.type_.map(|type_| match type_ {
                HostPathType::Directory => "Directory".to_owned(),
                HostPathType::File => "File".to_owned(),
            }),
        }),
        persistent_volume_claim: volume.persistent_volume_claim.as_ref().map(|source| {
            PersistentVolumeClaimVolumeSource {
                claim_name: source.claim_name.clone(),
                read_only: source.read_only.then_some(true),
            }
        }),
        secret: volume.secret.as_ref().map(secret_volume),
        config_map: volume.config_map.as_ref().map(config_map_volume),
        ..Volume::default()
    })
}

/// The mounts of the volumes of a container in a Pod.
pub fn pod_volume_mounts(inputs: ContainerInputs<'_>) -> impl Iterator<Item = VolumeMount> {
    inputs.volume_mounts.iter().map(|mount| VolumeMount {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only.then_some(true),
        ..VolumeMount::default()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::WorkerSpec;
    use serde_json::json;

    use super::*;

    #[test]
    fn pod_has_the_volumes_of_the_spec_unchanged() {
        let volumes = json!([
            {"name": "state", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
            {"name": "code", "hostPath": {"path": "/code", "type": "Directory"}},
            {"name": "claim", "persistentVolumeClaim": {"claimName": "frames"}},
            {"name": "secret", "secret": {"secretName": "s", "items": [{"key": "a", "path": "b"}]}},
            {"name": "config", "configMap": {"name": "c", "optional": true}},
        ]);
        let mounts = json!([
            {"name": "state", "mountPath": "/state"},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "code", "mountPath": "/lib", "readOnly": true},
            {"name": "claim", "mountPath": "/frames"},
            {"name": "secret", "mountPath": "/secret", "readOnly": true},
            {"name": "config", "mountPath": "/config"},
        ]);
        let spec =
            json!({"frameworkType": "container", "volumes": volumes, "volumeMounts": mounts});
        let spec: WorkerSpec = serde_json::from_value(spec).unwrap();
        let rendered: Vec<_> = pod_volumes((&spec).into()).collect();
        assert_eq!(serde_json::to_value(rendered).unwrap(), volumes);
        let rendered: Vec<_> = pod_volume_mounts((&spec).into()).collect();
        assert_eq!(serde_json::to_value(rendered).unwrap(), mounts);

        let policy = PodPolicy { host_paths: vec!["/code".into()], ..PodPolicy::default() };
        let mut findings = Vec::new();
        check_pod_volumes("spec", (&spec).into(), &policy, &mut findings);
        assert_eq!(findings, []);
    }

    #[test]
    fn volume_with_the_name_of_one_of_neptune_is_refused_in_a_pod() {
        let volumes = json!([{"name": "model", "emptyDir": {}}]);
        let spec = json!({"frameworkType": "container", "volumes": volumes});
        let spec: WorkerSpec = serde_json::from_value(spec).unwrap();
        let mut findings = Vec::new();
        check_pod_volumes("spec", (&spec).into(), &PodPolicy::default(), &mut findings);
        let messages: Vec<_> = findings.iter().map(|it| it.message.as_str()).collect();
        let expected = "spec.volumes: volume \"model\" has the name of a volume that Neptune adds to the Pod; rename it";
        assert_eq!(messages, [expected]);
    }
}
