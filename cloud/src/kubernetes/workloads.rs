//! What the Kubernetes objects of every kind have in common: names and labels, the Service, and how a
//! model comes into a Pod. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{
            Container, EmptyDirVolumeSource, EnvVar, Service, ServicePort, ServiceSpec, Volume,
            VolumeMount,
        },
    },
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use neptune_wire::WorkerName;

use crate::{
    kinds::Kind,
    kubernetes::labels::{INSTANCE_LABEL, MANAGED_BY},
};

/// Seconds without a byte after which a fetch ends, to be started again where it was. As long as a stalled
/// connection is waited for, and one more try.
const GIVE_UP_AFTER: &str = "60";

/// The two objects that an owner has in the cloud.
#[derive(Debug, Clone, PartialEq)]
pub struct KubernetesObjects {
    /// What runs.
    pub deployment: Deployment,
    /// The name under which it is found.
    pub service: Service,
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

/// The labels by which the Pods are found.
pub fn selector(name: &WorkerName) -> BTreeMap<String, String> {
    [(INSTANCE_LABEL.to_owned(), name.to_string())].into()
}

/// A Service of one port, the same outside and inside.
pub fn service(metadata: ObjectMeta, name: &WorkerName, port: u16, type_: Option<&str>) -> Service {
    let port = i32::from(port);
    Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: type_.map(str::to_owned),
            selector: Some(selector(name)),
            ports: Some(vec![ServicePort {
                name: Some("http".to_owned()),
                port,
                protocol: Some("TCP".to_owned()),
                target_port: Some(IntOrString::Int(port)),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// A directory of the Pod's own, filled before its other containers start.
pub struct Fetched {
    /// The directory.
    pub volume: Volume,
    /// How the container that reads it sees it.
    pub mount: VolumeMount,
    /// What fills it, checking what it fetches.
    pub init: Container,
}

/// Fetches `url` to `output`, which is in `directory`.
pub fn fetched(
    directory: &str,
    url: &str,
    sha256: Option<&str>,
    output: &str,
    fetch_image: &str,
) -> Fetched {
    let mut args = vec!["fetch", "--url", url, "--output", output];
    args.extend(sha256.into_iter().flat_map(|digest| ["--sha256", digest]));
    // A Pod tells nothing of a container that waits, and the last words of one that ended.
    args.extend(["--give-up-after", GIVE_UP_AFTER, "--error-file", "/dev/termination-log"]);
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
            name: "fetch-model".to_owned(),
            image: Some(fetch_image.to_owned()),
            command: Some(vec!["neptune-edge".to_owned()]),
            args: Some(args.into_iter().map(str::to_owned).collect()),
            volume_mounts: Some(vec![writable]),
            termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
            ..Container::default()
        },
    }
}

/// A mount that cannot be written.
pub fn read_only(name: &str, path: &str) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    }
}

/// An environment variable.
pub fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None }
}

/// A list as the API wants it: an empty one would replace what the image has.
pub fn some(list: &[String]) -> Option<Vec<String>> {
    Some(list.to_vec()).filter(|list| !list.is_empty())
}
