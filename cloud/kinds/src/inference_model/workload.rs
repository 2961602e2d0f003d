//! The Deployment and the Service of model servers in the cloud.

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec},
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
use neptune_wire::{
    ArtifactAddress, ContainerProgram, HealthCheck, Role, ServedModel, ServerUpdateMode,
};

use crate::{
    inference_model::{
        place::{Place, PodPlacement},
        target::{Deployed, container_inputs},
        validate::ValidInferenceModel,
    },
    kubernetes::{
        container::{container, variable},
        container_inputs::ContainerInputs,
        placement::{in_cloud, on_node},
        pod_config::{pod_env_from, pod_variables},
        pod_template::pod_template,
        pod_volumes::{pod_volume_mounts, pod_volumes},
        secrets::pull_secrets,
        workloads::{self, Fetch, KubernetesObjects, fetched, rolling_update},
    },
    worker::{
        restart::{self, Restart},
        serving_runtimes::{ANY_HOST, FILE, HOST},
    },
};

/// The label with the version, on Pods and on the Deployment's template.
pub const VERSION_LABEL: &str = "neptune.io/model-version";

/// Seconds for image pull and model download before the Deployment exceeds its progress deadline.
const FETCH_WITHIN: u64 = 600;

/// Seconds between SIGTERM and SIGKILL of a server that did not start in time.
const STOP_GRACE: i64 = 5;

/// The minimum period and timeout of the liveness probe, in seconds. Three failures restart the
/// server.
const LIVENESS_PERIOD: i32 = 10;

/// The name of the server's container.
const SERVER: &str = "server";

/// The name of the transformer's container.
pub const TRANSFORMER: &str = "transformer";

/// The version or image that a Deployment serves.
pub fn deployed(deployment: &Deployment) -> Option<Deployed> {
    let template = &deployment.spec.as_ref()?.template;
    served(template.metadata.as_ref(), template.spec.as_ref())
}

/// The version that a Pod serves, or its image if that contains the model.
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

/// The Deployment and the Service of a model that is served in the cloud.
pub fn objects(
    model: &InferenceModel,
    valid: &ValidInferenceModel,
    fetch_image: &str,
) -> KubernetesObjects {
    let Place::Cluster { placement, replicas, service_type } = &valid.place else {
        unreachable!("only a model in the cloud has a workload")
    };
    let metadata = workloads::metadata(model, &valid.name, "model-server");
    let health = &valid.program.health;
    let progress_deadline = FETCH_WITHIN + seconds(health.start_within_ms + health.probation_ms);
    let deployment = Deployment {
        metadata: metadata.clone(),
        spec: Some(DeploymentSpec {
            replicas: Some(*replicas),
            selector: LabelSelector {
                match_labels: Some(workloads::selector(&valid.name)),
                ..LabelSelector::default()
            },
            strategy: Some(rolling_update()),
            min_ready_seconds: Some(number(seconds(health.probation_ms))),
            progress_deadline_seconds: Some(number(progress_deadline)),
            template: template(model, valid, &metadata, placement, fetch_image),
            ..DeploymentSpec::default()
        }),
        status: None,
    };
    let service = workloads::service(metadata, &valid.name, &ports(valid), Some(service_type));
    KubernetesObjects { deployment, service }
}

fn template(
    model: &InferenceModel,
    valid: &ValidInferenceModel,
    metadata: &ObjectMeta,
    placement: &PodPlacement,
    fetch_image: &str,
) -> PodTemplateSpec {
    let mut labels = metadata.labels.clone().unwrap_or_default();
    if let Some(version) = &valid.version {
        labels.insert(VERSION_LABEL.to_owned(), version.version.clone());
    }
    let fetched = valid.version.as_ref().map(|version| {
        fetched(Fetch {
            directory: &version.directory,
            url: &version.url,
            sha256: version.sha256.as_deref(),
            mirrors: &version.mirrors,
            output: &output(version),
            credentials: valid.credentials.as_ref(),
            image: fetch_image,
        })
    });
    let inputs = container_inputs(model);
    let mut server = server(valid, fetched.as_ref());
    add_inputs(&mut server, inputs);
    let transformer = transformer(valid, fetched.as_ref());
    let (model_volume, init) = fetched.map(|fetched| (fetched.volume, vec![fetched.init])).unzip();
    let volumes: Vec<_> = model_volume.into_iter().chain(pod_volumes(inputs)).collect();
    let pod = PodSpec {
        affinity: Some(match &placement.node {
            Some(node) => on_node(node),
            None => in_cloud(placement.allow_control_plane),
        }),
        node_selector: Some(placement.selector.clone()).filter(|selector| !selector.is_empty()),
        init_containers: init,
        containers: [server].into_iter().chain(transformer).collect(),
        volumes: Some(volumes).filter(|all| !all.is_empty()),
        // Model servers do not use the API server.
        automount_service_account_token: Some(false),
        image_pull_secrets: pull_secrets(&model.spec.image_pull_secrets),
        ..PodSpec::default()
    };
    let context = model.spec.security_context.as_ref();
    let mut template = pod_template(model, Some(labels), pod, context);
    let restart = Restart::requested_of_server(&model.metadata);
    let node = placement.node.as_deref().and_then(|node| node.parse().ok());
    let restarted_at = restart.as_ref().and_then(|restart| match &node {
        Some(node) => restart.on_node(node, Role::Edge),
        None => restart.everywhere(Role::Edge),
    });
    restart::annotate(&mut template, restarted_at);
    template
}

fn server(valid: &ValidInferenceModel, fetched: Option<&workloads::Fetched>) -> Container {
    let program = &valid.program;
    let version = valid.version.as_ref();
    let fill = |text: &String| {
        let file = version.map(output).unwrap_or_default();
        text.replace("{version}", version.map_or("", |version| version.version.as_str()))
            .replace(FILE, &file)
            // Probes of a Pod reach its own address only, also of a server behind a transformer.
            .replace(HOST, ANY_HOST)
    };
    let fill_all = |list: &[String]| list.iter().map(fill).collect::<Vec<_>>();
    let container_program = ContainerProgram {
        command: fill_all(&program.container.command),
        args: fill_all(&program.container.args),
        ..program.container.clone()
    };
    let path = program.health.http_path.as_ref().map(fill);
    let behind = program.transformer.as_ref().map(|transformer| transformer.server_port);
    let probes = probes(&program.health, path, behind.unwrap_or(valid.port));
    let ports = match behind {
        Some(port) => vec![("server", port)],
        None => ports(valid),
    };
    serving_container(SERVER, &container_program, (ports, probes), valid, fetched)
}

/// Adds the variables and mounts of the spec to the container of a server.
fn add_inputs(server: &mut Container, inputs: ContainerInputs<'_>) {
    server.env.get_or_insert_default().extend(pod_variables(inputs));
    server.env_from = pod_env_from(inputs);
    let mounts = pod_volume_mounts(inputs);
    let mounts: Vec<_> = server.volume_mounts.take().into_iter().flatten().chain(mounts).collect();
    server.volume_mounts = Some(mounts).filter(|all| !all.is_empty());
}

fn model_url(valid: &ValidInferenceModel) -> Option<EnvVar> {
    valid.version.as_ref().map(|version| match valid.program.reload {
        ServerUpdateMode::Watch => variable("MODEL_URL", &version.directory),
        ServerUpdateMode::Replace => variable("MODEL_URL", &output(version)),
    })
}

/// The container of the transformer, if there is one.
fn transformer(
    valid: &ValidInferenceModel,
    fetched: Option<&workloads::Fetched>,
) -> Option<Container> {
    let transformer = valid.program.transformer.as_ref()?;
    let path = transformer.health_path.clone();
    let probes = probes(&valid.program.health, path, valid.port);
    let ports = ports(valid);
    Some(serving_container(TRANSFORMER, &transformer.program, (ports, probes), valid, fetched))
}

/// A container of a server's Pod, with the model and its path.
fn serving_container(
    name: &str,
    program: &ContainerProgram,
    (ports, probes): (Vec<(&str, u16)>, Probes),
    valid: &ValidInferenceModel,
    fetched: Option<&workloads::Fetched>,
) -> Container {
    let mut container = container(name, program);
    container.env.get_or_insert_default().extend(model_url(valid));
    Container {
        ports: Some(ports.into_iter().map(container_port).collect()),
        volume_mounts: fetched.map(|fetched| vec![fetched.mount.clone()]),
        startup_probe: Some(probes.startup),
        readiness_probe: Some(probes.readiness),
        liveness_probe: Some(probes.liveness),
        ..container
    }
}

/// The ports of the endpoint, by name.
fn ports(valid: &ValidInferenceModel) -> Vec<(&'static str, u16)> {
    let grpc = valid.grpc_port.map(|port| ("grpc", port));
    [("http", valid.port)].into_iter().chain(grpc).collect()
}

fn container_port((name, port): (&str, u16)) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: port.into(),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

struct Probes {
    startup: Probe,
    readiness: Probe,
    liveness: Probe,
}

/// The probes of a server, with an HTTP path or by a TCP connection.
fn probes(health: &HealthCheck, path: Option<String>, port: u16) -> Probes {
    let readiness = Probe {
        tcp_socket: path.is_none().then(|| TCPSocketAction {
            port: IntOrString::Int(port.into()),
            ..TCPSocketAction::default()
        }),
        http_get: path.map(|path| HTTPGetAction {
            path: Some(path),
            port: IntOrString::Int(port.into()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(number(seconds(health.period_ms))),
        timeout_seconds: Some(number(seconds(health.timeout_ms))),
        ..Probe::default()
    };
    let tries = health.start_within_ms.div_ceil(health.period_ms.max(1));
    Probes {
        startup: Probe {
            failure_threshold: Some(number(tries)),
            // A server that hangs is not waited for.
            termination_grace_period_seconds: Some(STOP_GRACE),
            ..readiness.clone()
        },
        // Slower than the readiness probe: a server under load is not restarted.
        liveness: Probe {
            period_seconds: Some(LIVENESS_PERIOD.max(number(seconds(health.period_ms)))),
            timeout_seconds: Some(LIVENESS_PERIOD.max(number(seconds(health.timeout_ms)))),
            ..readiness.clone()
        },
        readiness,
    }
}

/// The path of a version in the Pod: its directory if it is an archive or a set of files, or else a file
/// in it.
fn output(ServedModel { version, url, directory, .. }: &ServedModel) -> String {
    let directory = format!("{}/{version}", directory.trim_end_matches('/'));
    let address: ArtifactAddress = url.parse().expect("validate checked the address");
    if address.is_directory() {
        return directory;
    }
    format!("{directory}/{}", address.file_name())
}

fn seconds(millis: u64) -> u64 {
    millis.div_ceil(1000)
}

fn number(number: u64) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
