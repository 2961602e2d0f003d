//! The plan of a valid service: task, models and dataset per agent node, and a Deployment with a
//! Service if the kubelet runs the cloud worker.

use std::{collections::BTreeSet, sync::Arc};

use neptune_api::JointInferenceService;
use neptune_wire::{NodeName, ObjectKey, ObjectName, Resource};

use crate::{
    dataset,
    fleet::{Generations, Retained},
    joint_inference_service::{
        cloud::{
            worker::{cloud_worker_address, planned_cloud_worker},
            workload::cloud_worker_objects,
        },
        edge::worker::planned_edge_worker,
        facts::SlicedNodes,
        gateway::{exposed::exposed, task::planned_gateway},
        node_contents::{ContentsOfNodes, PlannedWorker, Workers, model_key},
        resolved::{CloudRuntime, CloudSide, EdgeSide, ValidService},
        rollout::exempt,
        spec::placement::{awaits_listing, listed_nodes, placed_nodes},
        worker::task::object_name,
    },
    kubernetes::workloads::OwnedObjects,
    model::used_edge_model,
    steps::ObjectPlan,
};

/// The plan of a valid service. `fetch_image` downloads models in Pods.
pub fn plan(
    service: &JointInferenceService,
    valid: &ValidService,
    fetch_image: &str,
) -> ObjectPlan {
    let sliced = valid.sliced.as_ref();
    if awaits_listing(service, sliced, &valid.edge_nodes) {
        let has_status = service.status.as_ref().is_some_and(|it| it.observed_generation.is_some());
        // An earlier controller, which did not list the node first, may have published to it. Nodes
        // have nothing of a new service.
        let retained =
            if has_status { retained(service, sliced, &valid.key) } else { Retained::new() };
        return ObjectPlan {
            retained: Some(retained),
            awaits_status: true,
            ..ObjectPlan::default()
        };
    }
    if valid.rollout.as_ref().is_some_and(|rollout| !rollout.is_stored) {
        return awaits_rollout(service, valid);
    }
    let replan_after = valid.selection.as_ref().and_then(|selection| selection.replan_after);
    let mut plan =
        ObjectPlan { owned: owned(service, valid), replan_after, ..ObjectPlan::default() };
    let mut on_agent = None;
    if let (CloudSide::Worker(cloud), Some(spec)) =
        (&valid.cloud, &service.spec.cloud_worker.worker_spec)
    {
        let worker = planned_cloud_worker(cloud, spec, &valid.metadata);
        match &cloud.runtime {
            CloudRuntime::Agent { .. } => {
                let planned: PlannedWorker = (worker, Some(&*cloud.worker.model));
                on_agent = Some((&cloud.node, planned));
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
    let (cloud_node, cloud) = on_agent.unzip();
    let edge = edge_worker(service, valid);
    plan.generations = generations(valid, [Some(&edge), cloud.as_ref()]);
    let mut contents = ContentsOfNodes::new(service, valid, edge, cloud);
    let keys = Arc::new(own_keys(service, &valid.key));
    let listed = listed_nodes(service, sliced);
    let is_yielded = |node: &NodeName| match &valid.edge {
        EdgeSide::Gateway { gateway, .. } => gateway.taken_ports.contains_key(node),
        EdgeSide::Worker(_) => false,
    };
    let nodes = valid.edge_nodes.iter().filter(|node| listed.contains(node.as_str()));
    for node in nodes.filter(|node| !is_yielded(node)) {
        let is_cloud_node = cloud_node == Some(node);
        if valid.unmet.contains_key(node) || is_cloud_node && valid.unmet_cloud.is_some() {
            plan.kept.insert(node.clone(), Arc::clone(&keys));
            continue;
        }
        let workers = Workers { edge: true, cloud: is_cloud_node };
        let env = valid.node_values.get(node);
        plan.requirements.insert(node.clone(), contents.on(node, workers, env));
    }
    if let Some(node) = cloud_node.filter(|node| !plan.requirements.contains_key(node)) {
        if valid.unmet_cloud.is_some() {
            plan.kept.insert(node.clone(), keys);
        } else {
            let workers = Workers { edge: false, cloud: true };
            plan.requirements.insert(node.clone(), contents.on(node, workers, None));
            plan.kept.remove(node);
        }
    }
    plan.seals = contents.into_seals();
    plan.rollout = valid.rollout.as_ref().map(|rollout| {
        let nodes = &valid.edge_nodes;
        rollout.keep_back(nodes, exempt(valid), &mut plan.requirements, &mut plan.kept)
    });
    plan
}

/// The plan until the status has the revision: each node keeps what it has.
fn awaits_rollout(service: &JointInferenceService, valid: &ValidService) -> ObjectPlan {
    let mut retained = retained(service, valid.sliced.as_ref(), &valid.key);
    let keys = Arc::new(own_keys(service, &valid.key));
    retained.extend(valid.edge_nodes.iter().map(|node| (node.clone(), Arc::clone(&keys))));
    ObjectPlan { retained: Some(retained), awaits_status: true, ..ObjectPlan::default() }
}

/// The generations of the Models and the Dataset of these workers.
fn generations(valid: &ValidService, workers: [Option<&PlannedWorker>; 2]) -> Generations {
    let models = workers.into_iter().flatten().filter_map(|(_, model)| {
        let model = (*model)?;
        Some((model_key(model, valid), model.metadata.generation?))
    });
    let dataset = valid.dataset.as_deref().and_then(|dataset| {
        let name = object_name(&dataset.metadata);
        Some((dataset::object_key(&valid.key, name), dataset.metadata.generation?))
    });
    models.chain(dataset).collect()
}

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
pub fn retained(
    service: &JointInferenceService,
    sliced: Option<&SlicedNodes>,
    key: &ObjectKey,
) -> Retained {
    let (edge, cloud) = (&service.spec.edge_worker, &service.spec.cloud_worker);
    let nodes = placed_nodes(service).chain(edge.node_name.as_deref());
    let nodes = nodes.chain(cloud.node_name.as_deref()).map(str::parse::<NodeName>);
    let objects = Arc::new(own_keys(service, key));
    let of_slices = sliced.into_iter().flat_map(|sliced| &sliced.placed).cloned();
    nodes.flatten().chain(of_slices).map(|node| (node, Arc::clone(&objects))).collect()
}

/// The objects that a node may have for the service: its task, models and dataset.
fn own_keys(service: &JointInferenceService, key: &ObjectKey) -> BTreeSet<ObjectKey> {
    let (edge, cloud) = (&service.spec.edge_worker, &service.spec.cloud_worker);
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
    models.chain(dataset).chain([key.clone()]).collect()
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::{DatasetReference, Placement};
    use neptune_wire::Role;

    use super::*;
    use crate::joint_inference_service::{
        cases::{keys, plan_of, planned, task},
        facts::ServiceFacts,
        fixtures,
        resolved::PlacedService,
        validate::validate,
    };
    use crate::{nodes::offer::AgentOffer, reason::Reason, steps::Steps as _};

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
            retained(&service, None, &key).into_keys().map(|node| node.to_string()).collect();
        assert_eq!(retained, ["e1", "e2", "solar-corona-cloud"]);
    }

    #[test]
    fn nodes_of_slices_get_the_worker_once_a_stored_slice_names_them() {
        let (mut service, mut facts) = (fixtures::service(), fixtures::facts());
        fixtures::select(&mut service, &mut facts, &["e1", "e2"]);
        service.spec.edge_worker.placement = Some(Placement::All);
        let sliced = |members: &[&str], placed: &[&str]| {
            let names = |names: &[&str]| -> Vec<NodeName> {
                names.iter().map(|name| name.parse().unwrap()).collect()
            };
            Some(SlicedNodes {
                members: std::sync::Arc::new(names(members).into_iter().collect()),
                placed: names(placed),
            })
        };
        facts.sliced = sliced(&[], &["e1"]);
        assert!(planned(&service, &facts).requirements.is_empty());
        facts.sliced = sliced(&["e2", "e3"], &["e3"]);
        let plan = planned(&service, &facts);
        assert_eq!(
            plan.requirements.into_keys().map(|it| it.to_string()).collect::<Vec<_>>(),
            ["e2"]
        );
        let key: ObjectKey = "default/jointinferenceservices/s".parse().unwrap();
        let retained = retained(&service, facts.sliced.as_ref(), &key);
        let e3: NodeName = "e3".parse().unwrap();
        assert!(retained.contains_key(&e3), "it keeps what it has while the spec is invalid");
    }

    #[test]
    fn each_node_gets_its_values_and_a_node_without_a_label_keeps_what_it_has() {
        let (mut service, mut facts) = (fixtures::service(), fixtures::facts());
        fixtures::select(&mut service, &mut facts, &["e1", "e2", "e3"]);
        service.spec.edge_worker.placement = Some(Placement::All);
        service.status = Some(fixtures::placed_on(&["e1", "e2", "e3"]));
        let camera = serde_json::json!([
            {"name": "CAMERA", "value": "rtsp://$(NODE_NAME)/"},
            {"name": "LINE", "valueFrom": {"nodeLabel": "line"}},
            {"name": "ZONE", "valueFrom": {"nodeLabel": "zone", "optional": true}},
        ]);
        let program = service.spec.edge_worker.worker_spec.as_mut().unwrap();
        program.env = serde_json::from_value(camera).unwrap();
        for (at, line) in ["7", "8"].into_iter().enumerate() {
            let name = format!("e{}", at + 1);
            let labels = [("node-role.kubernetes.io/edge", ""), ("line", line)];
            facts.edge_selected.nodes[at] = fixtures::node(&name, &labels);
        }
        let plan = planned(&service, &facts);
        for (node, line) in [("e1", "7"), ("e2", "8")] {
            let env = task(&plan, node).workers.remove(0).program.env;
            assert_eq!((&*env["CAMERA"], &*env["LINE"]), (&*format!("rtsp://{node}/"), line));
            assert_eq!(env["SERVICE_NAME"], "helmet-detection-demo");
            assert_eq!((env["NMS_THRESHOLD"].as_str(), env.get("ZONE")), ("0.6", None));
        }
        let e3 = "e3".parse().unwrap();
        assert!(!plan.requirements.contains_key(&e3));
        let kept: Vec<_> = plan.kept[&e3].iter().map(ToString::to_string).collect();
        assert!(kept.contains(&"default/models/small-model".to_owned()), "{kept:?}");
        assert!(kept.contains(&"default/jointinferenceservices/helmet-detection-demo".to_owned()));
        assert_eq!(plan.kept.len(), 1);
    }

    #[test]
    fn node_that_does_not_offer_the_devices_keeps_what_it_has() {
        let (mut service, mut facts) = (fixtures::service(), fixtures::facts_with_agent());
        let names = ["e1", "e2", "e3", "e4"];
        fixtures::select(&mut service, &mut facts, &names);
        service.spec.edge_worker.placement = Some(Placement::All);
        service.status = Some(fixtures::placed_on(&names));
        let requests = |program: &mut neptune_api::WorkerSpec| {
            let resources = serde_json::json!({"limits": {"nvidia.com/gpu": 1}});
            program.resources = serde_json::from_value(resources).unwrap();
        };
        requests(service.spec.edge_worker.worker_spec.as_mut().unwrap());
        let gpu = serde_json::json!({"resource": "nvidia.com/gpu", "total": 1, "free": 0});
        for (name, supports, devices) in [
            ("e1", vec!["devices"], vec![gpu.clone()]),
            ("e2", vec!["devices"], vec![]),
            ("e3", vec![], vec![gpu]),
        ] {
            let report = serde_json::json!({
                "instance": "a", "epoch": 1, "online": true, "supports": supports,
                "devices": devices,
            });
            let offer = AgentOffer::from_report(&serde_json::from_value(report).unwrap());
            facts.offers.insert(name.parse().unwrap(), Arc::new(offer));
        }
        let planned_on = |service: &_, facts: &_| {
            let valid = validate(service, facts).unwrap();
            let plan = plan(service, &valid, "");
            let names = |nodes: Vec<&NodeName>| -> Vec<String> {
                nodes.into_iter().map(ToString::to_string).collect()
            };
            let required = names(plan.requirements.keys().collect());
            (required, names(plan.kept.keys().collect()), PlacedService::from(valid))
        };
        let (required, kept, placed) = planned_on(&service, &facts);
        assert_eq!(required, ["e1", "solar-corona-cloud"]);
        assert_eq!(kept, ["e2", "e3", "e4"]);
        let findings = placed.unmet.iter().filter_map(|(node, it)| it.finding(node, None));
        let reasons: Vec<_> = findings.map(|finding| finding.reason).collect();
        assert_eq!(reasons, [Reason::DeviceUnknown, Reason::AgentTooOld], "e4 reports first");
        assert_eq!(placed.unmet_cloud, None);
        let valid = validate(&service, &facts).unwrap();
        let warnings = service.node_warnings(&facts, &valid);
        assert!(warnings[0].starts_with("node e2 offers no nvidia.com/gpu"), "{warnings:?}");
        assert_eq!(warnings[1..], ["the agent of node e3 does not support devices; upgrade it"]);

        requests(service.spec.cloud_worker.worker_spec.as_mut().unwrap());
        let (required, kept, placed) = planned_on(&service, &facts);
        assert_eq!((required, placed.unmet_cloud), (vec!["e1".to_owned()], None));
        assert_eq!(kept, ["e2", "e3", "e4", "solar-corona-cloud"]);
    }

    #[test]
    fn one_node_is_chosen_by_its_devices_first() {
        let (mut service, mut facts) = (fixtures::service(), fixtures::facts());
        fixtures::select(&mut service, &mut facts, &["e1", "e2", "e3"]);
        let resources = serde_json::json!({"limits": {"nvidia.com/gpu": 1}});
        let program = service.spec.edge_worker.worker_spec.as_mut().unwrap();
        program.resources = serde_json::from_value(resources).unwrap();
        let offer = |devices: serde_json::Value| {
            let report = serde_json::json!({
                "instance": "a", "epoch": 1, "online": true, "supports": ["devices"],
                "devices": devices,
            });
            Arc::new(AgentOffer::from_report(&serde_json::from_value(report).unwrap()))
        };
        let gpu =
            |free| serde_json::json!([{"resource": "nvidia.com/gpu", "total": 1, "free": free}]);
        facts.edge_selected.online = ["e1".to_owned()].into();
        for (offers, chosen) in [
            (vec![], "e1"),
            (vec![("e1", offer(gpu(1)))], "e1"),
            (vec![("e1", offer(gpu(0))), ("e2", offer(gpu(1)))], "e2"),
            (vec![("e1", offer(serde_json::json!([]))), ("e3", offer(gpu(0)))], "e3"),
        ] {
            let offers = offers.into_iter().map(|(node, offer)| (node.parse().unwrap(), offer));
            facts.offers = offers.collect();
            let valid = validate(&service, &facts).unwrap();
            assert_eq!(valid.edge_nodes, [chosen.parse::<NodeName>().unwrap()]);
        }
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
        assert_eq!(worker.program.command, ["python3"]);
        assert_eq!(worker.program.args, ["/code/edge_inference.py"]);
        assert_eq!(worker.model.as_ref().unwrap().as_str(), "small-model");
        assert_eq!(worker.port, None);
        let env = |name: &str| worker.program.env[name].as_str();
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
            assert!(!worker.program.env.contains_key(of_the_agent), "{of_the_agent}");
        }
    }

    #[test]
    fn agent_runs_the_cloud_worker_on_the_address_of_its_node() {
        let plan = planned(&fixtures::service(), &fixtures::facts_with_agent());
        assert!(plan.objects.is_none());
        assert_eq!(keys(&plan, "solar-corona-cloud")[1..], ["default/models/big-model"]);
        let on_cloud = task(&plan, "solar-corona-cloud");
        let [cloud] = &on_cloud.workers[..] else { unreachable!() };
        assert_eq!((cloud.role, cloud.port), (Role::Cloud, Some(20_007)));
        assert_eq!(cloud.program.env["BIG_MODEL_BIND_PORT"], "20007");
        assert_eq!(cloud.program.env["BIG_MODEL_BIND_IP"], "0.0.0.0");
        let on_edge = task(&plan, "edge0");
        let [edge] = &on_edge.workers[..] else { unreachable!() };
        assert_eq!(edge.program.env["BIG_MODEL_URL"], "http://192.0.2.7:20007");
        assert_eq!(edge.program.env["BIG_MODEL_IP"], "192.0.2.7");
        assert_eq!(edge.program.env["BIG_MODEL_PORT"], "20007");
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
        assert_eq!(edge[&key].content(), dataset::content(&dataset, &key, &node));
        assert_eq!(task(&plan, "edge0").workers[0].dataset, Some(key.name.clone()));
        assert!(!keys(&plan, "solar-corona-cloud").contains(&key.to_string()));
        let service_key = "default/jointinferenceservices/helmet-detection-demo".parse().unwrap();
        let retained = retained(&service, None, &service_key);
        assert!(
            retained[&"edge0".parse().unwrap()].contains(&key),
            "retained after the dataset is deleted"
        );
    }

    #[test]
    fn plan_is_deterministic() {
        let hashes = || -> Vec<_> {
            let plan = planned(&fixtures::service(), &fixtures::facts_with_agent());
            plan.requirements
                .values()
                .flat_map(|contents| &**contents)
                .map(|(key, content)| (key.clone(), content.hash().clone()))
                .collect()
        };
        assert_eq!(hashes(), hashes());
    }
}
