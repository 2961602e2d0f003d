//! The cloud worker as Kubernetes objects: a Deployment of one Pod on its node, and a Service. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy},
        core::v1::{
            Container, EmptyDirVolumeSource, EnvVar, HostPathVolumeSource, PodSpec,
            PodTemplateSpec, Probe, ResourceRequirements, Service, ServicePort, ServiceSpec,
            TCPSocketAction, Volume, VolumeMount,
        },
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use kube::Resource as _;
use neptune_api::JointInferenceService;
use neptune_wire::Worker;

use super::{half::Half, plan::SERVICE_PORT};
use crate::model_source::ModelSource;

/// The label that says who made an object, and its value on ours.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "neptune-cloud");

/// The annotation of a Pod that names its service.
pub const SERVICE_ANNOTATION: &str = "neptune.io/jointinferenceservice";

/// The label by which the Deployment and the Service find the Pod.
const INSTANCE: &str = "app.kubernetes.io/instance";

/// Where a worker's models are, one directory a model.
const MODELS: &str = "/models";

/// The two objects of a cloud worker.
#[derive(Debug, Clone, PartialEq)]
pub struct KubernetesObjects {
    /// One Pod on the worker's node.
    pub deployment: Deployment,
    /// The name under which the edge worker finds it.
    pub service: Service,
}

/// The objects of a service's cloud worker.
pub fn objects(
    service: &JointInferenceService,
    half: &Half,
    worker: &Worker,
    fetch_image: &str,
) -> KubernetesObjects {
    let selector: BTreeMap<_, _> = [(INSTANCE.to_owned(), worker.name.to_string())].into();
    let metadata = metadata(service, worker);
    let deployment = Deployment {
        metadata: metadata.clone(),
        spec: Some(DeploymentSpec {
            replicas: Some(1),
            selector: LabelSelector {
                match_labels: Some(selector.clone()),
                ..LabelSelector::default()
            },
            // Two Pods at once may not fit on the one node that the worker is bound to.
            strategy: Some(DeploymentStrategy {
                type_: Some("Recreate".to_owned()),
                ..DeploymentStrategy::default()
            }),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: metadata.labels.clone(),
                    annotations: Some(
                        [(
                            SERVICE_ANNOTATION.to_owned(),
                            service.metadata.name.clone().unwrap_or_default(),
                        )]
                        .into(),
                    ),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod(half, worker, fetch_image)),
            },
            ..DeploymentSpec::default()
        }),
        status: None,
    };
    let service = Service {
        metadata,
        spec: Some(ServiceSpec {
            selector: Some(selector),
            ports: Some(vec![ServicePort {
                name: Some("http".to_owned()),
                port: i32::from(SERVICE_PORT),
                protocol: Some("TCP".to_owned()),
                target_port: Some(IntOrString::Int(i32::from(SERVICE_PORT))),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    };
    KubernetesObjects { deployment, service }
}

fn metadata(service: &JointInferenceService, worker: &Worker) -> ObjectMeta {
    let labels = [
        ("app.kubernetes.io/name", "jointinferenceservice"),
        (INSTANCE, worker.name.as_str()),
        ("app.kubernetes.io/component", "cloud-worker"),
        ("app.kubernetes.io/part-of", "neptune"),
        MANAGED_BY,
    ];
    ObjectMeta {
        name: Some(worker.name.to_string()),
        namespace: service.metadata.namespace.clone(),
        labels: Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
        owner_references: service.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

fn pod(half: &Half, worker: &Worker, fetch_image: &str) -> PodSpec {
    let Delivery { mut volumes, mount, fetch, model_url } = delivery(half, worker, fetch_image);
    let mut mounts = vec![mount];
    if let Some(scripts) = &worker.scripts {
        volumes.push(host_path("scripts", &scripts.dir));
        mounts.push(read_only("scripts", &scripts.dir));
    }
    let mut env: Vec<EnvVar> =
        worker.env.iter().map(|(name, value)| variable(name, value)).collect();
    env.push(variable("MODEL_URL", &model_url));
    env.push(variable("NODE_NAME", half.node.as_str()));
    let some = |list: &[String]| Some(list.to_vec()).filter(|list| !list.is_empty());
    let container = Container {
        name: "worker".to_owned(),
        image: Some(worker.image.clone()),
        command: some(&worker.command),
        args: some(&worker.args),
        env: Some(env),
        volume_mounts: Some(mounts),
        resources: limits(worker),
        // Ready when it listens: until then an edge worker's call would be refused.
        readiness_probe: Some(Probe {
            tcp_socket: Some(TCPSocketAction {
                port: IntOrString::Int(i32::from(SERVICE_PORT)),
                ..TCPSocketAction::default()
            }),
            ..Probe::default()
        }),
        ..Container::default()
    };
    PodSpec {
        node_name: Some(half.node.to_string()),
        init_containers: fetch.map(|fetch| vec![fetch]),
        containers: vec![container],
        volumes: Some(volumes),
        // A worker has nothing to ask the API server.
        automount_service_account_token: Some(false),
        ..PodSpec::default()
    }
}

/// How the model comes into the container.
struct Delivery {
    volumes: Vec<Volume>,
    mount: VolumeMount,
    fetch: Option<Container>,
    model_url: String,
}

/// A file of the node is mounted from where it is. What has to be downloaded is put into the Pod's
/// own directory, and checked, by an init container before the worker starts.
fn delivery(half: &Half, worker: &Worker, fetch_image: &str) -> Delivery {
    let directory = format!("{MODELS}/{}", worker.model);
    let model_url = format!("{directory}/{}", half.source.file_name());
    let url = match &half.source {
        ModelSource::Path(path) => {
            let volumes = vec![host_path("model", path)];
            let mount = read_only("model", &model_url);
            return Delivery { volumes, mount, fetch: None, model_url };
        }
        ModelSource::Http(url) => url.clone(),
    };
    let mut args = vec!["fetch".to_owned(), "--url".to_owned(), url];
    args.extend(["--output".to_owned(), model_url.clone()]);
    if let Some(digest) = &half.model.spec.sha256sum {
        args.extend(["--sha256".to_owned(), digest.clone()]);
    }
    let volume = Volume {
        name: "model".to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    };
    let writable = VolumeMount {
        name: "model".to_owned(),
        mount_path: directory.clone(),
        ..VolumeMount::default()
    };
    let fetch = Container {
        name: "fetch-model".to_owned(),
        image: Some(fetch_image.to_owned()),
        command: Some(vec!["neptune-edge".to_owned()]),
        args: Some(args),
        volume_mounts: Some(vec![writable]),
        ..Container::default()
    };
    let mount = read_only("model", &directory);
    Delivery { volumes: vec![volume], mount, fetch: Some(fetch), model_url }
}

fn host_path(name: &str, path: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        host_path: Some(HostPathVolumeSource { path: path.to_owned(), type_: None }),
        ..Volume::default()
    }
}

fn read_only(name: &str, path: &str) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    }
}

fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None }
}

fn limits(worker: &Worker) -> Option<ResourceRequirements> {
    let cpu = worker.resources.cpu_millis.map(|millis| ("cpu", format!("{millis}m")));
    let memory = worker.resources.memory_bytes.map(|bytes| ("memory", bytes.to_string()));
    let limits: BTreeMap<_, _> = [cpu, memory]
        .into_iter()
        .flatten()
        .map(|(name, amount)| (name.to_owned(), Quantity(amount)))
        .collect();
    (!limits.is_empty())
        .then(|| ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() })
}
