//! The cloud worker as Kubernetes objects: a Deployment of one Pod on its node, and a Service.
//! Pure.

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::{
            Container, EnvVar, HostPathVolumeSource, PodSpec, Probe, TCPSocketAction, Volume,
            VolumeMount,
        },
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use kube::ResourceExt as _;
use neptune_api::{JointInferenceService, WorkerSpec};
use neptune_wire::{ArtifactAddress, Worker};

use crate::{
    controllers::joint_inference_service::{
        plan::SERVICE_PORT, validate::ValidCloudWorker, worker::ResolvedWorker,
    },
    kubernetes::{
        placement::on_node,
        pod_template::pod_template,
        report_sidecar,
        report_target::ReportAccess,
        secrets::pull_secrets,
        workloads::{
            self, Fetch, Fetched, KubernetesObjects, fetched, read_only, rolling_update, some,
            variable,
        },
    },
};

/// The directory of the models in the container, with one subdirectory per model.
const MODELS: &str = "/models";

/// The Deployment and the Service of a cloud worker.
pub fn cloud_worker_objects(
    service: &JointInferenceService,
    spec: &WorkerSpec,
    cloud: &ValidCloudWorker,
    worker: &Worker,
    reports: Option<&ReportAccess>,
    fetch_image: &str,
) -> KubernetesObjects {
    let metadata = workloads::metadata(service, &worker.name, "cloud-worker");
    let deployment = Deployment {
        metadata: metadata.clone(),
        spec: Some(DeploymentSpec {
            replicas: Some(1),
            selector: LabelSelector {
                match_labels: Some(workloads::selector(&worker.name)),
                ..LabelSelector::default()
            },
            // The node needs room for two Pods during an update.
            strategy: Some(rolling_update()),
            template: pod_template(
                service,
                metadata.labels.clone(),
                pod(spec, cloud, worker, reports, fetch_image),
                spec.security_context.as_ref(),
            ),
            ..DeploymentSpec::default()
        }),
        status: None,
    };
    let service = workloads::service(metadata, &worker.name, &[("http", SERVICE_PORT)], None);
    KubernetesObjects { deployment, service }
}

fn pod(
    spec: &WorkerSpec,
    cloud: &ValidCloudWorker,
    worker: &Worker,
    reports: Option<&ReportAccess>,
    fetch_image: &str,
) -> PodSpec {
    let Delivery { mut volumes, mount, fetch, model_url } = delivery(&cloud.worker, fetch_image);
    let mut mounts = vec![mount];
    if let Some(scripts) = &worker.scripts {
        volumes.push(host_path("scripts", &scripts.dir));
        mounts.push(read_only("scripts", &scripts.dir));
    }
    let mut env: Vec<EnvVar> =
        worker.env.iter().map(|(name, value)| variable(name, value)).collect();
    env.push(variable("MODEL_URL", &model_url));
    env.push(variable("NODE_NAME", cloud.node.as_str()));
    env.extend(
        reports.into_iter().flat_map(|it| report_sidecar::worker_variables(&worker.name, it)),
    );
    let sidecar = reports.map(|it| report_sidecar::container(&worker.name, it, fetch_image));
    // The sidecar needs no memory while the model is downloaded.
    let init_containers: Vec<_> = fetch.into_iter().chain(sidecar).collect();
    let container = Container {
        name: "worker".to_owned(),
        image: Some(worker.image.clone()),
        command: some(&worker.command),
        args: some(&worker.args),
        env: Some(env),
        volume_mounts: Some(mounts),
        resources: workloads::limits(&worker.resources),
        // Ready when the port is open: until then requests of edge workers fail.
        readiness_probe: Some(Probe {
            tcp_socket: Some(TCPSocketAction {
                port: IntOrString::Int(i32::from(SERVICE_PORT)),
                ..TCPSocketAction::default()
            }),
            // Not the default of 10 s: an edge worker with little data may have finished by then.
            period_seconds: Some(1),
            ..Probe::default()
        }),
        ..Container::default()
    };
    PodSpec {
        affinity: Some(on_node(cloud.node.as_str())),
        init_containers: Some(init_containers).filter(|all| !all.is_empty()),
        containers: vec![container],
        volumes: Some(volumes),
        // Workers do not use the API server.
        automount_service_account_token: Some(false),
        image_pull_secrets: pull_secrets(&spec.image_pull_secrets),
        ..PodSpec::default()
    }
}

/// The volumes, mount and init container that provide the model.
struct Delivery {
    volumes: Vec<Volume>,
    mount: VolumeMount,
    fetch: Option<Container>,
    model_url: String,
}

/// Mounts a file of the node from its path. An init container downloads and verifies any other
/// model in an `emptyDir` before the worker starts.
fn delivery(resolved: &ResolvedWorker, fetch_image: &str) -> Delivery {
    let directory = format!("{MODELS}/{}", resolved.model.name_any());
    let model_url = format!("{directory}/{}", resolved.source.file_name());
    let url = match &resolved.source {
        ArtifactAddress::Path(path) => {
            let volumes = vec![host_path("model", path)];
            let mount = read_only("model", &model_url);
            return Delivery { volumes, mount, fetch: None, model_url };
        }
        remote @ (ArtifactAddress::Http(_) | ArtifactAddress::S3 { .. }) => remote.to_url(),
    };
    let spec = &resolved.model.spec;
    let Fetched { volume, mount, init } = fetched(Fetch {
        directory: &directory,
        url: &url,
        sha256: spec.sha256sum.as_deref(),
        output: &model_url,
        credentials: spec.credentials_secret.as_ref(),
        image: fetch_image,
    });
    Delivery { volumes: vec![volume], mount, fetch: Some(init), model_url }
}

fn host_path(name: &str, path: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        host_path: Some(HostPathVolumeSource { path: path.to_owned(), type_: None }),
        ..Volume::default()
    }
}
