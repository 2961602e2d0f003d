//! A model's servers in the cloud as Kubernetes objects: a Deployment and a Service. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment},
        core::v1::{
            Container, ContainerPort, EnvVar, HTTPGetAction, Pod, PodSpec, PodTemplateSpec, Probe,
            TCPSocketAction,
        },
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use neptune_api::InferenceModel;
use neptune_wire::{ServedModel, ServerUpdateMode};

use crate::{
    controllers::inference_model::{
        place::Place, plan::environment, target::Deployed, validate::ValidInferenceModel,
    },
    kubernetes::labels::owner_annotation,
    kubernetes::workloads::{self, KubernetesObjects, fetched, some, variable},
    worker::model_source::ModelSource,
};

/// The label of a Pod, and of its Deployment's template, that names the version.
pub const VERSION_LABEL: &str = "neptune.io/model-version";

/// Seconds in which a Pod's image and model can be had before its Deployment says that it gets nowhere.
const FETCH_WITHIN: u64 = 600;

/// The name of the container that serves.
const SERVER: &str = "server";

/// What a fetch unpacks, by the end of its URL's path.
const ARCHIVES: [&str; 5] = [".tar", ".tar.gz", ".tgz", ".tar.zst", ".zip"];

/// What a Deployment is to serve.
pub fn deployed(deployment: &Deployment) -> Option<Deployed> {
    let template = &deployment.spec.as_ref()?.template;
    served(template.metadata.as_ref(), template.spec.as_ref())
}

/// The version that a Pod serves, or the image that brings it.
pub fn pod_version(pod: &Pod) -> Option<String> {
    served(Some(&pod.metadata), pod.spec.as_ref()).map(Deployed::into_name)
}

fn served(metadata: Option<&ObjectMeta>, spec: Option<&PodSpec>) -> Option<Deployed> {
    let labels = metadata.and_then(|metadata| metadata.labels.as_ref());
    if let Some(version) = labels.and_then(|labels| labels.get(VERSION_LABEL)) {
        return Some(Deployed::Version(version.clone()));
    }
    let server = spec?.containers.iter().find(|container| container.name == SERVER)?;
    server.image.clone().map(Deployed::Image)
}

/// The objects of a model that is served in the cloud.
pub fn objects(
    model: &InferenceModel,
    valid: &ValidInferenceModel,
    fetch_image: &str,
) -> KubernetesObjects {
    let Place::Cluster { node, selector, replicas, service_type } = &valid.place else {
        unreachable!("only a model in the cloud has objects")
    };
    let metadata = workloads::metadata(model, &valid.name, "model-server");
    let health = &valid.program.health;
    let patience = FETCH_WITHIN + seconds(health.start_within_ms + health.probation_ms);
    let deployment = Deployment {
        metadata: metadata.clone(),
        spec: Some(DeploymentSpec {
            replicas: Some(*replicas),
            selector: LabelSelector {
                match_labels: Some(workloads::selector(&valid.name)),
                ..LabelSelector::default()
            },
            // What serves is not touched before another Pod serves: a version that fails costs nothing.
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_surge: Some(IntOrString::Int(1)),
                    max_unavailable: Some(IntOrString::Int(0)),
                }),
            }),
            min_ready_seconds: Some(number(seconds(health.probation_ms))),
            progress_deadline_seconds: Some(number(patience)),
            template: template(model, valid, &metadata, node.as_ref(), selector, fetch_image),
            ..DeploymentSpec::default()
        }),
        status: None,
    };
    let service = workloads::service(metadata, &valid.name, valid.port, Some(service_type));
    KubernetesObjects { deployment, service }
}

fn template(
    model: &InferenceModel,
    valid: &ValidInferenceModel,
    metadata: &ObjectMeta,
    node: Option<&String>,
    selector: &BTreeMap<String, String>,
    fetch_image: &str,
) -> PodTemplateSpec {
    let mut labels = metadata.labels.clone().unwrap_or_default();
    if let Some(version) = &valid.version {
        labels.insert(VERSION_LABEL.to_owned(), version.version.clone());
    }
    let name = model.metadata.name.clone().unwrap_or_default();
    let fetched = valid.version.as_ref().map(|version| {
        let sha256 = version.sha256.as_deref();
        fetched(&version.directory, &version.url, sha256, &output(version), fetch_image)
    });
    let container = container(model, valid, fetched.as_ref());
    let (volumes, init) = match fetched {
        Some(fetched) => (Some(vec![fetched.volume]), Some(vec![fetched.init])),
        None => (None, None),
    };
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels),
            annotations: Some([(owner_annotation::<InferenceModel>(), name)].into()),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            node_name: node.cloned(),
            node_selector: Some(selector.clone()).filter(|selector| !selector.is_empty()),
            init_containers: init,
            containers: vec![container],
            volumes,
            // A server has nothing to ask the API server.
            automount_service_account_token: Some(false),
            ..PodSpec::default()
        }),
    }
}

fn container(
    model: &InferenceModel,
    valid: &ValidInferenceModel,
    fetched: Option<&workloads::Fetched>,
) -> Container {
    let program = &valid.program;
    let version = valid.version.as_ref();
    let fill = |text: &String| {
        text.replace("{version}", version.map_or("", |version| version.version.as_str()))
    };
    let fill_all = |list: &[String]| list.iter().map(fill).collect::<Vec<_>>();
    let mut env: Vec<EnvVar> = environment(valid, &model.spec.model_name)
        .iter()
        .map(|(name, value)| variable(name, value))
        .collect();
    env.extend(version.map(|version| match program.reload {
        ServerUpdateMode::Watch => variable("MODEL_URL", &version.directory),
        ServerUpdateMode::Replace => variable("MODEL_URL", &output(version)),
    }));
    let health = &program.health;
    let probe = Probe {
        http_get: health.http_path.as_ref().map(|path| HTTPGetAction {
            path: Some(fill(path)),
            port: IntOrString::Int(valid.port.into()),
            ..HTTPGetAction::default()
        }),
        tcp_socket: health.http_path.is_none().then(|| TCPSocketAction {
            port: IntOrString::Int(valid.port.into()),
            ..TCPSocketAction::default()
        }),
        period_seconds: Some(number(seconds(health.period_ms))),
        timeout_seconds: Some(number(seconds(health.timeout_ms))),
        ..Probe::default()
    };
    let tries = health.start_within_ms.div_ceil(health.period_ms.max(1));
    Container {
        name: SERVER.to_owned(),
        image: Some(program.image.clone()),
        command: some(&fill_all(&program.command)),
        args: some(&fill_all(&program.args)),
        env: Some(env),
        ports: Some(vec![ContainerPort {
            name: Some("http".to_owned()),
            container_port: valid.port.into(),
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]),
        volume_mounts: fetched.map(|fetched| vec![fetched.mount.clone()]),
        startup_probe: Some(Probe { failure_threshold: Some(number(tries)), ..probe.clone() }),
        readiness_probe: Some(probe),
        ..Container::default()
    }
}

/// Where a version is in the Pod: an archive's content in a directory of that name, or a file in it.
fn output(ServedModel { version, url, directory, .. }: &ServedModel) -> String {
    let directory = format!("{}/{version}", directory.trim_end_matches('/'));
    let path = &url[..url.find(['?', '#']).unwrap_or(url.len())].to_ascii_lowercase();
    if ARCHIVES.iter().any(|end| path.ends_with(end)) {
        return directory;
    }
    format!("{directory}/{}", ModelSource::Http(url.clone()).file_name())
}

fn seconds(millis: u64) -> u64 {
    millis.div_ceil(1000)
}

fn number(number: u64) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
