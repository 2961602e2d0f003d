//! The Deployment, the Service and the volume of an aggregator.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy},
        core::v1::{
            Container, ContainerPort, HTTPGetAction, PersistentVolumeClaim,
            PersistentVolumeClaimSpec, PersistentVolumeClaimVolumeSource, PodSpec, PodTemplateSpec,
            Probe, Volume, VolumeMount, VolumeResourceRequirements,
        },
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use neptune_api::{AggregatorServiceType, TrainingModel};
use neptune_wire::{ContainerProgram, KeyPin};

use super::{
    aggregator::{KEY_CONTAINER, PORT},
    resolved::ValidTrainingModel,
    server_container,
};
use crate::kubernetes::{
    self,
    placement::in_cloud,
    pod_template::pod_template,
    workloads::{self, KubernetesObjects},
};

/// The component of the labels.
const COMPONENT: &str = "aggregator";

/// The mount path of the aggregator's volume.
const DATA: &str = "/data";

/// The file of a container whose content is its termination message.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Returns the claim for the aggregator's volume, which is never changed.
pub fn volume(model: &TrainingModel, valid: &ValidTrainingModel) -> PersistentVolumeClaim {
    let class = model
        .spec
        .aggregation
        .as_ref()
        .and_then(|aggregation| aggregation.storage_class_name.clone());
    let size = Quantity(format!("{}Mi", valid.volume_bytes >> 20));
    PersistentVolumeClaim {
        metadata: workloads::metadata(model, &valid.name, COMPONENT),
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([("storage".to_owned(), size)])),
                ..VolumeResourceRequirements::default()
            }),
            storage_class_name: class,
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

/// The Deployment and the Service of the aggregator of the controller with this key.
pub fn objects(
    model: &TrainingModel,
    valid: &ValidTrainingModel,
    controller: &KeyPin,
    fetch_image: &str,
) -> KubernetesObjects {
    let metadata = workloads::metadata(model, &valid.name, COMPONENT);
    let deployment = Deployment {
        metadata: metadata.clone(),
        spec: Some(DeploymentSpec {
            replicas: Some(1),
            selector: LabelSelector {
                match_labels: Some(workloads::selector(&valid.name)),
                ..LabelSelector::default()
            },
            // Two programs cannot write to one volume.
            strategy: Some(DeploymentStrategy {
                type_: Some("Recreate".to_owned()),
                rolling_update: None,
            }),
            template: template(model, valid, (&metadata, controller), fetch_image),
            ..DeploymentSpec::default()
        }),
        status: None,
    };
    let type_ = match valid.service_type {
        AggregatorServiceType::NodePort => "NodePort",
        AggregatorServiceType::ClusterIP => "ClusterIP",
        AggregatorServiceType::LoadBalancer => "LoadBalancer",
    };
    // Not https: the published weights are served without TLS on the same port.
    let mut ports = vec![("aggregator", PORT)];
    ports.extend(valid.session.as_ref().map(|session| ("session", session.port)));
    let service = workloads::service(metadata, &valid.name, &ports, Some(type_));
    KubernetesObjects { deployment, service }
}

fn template(
    model: &TrainingModel,
    valid: &ValidTrainingModel,
    (metadata, controller): (&ObjectMeta, &KeyPin),
    fetch_image: &str,
) -> PodTemplateSpec {
    let mut pod = PodSpec {
        affinity: Some(in_cloud(valid.aggregator.allow_control_plane)),
        init_containers: Some(vec![key_container(valid)]),
        containers: vec![container(valid, controller)],
        volumes: Some(vec![Volume {
            name: "data".to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: valid.name.to_string(),
                read_only: None,
            }),
            ..Volume::default()
        }]),
        // An aggregator does not use the API server.
        automount_service_account_token: Some(false),
        ..PodSpec::default()
    };
    if let Some(session) = &valid.session {
        server_container::add(&mut pod, session, fetch_image);
    }
    pod_template(model, metadata.labels.clone(), pod, None)
}

/// Makes the key in the volume, and reports its pin in the status of the Pod.
fn key_container(valid: &ValidTrainingModel) -> Container {
    let args = ["--data-dir", DATA, "--report-pin", TERMINATION_LOG];
    program(KEY_CONTAINER, args.map(str::to_owned).into(), valid)
}

fn container(valid: &ValidTrainingModel, controller: &KeyPin) -> Container {
    let (listen, key) = (format!("0.0.0.0:{PORT}"), format!("{DATA}/tls.key"));
    let args = ["--data-dir", DATA, "--listen", &listen, "--key-file", &key];
    let args = args.into_iter().chain(["--controller-pin", &controller.0]);
    let health = |failures| Probe {
        http_get: Some(HTTPGetAction {
            path: Some("/healthz".to_owned()),
            port: IntOrString::Int(i32::from(PORT)),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(10),
        timeout_seconds: Some(5),
        failure_threshold: Some(failures),
        ..Probe::default()
    };
    Container {
        ports: Some(vec![ContainerPort {
            name: Some("aggregator".to_owned()),
            container_port: i32::from(PORT),
            ..ContainerPort::default()
        }]),
        readiness_probe: Some(health(1)),
        // The digests of a large file are computed for a while after a start.
        liveness_probe: Some(health(6)),
        ..program("aggregator", args.map(str::to_owned).collect(), valid)
    }
}

/// What both containers of the program have in common.
fn program(name: &str, args: Vec<String>, valid: &ValidTrainingModel) -> Container {
    let program = ContainerProgram {
        image: valid.aggregator.image.clone(),
        command: vec!["neptune-aggregator".to_owned()],
        args,
        ..ContainerProgram::default()
    };
    Container {
        volume_mounts: Some(vec![VolumeMount {
            name: "data".to_owned(),
            mount_path: DATA.to_owned(),
            ..VolumeMount::default()
        }]),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..kubernetes::container::container(name, &program)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::training_model::{fixtures, validate::validate};

    fn pod(controller: &str) -> PodSpec {
        let model = fixtures::model();
        let valid = validate(&model, &fixtures::facts()).unwrap();
        let objects = objects(&model, &valid, &KeyPin(controller.to_owned()), "");
        objects.deployment.spec.unwrap().template.spec.unwrap()
    }

    #[test]
    fn pod_makes_its_key_in_its_volume_and_uses_no_secret() {
        let pod = pod("sha256:01");
        let key = &pod.init_containers.as_ref().unwrap()[0];
        let args = ["--data-dir", "/data", "--report-pin", "/dev/termination-log"];
        assert_eq!(
            (&*key.name, key.args.as_ref().unwrap().as_slice()),
            ("key", &args.map(str::to_owned)[..])
        );
        assert_eq!(key.image, pod.containers[0].image);
        assert_eq!(key.termination_message_path, None, "the default is the file that it writes");
        assert!(pod.volumes.as_ref().unwrap().iter().all(|volume| volume.secret.is_none()));
        let args = pod.containers[0].args.as_ref().unwrap();
        assert!(args.ends_with(
            &["--key-file", "/data/tls.key", "--controller-pin", "sha256:01"].map(str::to_owned)
        ));
    }

    #[test]
    fn another_key_of_the_controller_replaces_the_pod() {
        assert_ne!(pod("sha256:01"), pod("sha256:02"));
        assert_eq!(pod("sha256:01"), pod("sha256:01"));
    }
}
