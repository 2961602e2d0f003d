//! The common parts of the Deployments and Services of every kind: metadata, selector, Service, and
//! the init container that downloads a model. `pod_template` has the rest.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentStrategy, RollingUpdateDeployment},
        core::v1::{
            Container, EmptyDirVolumeSource, Endpoints, Service, ServicePort, ServiceSpec, Volume,
            VolumeMount,
        },
    },
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use neptune_api::{InferenceModel, SecretReference};
use neptune_wire::{ContainerProgram, WorkerName};

use crate::{
    kind::Kind,
    kubernetes::{
        container::container,
        labels::{INSTANCE_LABEL, MANAGED_BY},
        secrets::download_credentials,
    },
};

/// Seconds without progress after which a download exits; its restart resumes it. Covers the
/// timeout of a stalled connection and one retry.
const GIVE_UP_AFTER: &str = "60";

/// The Deployment and the Service of an owner.
#[derive(Debug, Clone, PartialEq)]
pub struct KubernetesObjects {
    /// The Deployment that runs the container.
    pub deployment: Deployment,
    /// The Service in front of the Pods.
    pub service: Service,
}

/// The objects of an owner beside its Deployment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OwnedObjects {
    /// The `InferenceModels` that it owns.
    pub models: Vec<InferenceModel>,
    /// The Service of a gateway.
    pub exposed: Option<ExposedService>,
}

/// A Service without a selector.
#[derive(Debug, Clone, PartialEq)]
pub struct ExposedService {
    /// The Service without a selector.
    pub service: Service,
    /// The addresses to which the Service forwards.
    pub endpoints: Endpoints,
}

/// The metadata of both objects.
pub fn metadata<K: Kind>(owner: &K, name: &WorkerName, component: &str) -> ObjectMeta {
    let app = K::kind(&()).to_lowercase();
    let labels = [
        ("app.kubernetes.io/name", app.as_str()),
        (INSTANCE_LABEL, name.as_str()),
        ("app.kubernetes.io/component", component),
        ("app.kubernetes.io/part-of", "neptune"),
        MANAGED_BY,
    ];
    ObjectMeta {
        name: Some(name.to_string()),
        namespace: owner.meta().namespace.clone(),
        labels: Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
        owner_references: owner.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// The labels that select the Pods.
pub fn selector(name: &WorkerName) -> BTreeMap<String, String> {
    [(INSTANCE_LABEL.to_owned(), name.to_string())].into()
}

/// A Service with these ports, which are also the target ports, by name.
pub fn service(
    metadata: ObjectMeta,
    name: &WorkerName,
    ports: &[(&str, u16)],
    type_: Option<&str>,
) -> Service {
    let port = |(name, port): &(&str, u16)| ServicePort {
        name: Some((*name).to_owned()),
        port: i32::from(*port),
        protocol: Some("TCP".to_owned()),
        target_port: Some(IntOrString::Int(i32::from(*port))),
        ..ServicePort::default()
    };
    Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: type_.map(str::to_owned),
            selector: Some(selector(name)),
            ports: Some(ports.iter().map(port).collect()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// Replaces Pods one by one. A running Pod stays until its replacement is available: a failed
/// version causes no outage.
pub fn rolling_update() -> DeploymentStrategy {
    DeploymentStrategy {
        type_: Some("RollingUpdate".to_owned()),
        rolling_update: Some(RollingUpdateDeployment {
            max_surge: Some(IntOrString::Int(1)),
            max_unavailable: Some(IntOrString::Int(0)),
        }),
    }
}

/// A volume of the Pod that an init container fills.
pub struct Fetched {
    /// The volume that receives the file.
    pub volume: Volume,
    /// The read-only mount for the container that uses it.
    pub mount: VolumeMount,
    /// The init container that downloads and verifies the file.
    pub init: Container,
}

/// A download into a volume of the Pod.
#[derive(Debug, Clone, Copy)]
pub struct Fetch<'a> {
    /// The mount path of the volume.
    pub directory: &'a str,
    /// The address of the model.
    pub url: &'a str,
    /// The SHA-256 that the file must have; `None` if it is not verified.
    pub sha256: Option<&'a str>,
    /// Further addresses of the same content.
    pub mirrors: &'a [String],
    /// The path of the model, in `directory`.
    pub output: &'a str,
    /// The Secret with the credentials for `s3://`, `hf://` or `oci://`.
    pub credentials: Option<&'a SecretReference>,
    /// The image with the downloader.
    pub image: &'a str,
}

/// The volume, the mount and the init container of a download.
pub fn fetched(fetch: Fetch) -> Fetched {
    let Fetch { directory, url, sha256, mirrors, output, credentials, image } = fetch;
    let mut args = vec!["fetch", "--url", url, "--output", output];
    args.extend(sha256.into_iter().flat_map(|digest| ["--sha256", digest]));
    args.extend(mirrors.iter().flat_map(|mirror| ["--mirror", mirror]));
    // A Pod's status has no message of a running container, only the termination message of one
    // that exited.
    args.extend(["--give-up-after", GIVE_UP_AFTER, "--error-file", "/dev/termination-log"]);
    let program = ContainerProgram {
        image: image.to_owned(),
        command: vec!["neptune-edge".to_owned()],
        args: args.into_iter().map(str::to_owned).collect(),
        ..ContainerProgram::default()
    };
    let name = || "model".to_owned();
    let writable =
        VolumeMount { name: name(), mount_path: directory.to_owned(), ..VolumeMount::default() };
    Fetched {
        volume: Volume {
            name: name(),
            empty_dir: Some(EmptyDirVolumeSource::default()),
            ..Volume::default()
        },
        mount: read_only("model", directory),
        init: Container {
            env: credentials.map(|secret| download_credentials(secret, url)),
            volume_mounts: Some(vec![writable]),
            termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
            ..container("fetch-model", &program)
        },
    }
}

/// Makes a read-only mount of a volume.
pub fn read_only(name: &str, path: &str) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    }
}
