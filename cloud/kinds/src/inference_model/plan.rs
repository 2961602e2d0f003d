//! The plan of a valid model: a task for the agent of a node, or a Deployment with a Service.

use std::sync::Arc;

use neptune_api::InferenceModel;
use neptune_wire::ObjectKey;

use crate::{
    fleet::Retained,
    inference_model::{
        contents::ServerContents, place::Place, target::nodes_of, validate::ValidInferenceModel,
        workload,
    },
    steps::ObjectPlan,
};

/// The plan of a valid model. `fetch_image` downloads models in Pods.
pub fn plan(model: &InferenceModel, valid: &ValidInferenceModel, fetch_image: &str) -> ObjectPlan {
    if valid.rollout.as_ref().is_some_and(|rollout| !rollout.is_stored) && !valid.is_stopped {
        return awaits_rollout(model, valid);
    }
    match &valid.place {
        Place::Agent { .. } | Place::EachAgent { .. } if valid.is_stopped => ObjectPlan::default(),
        Place::Agent { .. } | Place::EachAgent { .. } => {
            let mut contents = ServerContents::new(model, valid);
            let nodes = valid.place.nodes();
            let with_port = nodes.iter().filter(|node| !valid.taken_ports.contains_key(*node));
            let (lacking, able): (Vec<_>, Vec<_>) =
                with_port.partition(|node| valid.unmet.contains_key(*node));
            let requirements =
                able.into_iter().map(|node| (node.clone(), contents.on(node))).collect();
            let keys = Arc::new([valid.key.clone()].into());
            let kept = lacking.into_iter().map(|node| (node.clone(), Arc::clone(&keys))).collect();
            let seals = contents.into_seals();
            let mut plan = ObjectPlan { requirements, seals, kept, ..ObjectPlan::default() };
            plan.rollout = valid.rollout.as_ref().map(|rollout| {
                rollout.keep_back(nodes, None, &mut plan.requirements, &mut plan.kept)
            });
            plan
        }
        Place::Cluster { .. } => {
            let objects = workload::objects(model, valid, fetch_image);
            ObjectPlan { objects: Some(objects), ..ObjectPlan::default() }
        }
    }
}

/// The plan until the status has the revision: each node keeps what it has.
fn awaits_rollout(model: &InferenceModel, valid: &ValidInferenceModel) -> ObjectPlan {
    let mut retained = retained(model, &valid.key);
    let keys = Arc::new([valid.key.clone()].into());
    let nodes = valid.place.nodes().iter();
    retained.extend(nodes.map(|node| (node.clone(), Arc::clone(&keys))));
    ObjectPlan { retained: Some(retained), awaits_status: true, ..ObjectPlan::default() }
}

/// The objects that nodes retain while the model is invalid.
pub fn retained(model: &InferenceModel, key: &ObjectKey) -> Retained {
    let before = model.status.iter().flat_map(nodes_of);
    let nodes = before.chain(model.spec.node_name.as_deref());
    let keys = Arc::new([key.clone()].into());
    nodes.filter_map(|node| node.parse().ok()).map(|node| (node, Arc::clone(&keys))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::{
        InferenceModelStatus, Placement, ServerCounts, ServerOverrides, ServingHealth,
    };
    use neptune_wire::{ModelServer, NodeName, ObjectContent, ServerUpdateMode};
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        inference_model::{
            fixtures,
            target::{HOLD_ANNOTATION, InferenceModelFacts},
            validate::validate,
        },
        kubernetes::expansion::expanded,
        nodes::offer::AgentOffer,
        reason::Reason,
        steps::Steps as _,
        worker::frameworks::Frameworks,
    };

    fn planned(model: &InferenceModel, facts: &InferenceModelFacts) -> ObjectPlan {
        plan(model, &validate(model, facts).unwrap(), "neptune-edge:test")
    }

    fn task(plan: &ObjectPlan) -> ObjectContent {
        let [(node, contents)] = &plan.requirements.iter().collect::<Vec<_>>()[..] else {
            unreachable!("one node")
        };
        assert_eq!(node.as_str(), "precision-5820");
        let [(key, content)] = &contents.iter().collect::<Vec<_>>()[..] else {
            unreachable!("one object")
        };
        assert_eq!(key.to_string(), "default/inferencemodels/facialexpression");
        content.content()
    }

    fn server(plan: &ObjectPlan) -> ModelServer {
        *task(plan).serving.unwrap()
    }

    #[test]
    fn edge_node_gets_the_framework_server_with_the_target_version() {
        let model = fixtures::model();
        let plan = planned(&model, &fixtures::facts());
        assert!(plan.objects.is_none());
        let task = task(&plan);
        assert_eq!((&*task.api_version, &*task.kind), ("sedna.io/v1alpha1", "InferenceModel"));
        assert_eq!(task.metadata.uid, "uid-of-the-model");
        assert_eq!(task.spec, serde_json::to_value(&model.spec).unwrap());
        assert!(task.workers.is_empty());
        let serving = task.serving.as_deref().unwrap();
        assert!(serving.name.as_str().starts_with("facialexpression-serving-"));
        assert_eq!(serving.program.command, ["tensorflow_model_server"]);
        assert_eq!(
            serving.program.args[2..],
            [
                "--rest_api_port=8501",
                "--model_name=facialexpression",
                "--model_base_path=/models/facialexpression"
            ]
        );
        assert_eq!(
            (serving.port, serving.reload, serving.hold),
            (8501, ServerUpdateMode::Watch, false)
        );
        let version = serving.model.as_ref().unwrap();
        assert_eq!((&*version.version, &*version.directory), ("4", "/models/facialexpression"));
        assert_eq!(version.url, "http://192.168.1.15/model_emotion_4.tar.gz");
        assert!(version.sha256.as_ref().unwrap().starts_with("108a43"));
        let path = serving.health.http_path.as_deref();
        assert_eq!(path, Some("/v1/models/facialexpression/versions/{version}/metadata"));
        let health = &serving.health;
        let times =
            (health.period_ms, health.timeout_ms, health.start_within_ms, health.probation_ms);
        assert_eq!(times, (1_000, 2_000, 120_000, 30_000));
        assert_eq!(serving.program.env["MODEL_NAME"], "facialexpression");
        assert_eq!(serving.program.env["SERVING_PORT"], "8501");
        for of_the_agent in ["MODEL_URL", "NODE_NAME"] {
            assert!(!serving.program.env.contains_key(of_the_agent), "{of_the_agent}");
        }
    }

    #[test]
    fn arguments_arrive_on_a_node_and_in_a_pod_as_they_are() {
        let args = ["$(SERVING_PORT)", "$$"];
        let plan_with_args = |mut model: InferenceModel| {
            model.spec.server = Some(ServerOverrides {
                args: args.map(str::to_owned).into(),
                ..Default::default()
            });
            planned(&model, &fixtures::facts())
        };
        let plan = plan_with_args(fixtures::model());
        assert!(server(&plan).program.args.ends_with(&args.map(str::to_owned)));
        let objects = plan_with_args(fixtures::cloud_model()).objects.unwrap();
        let pod = objects.deployment.spec.unwrap().template.spec.unwrap();
        assert!(expanded(&pod.containers[0]).1.ends_with(&args.map(str::to_owned)));
    }

    #[test]
    fn overrides_change_the_server_of_the_framework() {
        let mut model = fixtures::model();
        model.spec.server = serde_json::from_value(json!({
            "image": "mirror/serving:1", "args": ["--grpc_channel_arguments={port}"],
            "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}},
        }))
        .unwrap();
        let plan = planned(&model, &fixtures::facts());
        let serving = server(&plan);
        assert_eq!(serving.program.image, "mirror/serving:1");
        assert_eq!(serving.program.args.last().unwrap(), "--grpc_channel_arguments=8501");
        assert!(serving.program.args.len() > 1, "those of the framework stay");
        let resources = &serving.program.resources;
        assert_eq!((resources.cpu_millis, resources.memory_bytes), (Some(500), Some(1 << 30)));
    }

    #[test]
    fn server_with_a_port_for_grpc_gets_it_on_a_node_and_in_a_pod() {
        let mut model = fixtures::model();
        model.spec.framework_type = "triton".to_owned();
        let args = |model: &InferenceModel| {
            let plan = planned(model, &fixtures::facts());
            let serving = server(&plan);
            (serving.program.args.last().unwrap().clone(), serving.grpc_port)
        };
        assert_eq!(args(&model), ("--allow-metrics=false".to_owned(), None));
        model.spec.grpc_port = Some(8502);
        assert_eq!(args(&model), ("--grpc-port=8502".to_owned(), Some(8502)));
        let plan = planned(&model, &fixtures::facts());
        assert_eq!(server(&plan).program.env["SERVING_GRPC_PORT"], "8502");

        let mut model = InferenceModel { spec: model.spec.clone(), ..fixtures::cloud_model() };
        (model.spec.deploy_to_layer, model.spec.node_name) = ("cloud".to_owned(), None);
        model.spec.node_selector.clear();
        let objects = planned(&model, &fixtures::facts()).objects.unwrap();
        let deployment = serde_json::to_value(objects.deployment).unwrap();
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(
            container["ports"],
            json!([
                {"name": "http", "containerPort": 8501, "protocol": "TCP"},
                {"name": "grpc", "containerPort": 8502, "protocol": "TCP"},
            ])
        );
        let service = serde_json::to_value(objects.service).unwrap();
        assert_eq!(
            service["spec"]["ports"][1],
            json!({"name": "grpc", "port": 8502, "protocol": "TCP", "targetPort": 8502})
        );
    }

    #[test]
    fn transformer_takes_the_port_of_the_endpoint_on_a_node() {
        let plan = planned(&fixtures::with_transformer(fixtures::model()), &fixtures::facts());
        let serving = server(&plan);
        let bind = ["--rest_port=13501", "--rest_bind_address={host}"];
        for arg in bind {
            assert!(
                serving.program.args.contains(&arg.to_owned()),
                "{arg}: {:?}",
                serving.program.args
            );
        }
        assert_eq!((serving.port, serving.program.env["SERVING_PORT"].as_str()), (8501, "13501"));
        let transformer = serving.transformer.as_deref().unwrap();
        assert_eq!(
            (transformer.program.image.as_str(), transformer.server_port),
            ("resize:1", 13_501)
        );
        assert_eq!(transformer.program.resources.memory_bytes, Some(64 << 20));
        assert_eq!(transformer.program.env.get("SERVING_PORT"), None, "the agent sets it");
        let proxy = transformer.proxy.as_ref().unwrap();
        assert_eq!((proxy.image.as_str(), proxy.ports), ("neptune-edge:1", [13_502, 13_503]));
        assert!(transformer.program.args.contains(&"127.0.0.1:13501".to_owned()));
        let path = "/v2/models/facialexpression/ready";
        assert_eq!(transformer.health_path.as_deref(), Some(path));
    }

    #[test]
    fn transformer_is_before_the_server_in_a_pod() {
        let plan =
            planned(&fixtures::with_transformer(fixtures::cloud_model()), &fixtures::facts());
        let objects = plan.objects.unwrap();
        let deployment = serde_json::to_value(objects.deployment).unwrap();
        let [server, transformer] =
            &deployment["spec"]["template"]["spec"]["containers"].as_array().unwrap()[..]
        else {
            unreachable!("two containers")
        };
        assert_eq!(
            (&server["name"], &transformer["name"]),
            (&json!("server"), &json!("transformer"))
        );
        let port = |container: &Value| container["ports"][0]["containerPort"].clone();
        assert_eq!((port(server), port(transformer)), (json!(13_501), json!(8501)));
        assert_eq!(server["readinessProbe"]["httpGet"]["port"], 13_501);
        let probe = &transformer["readinessProbe"]["httpGet"];
        let path = "/v2/models/facialexpression/ready";
        assert_eq!((&probe["port"], &probe["path"]), (&json!(8501), &json!(path)));
        let args = server["args"].as_array().unwrap();
        assert!(args.contains(&json!("--rest_bind_address=0.0.0.0")), "probes reach it: {args:?}");
        let has_url = |container: &Value| {
            let env = container["env"].as_array().unwrap();
            env.contains(&json!({"name": "MODEL_URL", "value": "/models/facialexpression"}))
        };
        assert!(has_url(server) && has_url(transformer));
        let rights = |container: &Value| container["securityContext"].clone();
        assert_eq!(rights(server), rights(transformer));
        assert_eq!(transformer["resources"]["limits"]["memory"], "67108864");
        let service = serde_json::to_value(objects.service).unwrap();
        assert_eq!(
            service["spec"]["ports"],
            json!([{"name": "http", "port": 8501, "protocol": "TCP", "targetPort": 8501}])
        );
    }

    #[test]
    fn server_without_transformer_listens_on_every_address() {
        for framework in ["vllm", "openvino", "triton"] {
            let mut model = fixtures::model();
            model.spec.framework_type = framework.to_owned();
            let plan = planned(&model, &fixtures::facts());
            let args = server(&plan).program.args.join(" ");
            assert!(!args.contains("{host}") && !args.contains("bind_address"), "{args}");
            assert_eq!(args.contains("--host 0.0.0.0"), framework == "vllm", "{args}");
        }
    }

    #[test]
    fn server_of_one_file_gets_its_path_in_a_pod() {
        let mut model = fixtures::cloud_model();
        model.spec.framework_type = "llamacpp".to_owned();
        for file in &mut model.spec.manifest {
            file.download_url = Some("https://models.test/small.gguf".to_owned());
        }
        let objects = planned(&model, &fixtures::facts()).objects.unwrap();
        let deployment = serde_json::to_value(objects.deployment).unwrap();
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let args = container["args"].as_array().unwrap();
        assert_eq!(args[..2], [json!("--model"), json!("/models/facialexpression/4/small.gguf")]);
    }

    #[test]
    fn zero_replicas_stop_the_server_at_the_edge() {
        let mut model = fixtures::model();
        model.spec.replicas = Some(0);
        let plan = planned(&model, &fixtures::facts());
        assert!(plan.requirements.is_empty() && plan.objects.is_none());
        model.spec.replicas = Some(2);
        assert_eq!(planned(&model, &fixtures::facts()).requirements.len(), 1);
    }

    #[test]
    fn placement_all_plans_the_same_server_on_each_node_and_retains_them() {
        let mut model = fixtures::model();
        model.spec.node_name = None;
        model.spec.placement = Some(Placement::All);
        let nodes = ["e1", "e2"].map(fixtures::edge_node);
        let facts =
            InferenceModelFacts { selected: fixtures::selected(nodes.into()), ..fixtures::facts() };
        let plan = planned(&model, &facts);
        let nodes: Vec<_> = plan.requirements.keys().map(NodeName::as_str).collect();
        assert_eq!(nodes, ["e1", "e2"]);
        assert_eq!(plan.requirements.values().next(), plan.requirements.values().last());
        let servers = ["e1", "e3"].map(|node| {
            json!({"node": node, "transitionStatus": "Pending",
            "ready": "False", "reason": "", "message": ""})
        });
        model.status = Some(serde_json::from_value(json!({ "servers": servers })).unwrap());
        let key: ObjectKey = "default/inferencemodels/facialexpression".parse().unwrap();
        let retained: Vec<_> =
            retained(&model, &key).into_keys().map(|node| node.to_string()).collect();
        assert_eq!(retained, ["e1", "e3"]);
        model.spec.replicas = Some(0);
        assert!(planned(&model, &facts).requirements.is_empty());
    }

    #[test]
    fn nodes_of_many_retain_the_server_while_the_selector_matches() {
        let mut model = fixtures::model();
        (model.spec.node_name, model.spec.placement) = (None, Some(Placement::All));
        let nodes: Vec<_> = (0..40).map(|at| fixtures::edge_node(&format!("e{at:02}"))).collect();
        let facts =
            InferenceModelFacts { selected: fixtures::selected(nodes), ..fixtures::facts() };
        let key: ObjectKey = "default/inferencemodels/facialexpression".parse().unwrap();
        assert!(model.retained_by(&key, &facts).is_empty(), "nothing was published");
        let node_counts = Some(Box::new(ServerCounts { desired: 40, ..Default::default() }));
        model.status = Some(InferenceModelStatus { node_counts, ..Default::default() });
        let retained = model.retained_by(&key, &facts);
        assert_eq!(retained.len(), 40);
        assert!(retained.values().all(|keys| **keys == [key.clone()].into()));
    }

    #[test]
    fn node_with_a_taken_port_gets_no_server_and_the_others_do() {
        let mut model = fixtures::model();
        (model.spec.node_name, model.spec.placement) = (None, Some(Placement::All));
        let nodes = ["e1", "e2", "e3"].map(fixtures::edge_node);
        let mut facts =
            InferenceModelFacts { selected: fixtures::selected(nodes.into()), ..fixtures::facts() };
        let taken = |node: &str| fixtures::used_port(node, "b", 8501);
        facts.used_ports = vec![taken("e2"), taken("elsewhere")];
        let valid = validate(&model, &facts).unwrap();
        let plan = plan(&model, &valid, "neptune-edge:test");
        let nodes: Vec<_> = plan.requirements.keys().map(NodeName::as_str).collect();
        assert_eq!((nodes, plan.kept.len()), (vec!["e1", "e3"], 0));
        let [(node, finding)] = &valid.taken_ports.iter().collect::<Vec<_>>()[..] else {
            unreachable!("{:?}", valid.taken_ports)
        };
        assert_eq!((node.as_str(), finding.reason), ("e2", Reason::ServingPortTaken));
        let text = "spec.servingPort 8501 is already used by InferenceModel default/b on node e2";
        assert!(finding.message.starts_with(text), "{}", finding.message);
    }

    #[test]
    fn node_that_does_not_offer_the_devices_keeps_what_it_has() {
        let mut model = fixtures::model();
        model.spec.node_selector = [("area".to_owned(), "north".to_owned())].into();
        (model.spec.node_name, model.spec.placement) = (None, Some(Placement::All));
        let resources = json!({"resources": {"limits": {"a.example/b": 1}}});
        model.spec.server = serde_json::from_value(resources).unwrap();
        let nodes = ["e1", "e2"].map(fixtures::edge_node);
        let mut facts =
            InferenceModelFacts { selected: fixtures::selected(nodes.into()), ..fixtures::facts() };
        let report = json!({
            "instance": "a", "epoch": 1, "online": true, "supports": ["devices"],
            "devices": [{"resource": "a.example/b", "total": 1, "free": 1}],
        });
        let offer = AgentOffer::from_report(&serde_json::from_value(report).unwrap());
        facts.offers.insert("e1".parse().unwrap(), offer.into());
        let plan = planned(&model, &facts);
        let names = |nodes: Vec<&NodeName>| -> Vec<String> {
            nodes.into_iter().map(ToString::to_string).collect()
        };
        assert_eq!(names(plan.requirements.keys().collect()), ["e1"]);
        assert_eq!(names(plan.kept.keys().collect()), ["e2"], "until it reports");
        facts.offers.insert("e2".parse().unwrap(), AgentOffer::default().into());
        let valid = validate(&model, &facts).unwrap();
        let (node, unmet) = valid.unmet.first_key_value().unwrap();
        assert_eq!(unmet.finding(node, None).unwrap().reason, Reason::AgentTooOld);
    }

    #[test]
    fn health_table_and_annotation_reach_the_plan() {
        let mut model = fixtures::model();
        model.metadata.annotations = Some([(HOLD_ANNOTATION.to_owned(), "true".to_owned())].into());
        model.spec.framework_type = "mine".to_owned();
        model.spec.manifest[1].version = Some("v4".to_owned());
        model.spec.manifest[1].sha256sum = Some("aB".repeat(32));
        model.spec.target_version = Some("v4".to_owned());
        model.spec.health = Some(ServingHealth {
            period_seconds: Some(5),
            probation_seconds: Some(0),
            ..ServingHealth::default()
        });
        let table = "mine: {serving: {image: 'local/mine:1', args: ['{directory}/{version}'], healthPath: '/{modelName}/{version}'}}";
        let frameworks = Ok(std::sync::Arc::new(Frameworks::with(table).unwrap()));
        let facts = InferenceModelFacts { frameworks, ..fixtures::facts() };
        let plan = planned(&model, &facts);
        let serving = server(&plan);
        assert_eq!(
            (&*serving.program.image, serving.reload, serving.hold),
            ("local/mine:1", ServerUpdateMode::Replace, true)
        );
        assert_eq!(serving.program.args, ["/models/facialexpression/{version}"]);
        assert_eq!(serving.health.http_path.as_deref(), Some("/facialexpression/{version}"));
        assert_eq!((serving.health.period_ms, serving.health.probation_ms), (5_000, 0));
        let digest = serving.model.as_ref().unwrap().sha256.as_deref();
        assert_eq!(digest, Some(&*"ab".repeat(32)));
        model.spec.health.as_mut().unwrap().tcp = Some(true);
        let plan = planned(&model, &facts);
        assert_eq!(server(&plan).health.http_path, None);
    }

    #[test]
    fn image_gets_its_port_and_nothing_of_the_framework() {
        let mut model = fixtures::model();
        model.spec.image = Some("mine:1".to_owned());
        let plan = planned(&model, &fixtures::facts());
        let serving = server(&plan);
        assert_eq!(
            (&*serving.program.image, serving.program.command.len(), serving.program.args.len()),
            ("mine:1", 0, 0)
        );
        assert_eq!((&serving.model, &serving.health.http_path), (&None, &None));
        assert_eq!(serving.program.env["SERVING_PORT"], "8501");
    }

    fn objects(change: impl FnOnce(&mut InferenceModel)) -> (Value, Value) {
        let mut model = fixtures::cloud_model();
        change(&mut model);
        let plan = planned(&model, &fixtures::facts());
        assert!(plan.requirements.is_empty());
        let objects = plan.objects.unwrap();
        let value = |object: Result<Value, _>| object.unwrap();
        (
            value(serde_json::to_value(&objects.deployment)),
            value(serde_json::to_value(&objects.service)),
        )
    }

    #[test]
    fn cloud_server_is_an_owned_deployment_behind_a_node_port() {
        let (deployment, service) = objects(|model| model.spec.replicas = Some(3));
        for object in [&deployment, &service] {
            let owner = &object["metadata"]["ownerReferences"][0];
            assert_eq!(owner["uid"], "uid-of-the-model");
            assert_eq!(owner["kind"], "InferenceModel");
        }
        let spec = &deployment["spec"];
        assert_eq!(spec["replicas"], 3);
        assert_eq!(
            (&spec["minReadySeconds"], &spec["progressDeadlineSeconds"]),
            (&json!(30), &json!(750))
        );
        assert_eq!(spec["strategy"]["rollingUpdate"], json!({"maxSurge": 1, "maxUnavailable": 0}));
        let template = &spec["template"];
        let labels = &template["metadata"]["labels"];
        assert_eq!(labels["neptune.io/model-version"], "4");
        for (label, value) in spec["selector"]["matchLabels"].as_object().unwrap() {
            assert_eq!(&labels[label], value);
            assert_ne!(label, "neptune.io/model-version", "a selector is immutable");
        }
        assert_eq!(service["spec"]["selector"], spec["selector"]["matchLabels"]);
        assert_eq!(service["spec"]["type"], "NodePort");
        let port = &service["spec"]["ports"][0];
        assert_eq!((&port["port"], &port["targetPort"]), (&json!(8501), &json!(8501)));
        let pod = &template["spec"];
        assert!(pod["nodeName"].is_null() && pod["nodeSelector"].is_null());
        let required = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
        let avoided = &pod.pointer(required).unwrap()["nodeSelectorTerms"][0]["matchExpressions"];
        assert_eq!(
            avoided[0],
            json!({"key": "node-role.kubernetes.io/edge", "operator": "DoesNotExist"})
        );
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        let server = &pod["containers"][0];
        assert_eq!(server["livenessProbe"]["periodSeconds"], 10);
        assert_eq!(server["livenessProbe"]["httpGet"], server["readinessProbe"]["httpGet"]);
        assert_eq!(server["image"], "tensorflow/serving:2.18.0");
        let ready = &server["readinessProbe"]["httpGet"];
        assert_eq!(ready["path"], "/v1/models/facialexpression/versions/4/metadata");
        assert_eq!(server["startupProbe"]["failureThreshold"], 120);
        let fetch = &pod["initContainers"][0];
        assert_eq!(fetch["image"], "neptune-edge:test");
        assert_eq!(
            fetch["args"],
            json!([
                "fetch",
                "--url",
                "http://192.168.1.15/model_emotion_4.tar.gz",
                "--output",
                "/models/facialexpression/4",
                "--sha256",
                "108a433a941411217e5d4bf9f43a262d0247a14c35ccbf677f63ba3b46ae6285",
                "--give-up-after",
                "60",
                "--error-file",
                "/dev/termination-log"
            ])
        );
        let mounts = |container: &Value| {
            let mount = container["volumeMounts"][0].clone();
            (mount["mountPath"].clone(), mount["readOnly"].as_bool().unwrap_or_default())
        };
        assert_eq!(mounts(server), (json!("/models/facialexpression"), true));
        assert_eq!(mounts(fetch), (json!("/models/facialexpression"), false));
        assert_eq!(pod["volumes"][0]["emptyDir"], json!({}));
    }

    #[test]
    fn place_service_type_and_archive_reach_the_plan() {
        let (deployment, service) = objects(|model| {
            model.spec.node_selector = [("gpu".to_owned(), "yes".to_owned())].into();
            model.spec.service_type = Some("LoadBalancer".to_owned());
            model.spec.replicas = Some(0);
            model.spec.manifest[1].download_url = Some("s3://bucket/dir/m.ONNX".to_owned());
        });
        assert_eq!(deployment["spec"]["replicas"], 0);
        assert_eq!(deployment["spec"]["template"]["spec"]["nodeSelector"], json!({"gpu": "yes"}));
        assert_eq!(service["spec"]["type"], "LoadBalancer");
        let fetch = &deployment["spec"]["template"]["spec"]["initContainers"][0];
        assert_eq!(
            fetch["args"][4], "/models/facialexpression/4/m.ONNX",
            "a file is put into the version's directory"
        );
        let (deployment, _) = objects(|model| model.spec.image = Some("mine:1".to_owned()));
        let pod = &deployment["spec"]["template"]["spec"];
        assert!(pod["initContainers"].is_null());
        assert_eq!(pod["volumes"], json!([{"name": "tmp", "emptyDir": {}}]));
        assert_eq!(pod["containers"][0]["readinessProbe"]["tcpSocket"]["port"], 8501);
        assert!(pod["containers"][0]["args"].is_null());
    }

    #[test]
    fn retained_nodes_are_the_last_and_the_named_one() {
        let mut model = fixtures::model();
        let key: ObjectKey = "default/inferencemodels/facialexpression".parse().unwrap();
        let node = Some("e1".to_owned());
        model.status = Some(InferenceModelStatus { node, ..InferenceModelStatus::default() });
        let nodes: Vec<_> =
            retained(&model, &key).into_keys().map(|node| node.to_string()).collect();
        assert_eq!(nodes, ["e1", "precision-5820"]);
        assert!(retained(&fixtures::cloud_model(), &key).is_empty());
    }
}
