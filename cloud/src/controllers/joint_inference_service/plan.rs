//! The plan of a valid service: task, models and dataset per agent node, and a Deployment with a
//! Service if the kubelet runs the cloud worker. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource as _;
use neptune_api::{EdgeWorker, JointInferenceService, Model, WorkerSpec};
use neptune_gateway_config::Document;
use neptune_wire::{
    ContainerRights, GatewaySpec, NodeName, ObjectContent, ObjectKey, ObjectMetadata, ObjectName,
    Resource, ResourceLimits, RestartPolicy, Role, Scripts, Worker, WorkerUpdateMode,
};
use serde::Serialize;

use crate::{
    controllers::{
        dataset,
        joint_inference_service::{
            exposed::exposed,
            gateway::ValidGateway,
            halves::cloud_worker_address,
            place::{awaits_listing, is_listed, placed_nodes},
            validate::{CloudRuntime, CloudSide, EdgeSide, ValidCloudWorker, ValidService},
            worker::ResolvedWorker,
            workload::cloud_worker_objects,
        },
        model::{self, used_edge_model},
        runtime::ObjectPlan,
    },
    fleet::{Generations, Retained},
    kubernetes::{nodes::in_url, pod_security::container_rights, workloads::OwnedObjects},
    worker::environment::{environment, json},
};

/// The port of a cloud worker behind a Service.
pub const SERVICE_PORT: u16 = 5000;

/// The gRPC port of a model server behind a Service.
pub const SERVICE_GRPC_PORT: u16 = 5001;

/// The configuration file of a gateway in its container.
const CONFIG_FILE: &str = "/etc/neptune-gateway/gateway.json";

/// The plan of a valid service. `fetch_image` downloads models in Pods.
pub fn plan(
    service: &JointInferenceService,
    valid: &ValidService,
    fetch_image: &str,
) -> ObjectPlan {
    if awaits_listing(service, &valid.edge_nodes) {
        let has_status = service.status.as_ref().is_some_and(|it| it.observed_generation.is_some());
        // An earlier controller, which did not list the node first, may have published to it. Nodes
        // have nothing of a new service.
        let retained = if has_status { retained(service, &valid.key) } else { Retained::new() };
        return ObjectPlan {
            retained: Some(retained),
            awaits_status: true,
            ..ObjectPlan::default()
        };
    }
    let mut tasks: BTreeMap<NodeName, Vec<PlannedWorker>> = BTreeMap::new();
    let edge = edge_worker(service, valid);
    for node in valid.edge_nodes.iter().filter(|node| is_listed(service, node)) {
        tasks.entry(node.clone()).or_default().push(edge.clone());
    }
    let replan_after = valid.selection.as_ref().and_then(|selection| selection.replan_after);
    let mut plan =
        ObjectPlan { owned: owned(service, valid), replan_after, ..ObjectPlan::default() };
    if let (CloudSide::Worker(cloud), Some(spec)) =
        (&valid.cloud, &service.spec.cloud_worker.worker_spec)
    {
        let worker = planned_cloud_worker(cloud, spec, &valid.metadata);
        match &cloud.runtime {
            CloudRuntime::Agent { .. } => {
                let planned = (worker, Some(&*cloud.worker.model));
                tasks.entry(cloud.node.clone()).or_default().push(planned);
            }
            CloudRuntime::Kubelet { reports, service: address, .. } => {
                let reports = reports.as_ref();
                let objects =
                    cloud_worker_objects(service, spec, cloud, &worker, reports, fetch_image);
                plan.objects = Some(objects);
                plan.awaits_service = address.is_none();
            }
        }
    }
    plan.generations = generations(valid, &tasks);
    plan.requirements = tasks
        .into_iter()
        .map(|(node, workers)| {
            let contents = contents(service, valid, &node, workers);
            (node, contents)
        })
        .collect();
    plan
}

/// The generations of the Models and the Dataset of these workers.
fn generations(
    valid: &ValidService,
    tasks: &BTreeMap<NodeName, Vec<PlannedWorker>>,
) -> Generations {
    let namespace = &valid.metadata.namespace;
    let models = tasks.values().flatten().filter_map(|(_, model)| {
        let model = (*model)?;
        let (namespace, name) = (namespace.clone(), object_name(&model.metadata));
        let key = ObjectKey { namespace, resource: Resource::Models, name };
        Some((key, model.metadata.generation?))
    });
    let dataset = valid.dataset.as_deref().and_then(|dataset| {
        let name = object_name(&dataset.metadata);
        Some((dataset::object_key(&valid.key, name), dataset.metadata.generation?))
    });
    models.chain(dataset).collect()
}

/// A worker, and the Model that its node needs for it.
type PlannedWorker<'a> = (Worker, Option<&'a Model>);

/// The `InferenceModels` of both sides, and the Service of an exposed gateway.
fn owned(service: &JointInferenceService, valid: &ValidService) -> OwnedObjects {
    let mut owned = OwnedObjects::default();
    if let EdgeSide::Gateway { gateway, owned: model } = &valid.edge {
        owned.models.extend(model.as_deref().cloned());
        owned.exposed = exposed(service, gateway);
    }
    if let CloudSide::Server { owned: Some(model) } = &valid.cloud {
        owned.models.push((**model).clone());
    }
    owned
}

/// The objects that nodes retain while the service is invalid: its task, models and dataset.
pub fn retained(service: &JointInferenceService, key: &ObjectKey) -> Retained {
    let (edge, cloud) = (&service.spec.edge_worker, &service.spec.cloud_worker);
    let nodes = placed_nodes(service).chain(edge.node_name.as_deref());
    let nodes = nodes.chain(cloud.node_name.as_deref()).map(str::parse::<NodeName>);
    let big = cloud.model.as_ref().map(|model| model.name.as_str());
    let models = used_edge_model(service).into_iter().chain(big);
    let models = models.filter_map(|name| name.parse::<ObjectName>().ok());
    let models = models.map(|name| ObjectKey {
        namespace: key.namespace.clone(),
        resource: Resource::Models,
        name,
    });
    let dataset = edge.dataset.as_ref().and_then(|dataset| dataset.name.parse().ok());
    let dataset = dataset.map(|name| dataset::object_key(key, name));
    let objects: BTreeSet<_> = models.chain(dataset).chain([key.clone()]).collect();
    nodes.flatten().map(|node| (node, objects.clone())).collect()
}

/// The task with the workers of one node, and their models and dataset.
fn contents(
    service: &JointInferenceService,
    valid: &ValidService,
    node: &NodeName,
    workers: Vec<PlannedWorker>,
) -> BTreeMap<ObjectKey, ObjectContent> {
    let models =
        workers.iter().filter_map(|(_, used)| Some(model_content((*used)?, &valid.metadata)));
    let mut contents: BTreeMap<_, _> = models.collect();
    let used: BTreeSet<_> =
        workers.iter().filter_map(|(worker, _)| worker.dataset.clone()).collect();
    if let Some(data) = valid.dataset.as_deref() {
        let keys = used.into_iter().map(|name| dataset::object_key(&valid.key, name));
        contents.extend(keys.map(|key| {
            let content = dataset::content(data, &key, node);
            (key, content)
        }));
    }
    let task = ObjectContent {
        api_version: JointInferenceService::api_version(&()).into_owned(),
        kind: JointInferenceService::kind(&()).into_owned(),
        metadata: valid.metadata.clone(),
        spec: value(&service.spec),
        model: None,
        dataset: None,
        workers: workers.into_iter().map(|(worker, _)| worker).collect(),
        serving: None,
        training: None,
        aggregator: None,
        peers: None,
    };
    contents.insert(valid.key.clone(), task);
    contents
}

fn model_content(model: &Model, service: &ObjectMetadata) -> (ObjectKey, ObjectContent) {
    let key = ObjectKey {
        namespace: service.namespace.clone(),
        resource: Resource::Models,
        name: object_name(&model.metadata),
    };
    let content = model::content(model, &key);
    (key, content)
}

/// The name of an object of the API server.
pub fn object_name(metadata: &ObjectMeta) -> ObjectName {
    let name = metadata.name.as_deref().unwrap_or_default();
    name.parse().expect("an API server names objects by RFC 1123")
}

fn value(spec: &impl Serialize) -> serde_json::Value {
    serde_json::to_value(spec).expect("a spec came from JSON")
}

fn edge_worker<'a>(service: &JointInferenceService, valid: &'a ValidService) -> PlannedWorker<'a> {
    let spec = &service.spec.edge_worker;
    match (&valid.edge, &valid.cloud, &spec.worker_spec) {
        (EdgeSide::Worker(resolved), CloudSide::Worker(cloud), Some(program)) => {
            let address = cloud_worker_address(cloud, valid.metadata.namespace.as_str());
            let worker = planned_edge_worker(valid, resolved, (spec, program), address);
            (worker, Some(&resolved.model))
        }
        (EdgeSide::Gateway { gateway, .. }, ..) => {
            (planned_gateway(gateway, &valid.metadata), None)
        }
        _ => unreachable!("validate accepts a worker only with a worker in the cloud"),
    }
}

/// The task of the edge worker, which calls the cloud worker at this address.
pub fn planned_edge_worker(
    valid: &ValidService,
    resolved: &ResolvedWorker,
    (spec, program): (&EdgeWorker, &WorkerSpec),
    (host, port, address): (String, u16, Option<IpAddr>),
) -> Worker {
    let hosts = address.map(|address| (host.clone(), address)).into_iter().collect();
    let url_host = in_url(&host);
    let algorithm = &spec.hard_example_algorithm;
    let env = environment(
        &program.parameters,
        &resolved.env,
        [
            ("NAMESPACE", valid.metadata.namespace.to_string()),
            ("SERVICE_NAME", valid.metadata.name.to_string()),
            ("WORKER_NAME", resolved.name.to_string()),
            ("HEM_NAME", algorithm.name.clone()),
            ("HEM_PARAMETERS", json(&algorithm.parameters)),
            ("BIG_MODEL_URL", format!("http://{url_host}:{port}")),
            ("BIG_MODEL_IP", host),
            ("BIG_MODEL_PORT", port.to_string()),
        ],
    );
    let dataset = valid.dataset.as_deref().map(|dataset| object_name(&dataset.metadata));
    Worker { dataset, hosts, ..planned_worker(Role::Edge, resolved, program, env, None) }
}

/// The gateway as a worker: its model server is the task of an `InferenceModel`.
pub fn planned_gateway(gateway: &ValidGateway, service: &ObjectMetadata) -> Worker {
    let addresses = [Some(gateway.config.listen), gateway.config.grpc_listen];
    let addresses: Vec<_> = addresses.iter().flatten().map(ToString::to_string).collect();
    let env = [
        ("NAMESPACE", service.namespace.to_string()),
        ("SERVICE_NAME", service.name.to_string()),
        ("WORKER_NAME", gateway.name.to_string()),
        // A gateway opens its ports when it starts: other addresses replace the container.
        ("GATEWAY_ADDRESSES", addresses.join(",")),
    ];
    Worker {
        name: gateway.name.clone(),
        role: Role::Edge,
        image: gateway.image.clone(),
        command: vec!["neptune-gateway".to_owned()],
        args: ["run", "--config", CONFIG_FILE].map(str::to_owned).into(),
        env: env.map(|(name, value)| (name.to_owned(), value)).into(),
        scripts: None,
        model: None,
        // It serves as long as it exists.
        restart_policy: Some(RestartPolicy::Always),
        model_update: WorkerUpdateMode::Restart,
        dataset: None,
        port: None,
        // The addresses of its cloud are in its configuration, which it reads again.
        hosts: BTreeMap::new(),
        resources: ResourceLimits::default(),
        rights: ContainerRights::default(),
        gateway: Some(Box::new(GatewaySpec {
            config: Document::from(&gateway.config),
            server: gateway.server.clone(),
            token_file: gateway.token_file.clone(),
            ca_file: gateway.ca_file.clone(),
            capture_dir: gateway.capture_dir.clone(),
        })),
    }
}

/// The task of the cloud worker.
pub fn planned_cloud_worker(
    cloud: &ValidCloudWorker,
    spec: &WorkerSpec,
    service: &ObjectMetadata,
) -> Worker {
    let port = match &cloud.runtime {
        CloudRuntime::Kubelet { .. } => SERVICE_PORT,
        CloudRuntime::Agent { port, .. } => *port,
    };
    let env = environment(
        &spec.parameters,
        &cloud.worker.env,
        [
            ("NAMESPACE", service.namespace.to_string()),
            ("SERVICE_NAME", service.name.to_string()),
            ("WORKER_NAME", cloud.worker.name.to_string()),
            ("BIG_MODEL_BIND_IP", "0.0.0.0".to_owned()),
            ("BIG_MODEL_BIND_PORT", port.to_string()),
        ],
    );
    planned_worker(Role::Cloud, &cloud.worker, spec, env, Some(port))
}

/// The task of a worker with these variables.
pub fn planned_worker(
    role: Role,
    resolved: &ResolvedWorker,
    spec: &WorkerSpec,
    env: BTreeMap<String, String>,
    port: Option<u16>,
) -> Worker {
    let dir = spec.script_dir.trim_end_matches('/').to_owned();
    let file = spec.script_boot_file.clone();
    let (args, scripts) = if resolved.command.is_empty() {
        (Some(file).filter(|file| !file.is_empty()).into_iter().collect(), None)
    } else {
        (vec![format!("{dir}/{file}")], Some(Scripts { dir, boot_file: file }))
    };
    Worker {
        name: resolved.name.clone(),
        role,
        image: resolved.image.clone(),
        command: resolved.command.clone(),
        args,
        env,
        scripts,
        model: Some(object_name(&resolved.model.metadata)),
        restart_policy: spec.restart_policy.map(|policy| match policy {
            neptune_api::RestartPolicy::Always => RestartPolicy::Always,
            neptune_api::RestartPolicy::OnFailure => RestartPolicy::OnFailure,
            neptune_api::RestartPolicy::Never => RestartPolicy::Never,
        }),
        model_update: match spec.model_update.unwrap_or_default() {
            neptune_api::ModelUpdate::Restart => WorkerUpdateMode::Restart,
            neptune_api::ModelUpdate::Reload => WorkerUpdateMode::Reload,
        },
        dataset: None,
        port,
        hosts: BTreeMap::new(),
        resources: resolved.limits.clone(),
        rights: container_rights(spec.security_context.as_ref()),
        gateway: None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use neptune_api::{
        DatasetReference, EnvironmentVariable, Gateway, KeyValue, ModelReference, ModelServer,
        Placement, SecretReference, SecurityContext, Transformer,
    };

    use super::*;
    use crate::{
        controllers::joint_inference_service::{
            fixtures,
            validate::{CloudService, ServiceFacts, validate},
        },
        kubernetes::{expansion::expanded, report_target::ReportTarget},
    };

    /// The plan once the status lists the named node.
    fn planned(service: &JointInferenceService, facts: &ServiceFacts) -> ObjectPlan {
        let mut service = service.clone();
        let named = service.spec.edge_worker.node_name.clone();
        service.status.get_or_insert_default().nodes.extend(named);
        plan_of(&service, facts)
    }

    fn plan_of(service: &JointInferenceService, facts: &ServiceFacts) -> ObjectPlan {
        plan(service, &validate(service, facts).unwrap(), "neptune-edge:test")
    }

    #[test]
    fn named_node_gets_the_worker_once_the_status_lists_it() {
        let (mut service, facts) = (fixtures::service(), fixtures::facts());
        let edge = service.spec.edge_worker.node_name.clone().unwrap();
        let new = plan_of(&service, &facts);
        assert!(new.awaits_status && new.requirements.is_empty() && new.objects.is_none());
        assert_eq!(new.retained, Some(Retained::new()), "nodes have nothing of it");

        service.status = Some(fixtures::placed_on(&["earlier"]));
        service.status.as_mut().unwrap().observed_generation = Some(1);
        let moved = plan_of(&service, &facts);
        assert!(moved.awaits_status && moved.requirements.is_empty());
        let retained: Vec<_> = moved.retained.unwrap().into_keys().collect();
        assert_eq!(retained.len(), 3, "both nodes and that of the cloud worker: {retained:?}");

        service.status.as_mut().unwrap().nodes.push(edge.clone());
        let listed = plan_of(&service, &facts);
        assert!(!listed.awaits_status && listed.retained.is_none() && listed.objects.is_some());
        assert_eq!(task(&listed, &edge).workers.len(), 1);
    }

    #[test]
    fn selected_nodes_get_the_worker_once_the_status_lists_them() {
        let (mut service, mut facts) = (fixtures::service(), fixtures::facts());
        fixtures::select(&mut service, &mut facts, &["e1", "e2"]);
        service.spec.edge_worker.placement = Some(Placement::All);
        let nodes = |service: &JointInferenceService| -> Vec<String> {
            let plan = planned(service, &facts);
            plan.requirements.keys().map(ToString::to_string).collect()
        };
        assert!(nodes(&service).is_empty());
        service.status = Some(fixtures::placed_on(&["e2", "e3"]));
        assert_eq!(nodes(&service), ["e2"]);
        service.status = Some(fixtures::placed_on(&["e1", "e2"]));
        assert_eq!(nodes(&service), ["e1", "e2"]);
        let plan = planned(&service, &facts);
        assert_eq!(task(&plan, "e1"), task(&plan, "e2"));
        let key: ObjectKey = "default/jointinferenceservices/s".parse().unwrap();
        let retained: Vec<_> =
            retained(&service, &key).into_keys().map(|node| node.to_string()).collect();
        assert_eq!(retained, ["e1", "e2", "solar-corona-cloud"]);
    }

    fn task<'a>(plan: &'a ObjectPlan, node: &str) -> &'a ObjectContent {
        let node: NodeName = node.parse().unwrap();
        let is_task = |key: &&ObjectKey| key.resource == Resource::JointInferenceServices;
        let key = plan.requirements[&node].keys().find(is_task).unwrap();
        &plan.requirements[&node][key]
    }

    fn keys(plan: &ObjectPlan, node: &str) -> Vec<String> {
        plan.requirements[&node.parse::<NodeName>().unwrap()]
            .keys()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn service_without_code_gets_a_gateway_and_an_inference_model() {
        let plan = planned(&fixtures::assistant(), &fixtures::assistant_facts());
        assert!(plan.objects.is_none() && plan.owned.exposed.is_none() && !plan.awaits_service);
        assert_eq!(keys(&plan, "edge0"), ["default/jointinferenceservices/assistant"]);
        let [worker] = &task(&plan, "edge0").workers[..] else { unreachable!("one worker") };
        assert_eq!((worker.role, &*worker.image), (Role::Edge, "neptune-edge:test"));
        assert_eq!(worker.command, ["neptune-gateway"]);
        assert_eq!(worker.args, ["run", "--config", "/etc/neptune-gateway/gateway.json"]);
        assert_eq!((&worker.model, worker.port), (&None, None));
        assert_eq!(worker.restart_policy, Some(RestartPolicy::Always));
        let gateway = worker.gateway.as_deref().unwrap();
        assert_eq!(gateway.server.as_str(), "assistant-edge");
        assert_eq!((gateway.token_file.as_deref(), &gateway.ca_file), (Some("llm"), &None));
        let config = serde_json::to_value(&gateway.config).unwrap();
        assert!(config["cloud"].get("tokenFile").is_none(), "the agent sets the path");
        let [model] = &plan.owned.models[..] else { unreachable!("one model") };
        let model = serde_json::to_value(model).unwrap();
        assert_eq!(model["metadata"]["name"], "assistant-edge");
        assert_eq!(model["metadata"]["ownerReferences"][0]["uid"], "uid-of-assistant");
        let port = model["spec"]["servingPort"].as_u64().unwrap();
        assert!((21_000..30_000).contains(&port), "{port}");
        assert_eq!(config["edge"]["address"], format!("127.0.0.1:{port}"));
        assert_eq!(
            model["spec"],
            serde_json::json!({
                "modelName": "smollm2", "deployToLayer": "edge", "frameworkType": "llamacpp",
                "nodeName": "edge0", "servingPort": port, "targetVersion": "1",
                "manifest": [{"version": "1", "downloadURL": "https://models.test/smollm2.gguf"}],
            })
        );
    }

    #[test]
    fn port_of_an_owned_server_is_kept_or_free() {
        let (service, mut facts) = (fixtures::assistant(), fixtures::assistant_facts());
        let port = |facts: &ServiceFacts| {
            planned(&service, facts).owned.models[0].spec.serving_port.unwrap()
        };
        let preferred = port(&facts);
        let used = |node: &str, port: i32, second| {
            fixtures::used_port(node, port.try_into().unwrap(), second)
        };
        facts.gateway.ports = vec![used("edge1", preferred, 5)];
        assert_eq!(port(&facts), preferred, "a port of another node is free");
        facts.gateway.ports.push(used("edge0", preferred, 5));
        assert_eq!(port(&facts), preferred + 1);
        let mut existing = planned(&service, &facts).owned.models.remove(0);
        existing.metadata.creation_timestamp = fixtures::second(7);
        existing.spec.serving_port = Some(22_222);
        facts.gateway.edge_server = Some(Arc::new(existing));
        assert_eq!(port(&facts), 22_222);
        facts.gateway.ports.push(used("edge0", 22_222, 8));
        assert_eq!(port(&facts), 22_222, "the younger object yields");
        facts.gateway.ports.push(used("edge0", 22_222, 6));
        assert_eq!(port(&facts), preferred + 1, "a cloud worker may have had the port before");
    }

    #[test]
    fn servers_of_a_service_on_one_node_have_four_ports() {
        let (mut service, mut facts) = fixtures::classifier();
        service.spec.edge_worker.node_name = Some("solar-corona-cloud".to_owned());
        let agent = fixtures::facts_with_agent();
        (facts.edge_node, facts.cloud_node) = (agent.cloud_node.clone(), agent.cloud_node);
        facts.cloud_model = Some(fixtures::model("big", "https://models.test/big.tar.gz"));
        let cloud = &mut service.spec.cloud_worker;
        cloud.endpoint = None;
        cloud.node_name = Some("solar-corona-cloud".to_owned());
        cloud.model = Some(ModelReference { name: "big".to_owned() });
        cloud.server = service.spec.edge_worker.server.clone();
        let plan = planned(&service, &facts);
        let ports: BTreeSet<_> =
            plan.owned.models.iter().flat_map(crate::worker::ports::model_ports).collect();
        assert_eq!(ports.len(), 4, "{ports:?}");
        assert!(ports.iter().all(|port| (21_000..30_000).contains(port)), "{ports:?}");
        let gateway = task(&plan, "solar-corona-cloud").workers[0].gateway.as_ref().unwrap();
        let config = serde_json::to_value(&gateway.config).unwrap();
        let [edge, cloud] = &plan.owned.models[..] else { unreachable!("two models") };
        let (edge, cloud) = (edge.spec.grpc_port.unwrap(), cloud.spec.grpc_port.unwrap());
        assert_eq!(config["edge"]["grpcAddress"], format!("127.0.0.1:{edge}"));
        assert_eq!(config["cloud"]["grpcUrl"], format!("http://192.0.2.7:{cloud}"));
        facts.gateway.edge_server = Some(Arc::new(plan.owned.models[0].clone()));
        facts.gateway.cloud_server = Some(Arc::new(plan.owned.models[1].clone()));
        assert_eq!(planned(&service, &facts).owned.models, plan.owned.models, "they are kept");
    }

    #[test]
    fn gateway_with_other_addresses_gets_another_container() {
        let (mut service, facts) = fixtures::classifier();
        let env = |service: &JointInferenceService| {
            task(&planned(service, &facts), "edge0").workers[0].env["GATEWAY_ADDRESSES"].clone()
        };
        assert_eq!(env(&service), "127.0.0.1:8080,127.0.0.1:8082");
        service.spec.gateway.as_mut().unwrap().expose = Some(true);
        assert_eq!(env(&service), "0.0.0.0:8080,0.0.0.0:8082");
    }

    #[test]
    fn owned_server_has_the_transformer_behind_the_gateway() {
        let (mut service, facts) = (fixtures::assistant(), fixtures::assistant_facts());
        let transformer = Transformer { image: Some("t:1".into()), ..Transformer::default() };
        let server = service.spec.edge_worker.server.as_mut().unwrap();
        server.transformer = Some(Box::new(transformer.clone()));
        let plan = planned(&service, &facts);
        let [model] = &plan.owned.models[..] else { unreachable!("one model") };
        assert_eq!(model.spec.transformer.as_deref(), Some(&transformer));
        let ports: Vec<u16> = crate::worker::ports::model_ports(model).collect();
        let [endpoint, behind, ..] = ports[..] else { unreachable!("two ports: {ports:?}") };
        assert_eq!(ports[2..], [behind + 1, behind + 2], "of the transformers");
        assert!((21_000..30_000).contains(&endpoint) && (12_000..20_000).contains(&behind));
        let content = serde_json::to_string(&plan.requirements).unwrap();
        assert!(
            content.contains(&format!("127.0.0.1:{endpoint}")),
            "the gateway asks it: {content}"
        );
    }

    #[test]
    fn servers_follow_the_placement_of_their_side() {
        let (mut service, mut facts) = (fixtures::assistant(), fixtures::assistant_facts());
        fixtures::select(&mut service, &mut facts, &["e1", "e2"]);
        service.spec.edge_worker.placement = Some(Placement::All);
        let cloud = &mut service.spec.cloud_worker;
        cloud.endpoint = None;
        cloud.model = Some(ModelReference { name: "big".to_owned() });
        cloud.server = Some(Box::new(ModelServer {
            args: vec!["--ctx-size".to_owned(), "2048".to_owned()],
            ..*service.spec.edge_worker.server.clone().unwrap()
        }));
        facts.cloud_model = Some(fixtures::model("big", "s3://models/big.gguf"));
        let specs = |service: &JointInferenceService, facts: &ServiceFacts| {
            let models = planned(service, facts).owned.models;
            let specs = models.iter().map(|model| serde_json::to_value(&model.spec).unwrap());
            specs.collect::<Vec<_>>()
        };
        let [edge, cloud] = &specs(&service, &facts)[..] else { unreachable!("two models") };
        assert_eq!(edge["nodeSelector"], serde_json::json!({"area": "north"}));
        assert_eq!((&edge["placement"], edge.get("nodeName")), (&"All".into(), None));
        assert_eq!(
            (&cloud["deployToLayer"], &cloud["servingPort"], &cloud["serviceType"]),
            (&"cloud".into(), &5000.into(), &"ClusterIP".into())
        );
        assert_eq!(cloud["server"], serde_json::json!({"args": ["--ctx-size", "2048"]}));
        assert_eq!(cloud.get("nodeName"), None, "the scheduler chooses");
        let agent = fixtures::facts_with_agent();
        service.spec.cloud_worker.node_name = Some("solar-corona-cloud".to_owned());
        facts.cloud_node = agent.cloud_node;
        let [edge, cloud] = &specs(&service, &facts)[..] else { unreachable!("two models") };
        assert_eq!(cloud["nodeName"], "solar-corona-cloud");
        assert!(cloud["servingPort"].as_u64().unwrap() >= 21_000, "a port of the node");
        assert_ne!(edge["servingPort"], cloud["servingPort"], "both may be on one node");
    }

    #[test]
    fn exposed_gateway_has_a_service_with_the_addresses_of_its_nodes() {
        let (mut service, facts) = (fixtures::assistant(), fixtures::assistant_facts());
        service.spec.gateway =
            Some(Box::new(Gateway { port: Some(8081), expose: Some(true), ..Gateway::default() }));
        let plan = planned(&service, &facts);
        let exposed = plan.owned.exposed.unwrap();
        let address = serde_json::to_value(&exposed.service).unwrap();
        assert_eq!(address["spec"].get("selector"), None);
        assert_eq!(address["spec"]["ports"][0]["port"], 8081);
        let endpoints = serde_json::to_value(&exposed.endpoints).unwrap();
        assert_eq!(endpoints["metadata"], address["metadata"]);
        assert_eq!(
            endpoints["subsets"],
            serde_json::json!([{
                "addresses": [{"ip": "192.0.2.10", "nodeName": "edge0"}],
                "ports": [{"name": "http", "port": 8081, "protocol": "TCP"}],
            }])
        );
        let (mut service, facts) = fixtures::classifier();
        service.spec.gateway.as_mut().unwrap().expose = Some(true);
        let exposed = planned(&service, &facts).owned.exposed.unwrap();
        let names = |ports: &serde_json::Value| -> Vec<String> {
            let ports = ports.as_array().unwrap().iter();
            ports.map(|port| format!("{} {}", port["name"], port["port"])).collect()
        };
        let expected = [r#""http" 8080"#, r#""grpc" 8082"#];
        let address = serde_json::to_value(&exposed.service).unwrap();
        let endpoints = serde_json::to_value(&exposed.endpoints).unwrap();
        assert_eq!(names(&address["spec"]["ports"]), expected);
        assert_eq!(names(&endpoints["subsets"][0]["ports"]), expected);
    }

    #[test]
    fn edge_node_gets_its_worker_and_its_model() {
        let service = fixtures::service();
        let plan = planned(&service, &fixtures::facts());
        assert_eq!(plan.requirements.len(), 1);
        assert_eq!(
            keys(&plan, "edge0"),
            ["default/jointinferenceservices/helmet-detection-demo", "default/models/small-model"]
        );
        let task = task(&plan, "edge0");
        assert_eq!(
            (&*task.api_version, &*task.kind),
            ("neptune.io/v1alpha1", "JointInferenceService")
        );
        assert_eq!(task.metadata.uid, "uid-of-the-service");
        assert_eq!(task.spec, serde_json::to_value(&service.spec).unwrap());
        let [worker] = &task.workers[..] else { unreachable!("one worker") };
        assert_eq!(worker.name.as_str(), "helmet-detection-demo-edgeworker-5607ae5e");
        assert_eq!(worker.command, ["python3"]);
        assert_eq!(worker.args, ["/code/edge_inference.py"]);
        assert_eq!(worker.model.as_ref().unwrap().as_str(), "small-model");
        assert_eq!(worker.port, None);
        let env = |name: &str| worker.env[name].as_str();
        assert_eq!(env("NAMESPACE"), "default");
        assert_eq!(env("SERVICE_NAME"), "helmet-detection-demo");
        assert_eq!(env("WORKER_NAME"), worker.name.as_str());
        assert_eq!(env("PARAMETERS"), r#"[{"key":"nms_threshold","value":"0.6"}]"#);
        assert_eq!(env("NMS_THRESHOLD"), "0.6");
        assert_eq!((env("HEM_NAME"), env("HEM_PARAMETERS")), ("IBT", "[]"));
        let host = "helmet-detection-demo-work-1a02631a.default.svc.cluster.local";
        assert_eq!(env("BIG_MODEL_URL"), format!("http://{host}:5000"));
        assert_eq!((env("BIG_MODEL_IP"), env("BIG_MODEL_PORT")), (host, "5000"));
        for of_the_agent in ["MODEL_URL", "MQTT_URL", "WORKER_INFO_TOPIC", "NODE_NAME"] {
            assert!(!worker.env.contains_key(of_the_agent), "{of_the_agent}");
        }
    }

    #[test]
    fn edge_worker_has_the_full_service_name_and_its_address() {
        let facts = ServiceFacts {
            service: Some(CloudService { cluster_ip: Some([10, 96, 0, 7].into()) }),
            cluster_domain: "fleet.example".to_owned(),
            ..fixtures::facts()
        };
        let plan = planned(&fixtures::service(), &facts);
        let worker = &task(&plan, "edge0").workers[0];
        let host = "helmet-detection-demo-work-1a02631a.default.svc.fleet.example";
        assert_eq!(worker.env["BIG_MODEL_URL"], format!("http://{host}:5000"));
        assert_eq!(worker.hosts, [(host.to_owned(), [10, 96, 0, 7].into())].into());
        assert!(!plan.awaits_service);
        let without = ServiceFacts { service: None, ..facts };
        assert!(planned(&fixtures::service(), &without).awaits_service, "its address is not known");
        let plan = planned(&fixtures::service(), &fixtures::facts_with_agent());
        assert!(!plan.awaits_service);
        for node in ["edge0", "solar-corona-cloud"] {
            assert!(task(&plan, node).workers[0].hosts.is_empty(), "an address needs no entry");
        }
    }

    #[test]
    fn kubelet_runs_the_cloud_worker_as_an_owned_deployment() {
        let service = fixtures::service();
        let objects = planned(&service, &fixtures::facts()).objects.unwrap();
        let deployment = serde_json::to_value(&objects.deployment).unwrap();
        let address = serde_json::to_value(&objects.service).unwrap();
        for object in [&deployment, &address] {
            assert_eq!(object["metadata"]["name"], "helmet-detection-demo-work-1a02631a");
            let owner = &object["metadata"]["ownerReferences"][0];
            assert_eq!(
                (&owner["uid"], &owner["controller"]),
                (&"uid-of-the-service".into(), &true.into())
            );
        }
        let template = &deployment["spec"]["template"];
        let selector = &deployment["spec"]["selector"]["matchLabels"];
        for (label, value) in selector.as_object().unwrap() {
            assert_eq!(&template["metadata"]["labels"][label], value);
        }
        assert_eq!(&address["spec"]["selector"], selector);
        assert_eq!(address["spec"]["ports"][0]["port"], 5000);
        let pod = &template["spec"];
        assert!(pod["nodeName"].is_null(), "the scheduler places the Pod");
        let required = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
        assert_eq!(
            pod.pointer(required).unwrap()["nodeSelectorTerms"],
            serde_json::json!([{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["solar-corona-cloud"]}]}])
        );
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(
            deployment["spec"]["strategy"],
            serde_json::json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
        );
        let worker = &pod["containers"][0];
        assert_eq!(
            worker["readinessProbe"],
            serde_json::json!({"tcpSocket": {"port": 5000}, "periodSeconds": 1}),
            "ready a second after it listens, however long it loads its model"
        );
        let env = |name: &str| {
            let variables = worker["env"].as_array().unwrap();
            variables.iter().find(|v| v["name"] == name).map(|v| v["value"].clone())
        };
        assert_eq!(env("MODEL_URL").unwrap(), "/models/big-model/big.pb");
        assert_eq!(env("BIG_MODEL_BIND_PORT").unwrap(), "5000");
        assert_eq!(env("NODE_NAME").unwrap(), "solar-corona-cloud");
        assert_eq!(env("HEM_NAME"), None);
        assert_eq!(worker["args"], serde_json::json!(["/code/cloud_inference.py"]));
        let fetch = &pod["initContainers"][0];
        assert_eq!(fetch["image"], "neptune-edge:test");
        assert_eq!(
            fetch["args"],
            serde_json::json!([
                "fetch",
                "--url",
                "https://models.test/big.pb?version=3",
                "--output",
                "/models/big-model/big.pb",
                "--give-up-after",
                "60",
                "--error-file",
                "/dev/termination-log"
            ])
        );
        assert!(mounts(worker).contains(&("/code", true)));
        assert!(mounts(worker).contains(&("/models/big-model", true)));
        assert_eq!(mounts(fetch), [("/models/big-model", false), ("/tmp", false)]);
        assert_eq!(worker["securityContext"]["readOnlyRootFilesystem"], true);
        assert!(pod["imagePullSecrets"].is_null() && fetch["env"].is_null());
    }

    fn pod_that_reports(model: &str) -> serde_json::Value {
        let key = "0123456789abcdef".parse().unwrap();
        let prefix = "fleet/a".parse().unwrap();
        let target = ReportTarget::new("http://reports:8082".to_owned(), prefix, key);
        let facts = ServiceFacts {
            reports: Some(target.access("default", "helmet-detection-demo", "uid")),
            cloud_model: Some(fixtures::model("big-model", model)),
            ..fixtures::facts()
        };
        let objects = planned(&fixtures::service(), &facts).objects.unwrap();
        let deployment = serde_json::to_value(&objects.deployment).unwrap();
        deployment["spec"]["template"]["spec"].clone()
    }

    fn variable<'a>(container: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
        let mut env = container["env"].as_array().unwrap().iter();
        env.find(|variable| variable["name"] == name)
            .map_or(&serde_json::Value::Null, |v| &v["value"])
    }

    #[test]
    fn worker_in_a_pod_has_the_variables_of_an_agents_worker() {
        let pod = pod_that_reports("https://models.test/big.pb");
        let (worker, sidecar) = (&pod["containers"][0], &pod["initContainers"][1]);
        let name = "helmet-detection-demo-work-1a02631a";
        let topic = format!("fleet/a/workers/{name}/info");
        assert_eq!(variable(worker, "WORKER_INFO_TOPIC"), &topic);
        let password = variable(sidecar, "NEPTUNE_WORKER_PASSWORD").as_str().unwrap();
        assert_eq!(password.len(), 64);
        let url = format!("mqtt://{name}:{password}@127.0.0.1:1884");
        assert_eq!(variable(worker, "MQTT_URL"), &url);
        assert_eq!(variable(sidecar, "NEPTUNE_LISTEN"), "127.0.0.1:1884");
        assert_eq!(variable(sidecar, "NEPTUNE_WORKER_NAME"), name);
        assert_eq!(variable(sidecar, "NEPTUNE_TOPIC_PREFIX"), "fleet/a");
        let report_url = variable(worker, "WORKER_REPORT_URL");
        assert!(report_url.as_str().unwrap().contains("/$(WORKER_POD_UID)/"), "{report_url}");
        assert!(!report_url.as_str().unwrap().contains(password), "another secret");
        assert_eq!(variable(sidecar, "NEPTUNE_REPORT_URL"), report_url);
        for container in [worker, sidecar] {
            let env = container["env"].as_array().unwrap();
            let place = |name: &str| env.iter().position(|variable| variable["name"] == name);
            let url = place("WORKER_REPORT_URL").or(place("NEPTUNE_REPORT_URL"));
            assert!(place("WORKER_POD_UID") < url, "the kubelet replaces earlier variables only");
        }
        let plain = planned(&fixtures::service(), &fixtures::facts()).objects.unwrap();
        let plain = serde_json::to_value(&plain.deployment).unwrap();
        let plain = &plain["spec"]["template"]["spec"];
        assert_eq!(variable(&plain["containers"][0], "MQTT_URL"), &serde_json::Value::Null);
        assert_eq!(plain["initContainers"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn parameters_arrive_on_a_node_and_in_a_pod_as_they_are() {
        let text = "a$$b $(NAMESPACE)";
        let mut service = fixtures::service();
        for worker in [
            service.spec.edge_worker.worker_spec.as_mut().unwrap(),
            service.spec.cloud_worker.worker_spec.as_mut().unwrap(),
        ] {
            worker.parameters = vec![KeyValue::new("text", text)];
            worker.script_boot_file = "$$(A).py".to_owned();
        }
        let plan = planned(&service, &fixtures::facts());
        let on_node = &task(&plan, "edge0").workers[0];
        assert_eq!((&*on_node.env["TEXT"], &*on_node.args[0]), (text, "/code/$$(A).py"));
        let pod = plan.objects.unwrap().deployment.spec.unwrap().template.spec.unwrap();
        let (_, args, env) = expanded(&pod.containers[0]);
        assert_eq!((&*env["TEXT"], &*args[0]), (text, "/code/$$(A).py"));
    }

    #[test]
    fn sidecar_is_restricted_and_runs_before_and_after_the_worker() {
        let pod = pod_that_reports("https://models.test/big.pb");
        let inits = pod["initContainers"].as_array().unwrap();
        let names: Vec<_> = inits.iter().map(|init| init["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["fetch-model", "report-sidecar"]);
        let (fetch, sidecar) = (&inits[0], &inits[1]);
        assert_eq!(sidecar["restartPolicy"], "Always", "a native sidecar");
        assert_eq!(sidecar["image"], fetch["image"]);
        assert_eq!(sidecar["securityContext"], fetch["securityContext"]);
        let command = sidecar["startupProbe"]["exec"]["command"].as_array().unwrap();
        assert_eq!(command, &["neptune-edge", "sidecar", "--check"]);
        assert_eq!(sidecar["resources"]["limits"], serde_json::json!({"memory": "64Mi"}));
        assert!(sidecar["readinessProbe"].is_null(), "the controller's outage stops no worker");
        let pod = pod_that_reports("/code/big.pb");
        assert_eq!(pod["initContainers"].as_array().unwrap().len(), 1, "no download");
    }

    #[test]
    fn secrets_and_security_context_reach_the_pod() {
        let mut service = fixtures::service();
        let worker = service.spec.cloud_worker.worker_spec.as_mut().unwrap();
        worker.image_pull_secrets = vec![SecretReference { name: "regcred".to_owned() }];
        worker.security_context =
            Some(SecurityContext { run_as_user: Some(1000), ..SecurityContext::default() });
        let mut model = fixtures::model("big-model", "s3://bucket/big.pb");
        std::sync::Arc::make_mut(&mut model).spec.credentials_secret =
            Some(SecretReference { name: "s3".to_owned() });
        let facts = ServiceFacts { cloud_model: Some(model), ..fixtures::facts() };
        let objects = planned(&service, &facts).objects.unwrap();
        let deployment = serde_json::to_value(&objects.deployment).unwrap();
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["imagePullSecrets"], serde_json::json!([{"name": "regcred"}]));
        assert_eq!(pod["securityContext"]["runAsUser"], 1000);
        let env = pod["initContainers"][0]["env"].as_array().unwrap();
        assert_eq!(
            env[0],
            serde_json::json!({"name": "AWS_ACCESS_KEY_ID",
            "valueFrom": {"secretKeyRef": {"name": "s3", "key": "AWS_ACCESS_KEY_ID"}}})
        );
        assert_eq!(env[2]["valueFrom"]["secretKeyRef"]["optional"], true);
        assert!(
            pod["containers"][0]["env"]
                .as_array()
                .unwrap()
                .iter()
                .all(|v| v["valueFrom"].is_null())
        );
    }

    #[test]
    fn pod_fetches_a_model_from_s3() {
        let facts = ServiceFacts {
            cloud_model: Some(fixtures::model("big-model", "s3://bucket/dir/big.pb")),
            ..fixtures::facts()
        };
        let objects = planned(&fixtures::service(), &facts).objects.unwrap();
        let deployment = serde_json::to_value(&objects.deployment).unwrap();
        let fetch = &deployment["spec"]["template"]["spec"]["initContainers"][0];
        let url = "s3://bucket/dir/big.pb";
        assert_eq!(fetch["args"].as_array().unwrap()[..3], ["fetch", "--url", url]);
    }

    fn mounts(container: &serde_json::Value) -> Vec<(&str, bool)> {
        let mounts = container["volumeMounts"].as_array().unwrap();
        mounts
            .iter()
            .map(|m| (m["mountPath"].as_str().unwrap(), m["readOnly"].as_bool().unwrap_or(false)))
            .collect()
    }

    #[test]
    fn model_on_the_node_is_mounted_from_its_path() {
        let facts = ServiceFacts {
            cloud_model: Some(fixtures::model("big-model", "file:///code/big.pb")),
            ..fixtures::facts()
        };
        let objects = planned(&fixtures::service(), &facts).objects.unwrap();
        let deployment = serde_json::to_value(&objects.deployment).unwrap();
        let pod = &deployment["spec"]["template"]["spec"];
        assert!(pod["initContainers"].is_null());
        assert_eq!(pod["volumes"][0]["hostPath"]["path"], "/code/big.pb");
        assert!(mounts(&pod["containers"][0]).contains(&("/models/big-model/big.pb", true)));
    }

    #[test]
    fn agent_runs_the_cloud_worker_on_the_address_of_its_node() {
        let plan = planned(&fixtures::service(), &fixtures::facts_with_agent());
        assert!(plan.objects.is_none());
        assert_eq!(keys(&plan, "solar-corona-cloud")[1..], ["default/models/big-model"]);
        let [cloud] = &task(&plan, "solar-corona-cloud").workers[..] else { unreachable!() };
        assert_eq!((cloud.role, cloud.port), (Role::Cloud, Some(20_007)));
        assert_eq!(cloud.env["BIG_MODEL_BIND_PORT"], "20007");
        assert_eq!(cloud.env["BIG_MODEL_BIND_IP"], "0.0.0.0");
        let [edge] = &task(&plan, "edge0").workers[..] else { unreachable!() };
        assert_eq!(edge.env["BIG_MODEL_URL"], "http://192.0.2.7:20007");
        assert_eq!(edge.env["BIG_MODEL_IP"], "192.0.2.7");
        assert_eq!(edge.env["BIG_MODEL_PORT"], "20007");
    }

    #[test]
    fn ipv6_address_has_brackets_only_in_the_url() {
        let mut facts = fixtures::facts_with_agent();
        std::sync::Arc::make_mut(facts.cloud_node.as_mut().unwrap()).status = None;
        facts.agent_address = Some("2001:db8::7".to_owned());
        let plan = planned(&fixtures::service(), &facts);
        let edge = &task(&plan, "edge0").workers[0];
        assert_eq!(edge.env["BIG_MODEL_URL"], "http://[2001:db8::7]:20007");
        assert_eq!(edge.env["BIG_MODEL_IP"], "2001:db8::7");
    }

    #[test]
    fn one_node_may_run_both_workers() {
        let mut service = fixtures::service();
        service.spec.edge_worker.node_name = Some("solar-corona-cloud".to_owned());
        let facts = fixtures::facts_with_agent();
        let facts = ServiceFacts { edge_node: facts.cloud_node.clone(), ..facts };
        let plan = planned(&service, &facts);
        assert_eq!(plan.requirements.len(), 1);
        let roles: Vec<_> =
            task(&plan, "solar-corona-cloud").workers.iter().map(|worker| worker.role).collect();
        assert_eq!(roles, [Role::Edge, Role::Cloud]);
        assert_eq!(keys(&plan, "solar-corona-cloud").len(), 3);
    }

    #[test]
    fn edge_worker_has_the_same_dataset_content_as_its_controller() {
        let mut service = fixtures::service();
        let name = "frames".to_owned();
        service.spec.edge_worker.dataset = Some(DatasetReference { name });
        let dataset = fixtures::dataset("frames", "edge0");
        let facts =
            ServiceFacts { edge_dataset: Some(dataset.clone()), ..fixtures::facts_with_agent() };
        let plan = planned(&service, &facts);
        let key: ObjectKey = "default/datasets/frames".parse().unwrap();
        let node = "edge0".parse::<NodeName>().unwrap();
        let edge = &plan.requirements[&node];
        assert_eq!(edge[&key], dataset::content(&dataset, &key, &node));
        assert_eq!(task(&plan, "edge0").workers[0].dataset, Some(key.name.clone()));
        assert!(!keys(&plan, "solar-corona-cloud").contains(&key.to_string()));
        let service_key = "default/jointinferenceservices/helmet-detection-demo".parse().unwrap();
        let retained = retained(&service, &service_key);
        assert!(
            retained[&"edge0".parse().unwrap()].contains(&key),
            "retained after the dataset is deleted"
        );
    }

    #[test]
    fn env_takes_precedence_over_parameters_of_a_container() {
        let mut service = fixtures::service();
        let worker = service.spec.edge_worker.worker_spec.as_mut().unwrap();
        worker.framework_type = "container".to_owned();
        worker.image = Some("digits:1".to_owned());
        worker.script_boot_file = "edge".to_owned();
        worker.parameters.push(KeyValue::new("level", "1"));
        worker.env = vec![EnvironmentVariable { name: "LEVEL".to_owned(), value: "2".to_owned() }];
        let plan = planned(&service, &fixtures::facts());
        let worker = &task(&plan, "edge0").workers[0];
        assert_eq!(
            (&*worker.image, &worker.command[..], &worker.args[..]),
            ("digits:1", &[][..], &["edge".to_owned()][..])
        );
        assert_eq!(worker.scripts, None);
        assert_eq!(worker.env["LEVEL"], "2");
    }

    #[test]
    fn plan_is_deterministic() {
        let hashes = || -> Vec<_> {
            let plan = planned(&fixtures::service(), &fixtures::facts_with_agent());
            plan.requirements
                .into_values()
                .flatten()
                .map(|(key, content)| (key, content.hash()))
                .collect()
        };
        assert_eq!(hashes(), hashes());
    }
}
