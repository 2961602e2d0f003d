//! The Deployment, the Service, the volume and the Secret of an aggregator. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy},
        core::v1::{
            Container, ContainerPort, HTTPGetAction, PersistentVolumeClaim,
            PersistentVolumeClaimSpec, PersistentVolumeClaimVolumeSource, PodSpec, PodTemplateSpec,
            Probe, SecretVolumeSource, Volume, VolumeMount, VolumeResourceRequirements,
        },
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use neptune_api::{AggregatorServiceType, TrainingModel};
use neptune_wire::KeyPin;

use super::{
    aggregator::{PIN_ANNOTATION, PORT},
    server_container,
    validate::ValidTrainingModel,
};
use crate::{
    kubernetes::{
        placement::in_cloud,
        pod_template::pod_template,
        workloads::{self, KubernetesObjects, read_only},
    },
    training::KEY,
};

/// The component of the labels.
const COMPONENT: &str = "aggregator";

/// The metadata of the Secret.
pub fn secret(model: &TrainingModel, valid: &ValidTrainingModel) -> ObjectMeta {
    workloads::metadata(model, &valid.name, COMPONENT)
}

/// The volume.
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

/// The Deployment and the Service of the aggregator with this key.
pub fn objects(
    model: &TrainingModel,
    valid: &ValidTrainingModel,
    pin: &KeyPin,
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
            template: template(model, valid, (&metadata, pin), fetch_image),
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
    (metadata, pin): (&ObjectMeta, &KeyPin),
    fetch_image: &str,
) -> PodTemplateSpec {
    let mut pod = PodSpec {
        affinity: Some(in_cloud(valid.aggregator.allow_control_plane)),
        containers: vec![container(valid)],
        volumes: Some(vec![
            Volume {
                name: "data".to_owned(),
                persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                    claim_name: valid.name.to_string(),
                    read_only: None,
                }),
                ..Volume::default()
            },
            Volume {
                name: "key".to_owned(),
                secret: Some(SecretVolumeSource {
                    secret_name: Some(valid.name.to_string()),
                    // The group of the Pod may read it.
                    default_mode: Some(0o440),
                    ..SecretVolumeSource::default()
                }),
                ..Volume::default()
            },
        ]),
        // An aggregator does not use the API server.
        automount_service_account_token: Some(false),
        ..PodSpec::default()
    };
    if let Some(session) = &valid.session {
        server_container::add(&mut pod, session, fetch_image);
    }
    let mut template = pod_template(model, metadata.labels.clone(), pod, None);
    let annotations = template.metadata.get_or_insert_default().annotations.get_or_insert_default();
    annotations.insert(PIN_ANNOTATION.to_owned(), pin.0.clone());
    template
}

fn container(valid: &ValidTrainingModel) -> Container {
    let args = [
        "--data-dir".to_owned(),
        "/data".to_owned(),
        "--listen".to_owned(),
        format!("0.0.0.0:{PORT}"),
        "--key-file".to_owned(),
        format!("/key/{KEY}"),
    ];
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
        name: "aggregator".to_owned(),
        image: Some(valid.aggregator.image.clone()),
        command: Some(vec!["neptune-aggregator".to_owned()]),
        args: Some(args.into()),
        ports: Some(vec![ContainerPort {
            name: Some("aggregator".to_owned()),
            container_port: i32::from(PORT),
            ..ContainerPort::default()
        }]),
        readiness_probe: Some(health(1)),
        // The digests of a large file are computed for a while after a start.
        liveness_probe: Some(health(6)),
        volume_mounts: Some(vec![
            VolumeMount {
                name: "data".to_owned(),
                mount_path: "/data".to_owned(),
                ..VolumeMount::default()
            },
            read_only("key", "/key"),
        ]),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    }
}
