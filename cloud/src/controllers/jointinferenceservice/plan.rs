//! What a service that can work means: a task and models for its nodes' agents, and a Deployment
//! with a Service where the kubelet runs the cloud worker. Pure.

use std::collections::BTreeMap;

use kube::Resource as _;
use neptune_api::{JointInferenceService, Model};
use neptune_wire::{
    Content, Metadata, NodeName, ObjectKey, ObjectName, Resource, Role, Scripts, Worker,
};
use serde::Serialize;

use super::{
    kubernetes::{self, KubernetesObjects},
    validate::{Checked, Half, Runtime},
};
use crate::environment::{environment, json};

/// Where a cloud worker behind a Service listens, as the workers of the field do.
pub const SERVICE_PORT: u16 = 5000;

/// All that one service asks for.
#[must_use]
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What each node's agent should have because of this service.
    pub downstream: BTreeMap<NodeName, BTreeMap<ObjectKey, Content>>,
    /// What the API server should have; `None` where an agent runs the cloud worker.
    pub objects: Option<KubernetesObjects>,
}

/// The plan of a service.
pub fn plan(service: &JointInferenceService, checked: &Checked, fetch_image: &str) -> Plan {
    let mut tasks: BTreeMap<NodeName, Vec<(Worker, &Half)>> = BTreeMap::new();
    let edge = edge_worker(service, checked);
    tasks.entry(checked.edge.node.clone()).or_default().push((edge, &checked.edge));
    let cloud = cloud_worker(service, checked);
    let objects = match &checked.runtime {
        Runtime::Agent { .. } => {
            tasks.entry(checked.cloud.node.clone()).or_default().push((cloud, &checked.cloud));
            None
        }
        Runtime::Kubelet => Some(kubernetes::objects(service, &checked.cloud, &cloud, fetch_image)),
    };
    let downstream = tasks
        .into_iter()
        .map(|(node, workers)| (node, contents(service, checked, workers)))
        .collect();
    Plan { downstream, objects }
}

/// The task with the workers of one node, and the models that they use.
fn contents(
    service: &JointInferenceService,
    checked: &Checked,
    workers: Vec<(Worker, &Half)>,
) -> BTreeMap<ObjectKey, Content> {
    let mut contents: BTreeMap<_, _> =
        workers.iter().map(|(_, half)| model(&half.model, &checked.metadata)).collect();
    let task = Content {
        api_version: JointInferenceService::api_version(&()).into_owned(),
        kind: JointInferenceService::kind(&()).into_owned(),
        metadata: checked.metadata.clone(),
        spec: value(&service.spec),
        workers: workers.into_iter().map(|(worker, _)| worker).collect(),
    };
    contents.insert(checked.key.clone(), task);
    contents
}

fn model(model: &Model, service: &Metadata) -> (ObjectKey, Content) {
    let metadata = Metadata {
        namespace: service.namespace.clone(),
        name: model_name(model),
        uid: model.metadata.uid.clone().unwrap_or_default(),
    };
    let key = ObjectKey {
        namespace: metadata.namespace.clone(),
        resource: Resource::Models,
        name: metadata.name.clone(),
    };
    let content = Content {
        api_version: Model::api_version(&()).into_owned(),
        kind: Model::kind(&()).into_owned(),
        metadata,
        spec: value(&model.spec),
        workers: Vec::new(),
    };
    (key, content)
}

fn model_name(model: &Model) -> ObjectName {
    let name = model.metadata.name.as_deref().unwrap_or_default();
    name.parse().expect("an API server names objects by RFC 1123")
}

fn value(spec: &impl Serialize) -> serde_json::Value {
    serde_json::to_value(spec).expect("a spec came from JSON")
}

fn edge_worker(service: &JointInferenceService, checked: &Checked) -> Worker {
    let spec = &service.spec.edge_worker;
    let (host, port) = match &checked.runtime {
        Runtime::Kubelet => {
            (format!("{}.{}.svc", checked.cloud.name, checked.metadata.namespace), SERVICE_PORT)
        }
        Runtime::Agent { address, port } => (address.clone(), *port),
    };
    let url_host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let env = environment(
        &spec.worker_spec.parameters,
        &checked.edge.env,
        [
            ("NAMESPACE", checked.metadata.namespace.to_string()),
            ("SERVICE_NAME", checked.metadata.name.to_string()),
            ("WORKER_NAME", checked.edge.name.to_string()),
            ("HEM_NAME", spec.hard_example_algorithm.name.clone()),
            ("HEM_PARAMETERS", json(&spec.hard_example_algorithm.parameters)),
            ("BIG_MODEL_URL", format!("http://{url_host}:{port}")),
            ("BIG_MODEL_IP", host),
            ("BIG_MODEL_PORT", port.to_string()),
        ],
    );
    worker(Role::Edge, &checked.edge, &spec.worker_spec, env, None)
}

fn cloud_worker(service: &JointInferenceService, checked: &Checked) -> Worker {
    let spec = &service.spec.cloud_worker;
    let port = match &checked.runtime {
        Runtime::Kubelet => SERVICE_PORT,
        Runtime::Agent { port, .. } => *port,
    };
    let env = environment(
        &spec.worker_spec.parameters,
        &checked.cloud.env,
        [
            ("NAMESPACE", checked.metadata.namespace.to_string()),
            ("SERVICE_NAME", checked.metadata.name.to_string()),
            ("WORKER_NAME", checked.cloud.name.to_string()),
            ("BIG_MODEL_BIND_IP", "0.0.0.0".to_owned()),
            ("BIG_MODEL_BIND_PORT", port.to_string()),
        ],
    );
    worker(Role::Cloud, &checked.cloud, &spec.worker_spec, env, Some(port))
}

fn worker(
    role: Role,
    half: &Half,
    spec: &neptune_api::WorkerSpec,
    env: BTreeMap<String, String>,
    port: Option<u16>,
) -> Worker {
    let dir = spec.script_dir.trim_end_matches('/').to_owned();
    let file = spec.script_boot_file.clone();
    let (args, scripts) = if half.command.is_empty() {
        (Some(file).filter(|file| !file.is_empty()).into_iter().collect(), None)
    } else {
        (vec![format!("{dir}/{file}")], Some(Scripts { dir, boot_file: file }))
    };
    Worker {
        name: half.name.clone(),
        role,
        image: half.image.clone(),
        command: half.command.clone(),
        args,
        env,
        scripts,
        model: model_name(&half.model),
        port,
        resources: half.limits.clone(),
    }
}
