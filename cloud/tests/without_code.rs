//! A `JointInferenceService` without code: the built controller creates the `InferenceModel` of
//! the edge and plans the gateway; the test is the agent.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use std::time::Duration;

use harness::{Agent, Harness, SERVICE, agent::worker};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Endpoints, Service},
};
use kube::{
    ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use neptune_api::{InferenceModel, JointInferenceService};
use neptune_wire::{GatewaySpec, ObjectKey, Role, Topic};
use serde_json::{Value, json};

const ASSISTANT: &str = include_str!("../../common/api/tests/samples/assistant.yaml");

fn assistant() -> JointInferenceService {
    serde_saphyr::from_str(ASSISTANT).unwrap()
}

fn key(text: &str) -> ObjectKey {
    text.parse().unwrap()
}

fn config(gateway: &GatewaySpec) -> Value {
    serde_json::to_value(&gateway.config).unwrap()
}

async fn patch(harness: &Harness, spec: Value) {
    let api = harness.api::<JointInferenceService>();
    let patch = Patch::Merge(json!({ "spec": spec }));
    api.patch("assistant", &PatchParams::default(), &patch).await.unwrap();
}

/// Waits until the last condition of the service has this reason, and returns its message.
async fn message(harness: &Harness, reason: &str) -> String {
    let last = |service: &JointInferenceService| {
        service.status.as_ref().and_then(|status| status.conditions.last().cloned())
    };
    let has_reason = |service: &JointInferenceService| {
        last(service).is_some_and(|last| last.reason.as_deref() == Some(reason))
    };
    let service = harness.until("assistant", reason, has_reason).await;
    last(&service).unwrap().message.unwrap()
}

/// Waits for a Service, and returns its name.
async fn exposed(harness: &Harness) -> String {
    let waiting = harness::within("the Service", async {
        loop {
            let services = harness.api::<Service>().list(&ListParams::default()).await;
            if let Some(service) = services.unwrap().items.pop() {
                break service;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    waiting.await.name_any()
}

#[tokio::test(flavor = "multi_thread")]
async fn manifest_without_code_creates_an_inference_model_and_a_gateway() {
    let harness = Harness::start().await;
    harness.node_address("edge0", "192.0.2.10").await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    let uid = harness.apply(assistant()).await.uid();
    let text = message(&harness, "ModelNotFound").await;
    assert!(text.contains("Model \"smollm2\" not found in namespace \"default\""), "{text}");

    harness.model("smollm2", "https://models.test/smollm2.gguf").await;
    let model =
        harness.until("assistant-edge", "the model server", |_: &InferenceModel| true).await;
    assert_eq!(model.owner_references()[0].uid, uid.unwrap());
    let port = model.spec.serving_port.unwrap();
    let service = key("default/jointinferenceservices/assistant");
    let task = agent.has(&service, "the gateway", |_| true).await;
    let gateway = worker(&task, Role::Edge).gateway.unwrap();
    assert_eq!(gateway.server.as_str(), "assistant-edge");
    let config = config(&gateway);
    assert_eq!(config["edge"]["address"], format!("127.0.0.1:{port}"));
    assert_eq!(config["cloud"]["url"], "https://llm.example/v1");
    let server = key("default/inferencemodels/assistant-edge");
    let serving = agent.has(&server, "the model server's task", |_| true).await.serving.unwrap();
    assert_eq!(serving.program.args[..2], ["--model", "{file}"]);
    assert_eq!(i32::from(serving.port), port);

    // Another file of the Model is another version of the server, and a change by a user is undone.
    harness.model("smollm2", "https://models.test/smollm2-q8.gguf").await;
    let version = |content: &neptune_wire::ObjectContent| {
        content.serving.as_ref().and_then(|serving| serving.model.clone()).unwrap()
    };
    let is_new = |content: &neptune_wire::ObjectContent| {
        version(content).url == "https://models.test/smollm2-q8.gguf"
    };
    let content = agent.has(&server, "the new version", is_new).await;
    assert_eq!(version(&content).version, "2");
    let change = Patch::Merge(json!({"spec": {"modelName": "other"}}));
    let models = harness.api::<InferenceModel>();
    models.patch("assistant-edge", &PatchParams::default(), &change).await.unwrap();
    let is_restored = |model: &InferenceModel| {
        model.spec.model_name == "smollm2" && model.metadata.generation.unwrap() > 3
    };
    harness.until("assistant-edge", "the undone change", is_restored).await;

    let api = harness.api::<JointInferenceService>();
    api.delete("assistant", &DeleteParams::background()).await.unwrap();
    agent.until("both tasks to be deleted", |replica| replica.objects().is_empty()).await;
    harness.until_gone::<InferenceModel>("assistant-edge").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn model_server_of_a_user_is_never_overwritten_and_an_unused_one_is_deleted() {
    let harness = Harness::start().await;
    harness.model("smollm2", "https://models.test/smollm2.gguf").await;
    let theirs: InferenceModel = serde_json::from_value(json!({
        "apiVersion": "sedna.io/v1alpha1", "kind": "InferenceModel",
        "metadata": {"name": "assistant-edge"},
        "spec": {"modelName": "theirs", "deployToLayer": "edge", "frameworkType": "llamacpp",
            "nodeName": "edge0", "servingPort": 9001, "targetVersion": "1",
            "manifest": [{"version": "1", "downloadURL": "https://models.test/theirs.gguf"}]},
    }))
    .unwrap();
    let models = harness.api::<InferenceModel>();
    models.create(&PostParams::default(), &theirs).await.unwrap();
    harness.apply(assistant()).await;
    let text = message(&harness, "NameTaken").await;
    assert!(
        text.contains("InferenceModel default/assistant-edge exists and has another owner"),
        "{text}"
    );
    assert_eq!(models.get("assistant-edge").await.unwrap().spec.model_name, "theirs");

    // The name is free now.
    models.delete("assistant-edge", &DeleteParams::background()).await.unwrap();
    let is_ours = |model: &InferenceModel| model.spec.model_name == "smollm2";
    harness.until("assistant-edge", "the service's own", is_ours).await;
    let mut named = theirs.clone();
    named.metadata.name = Some("mine".to_owned());
    models.create(&PostParams::default(), &named).await.unwrap();
    let edge = json!({"server": null, "model": null, "inferenceModel": {"name": "mine"}});
    patch(&harness, json!({ "edgeWorker": edge })).await;
    harness.until_gone::<InferenceModel>("assistant-edge").await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    let service = key("default/jointinferenceservices/assistant");
    let calls_mine = |content: &neptune_wire::ObjectContent| {
        let gateway = content.workers.first().and_then(|worker| worker.gateway.as_ref());
        gateway.is_some_and(|gateway| gateway.server.as_str() == "mine")
    };
    agent.has(&service, "a gateway in front of the user's server", calls_mine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exposed_gateway_has_a_service_until_it_is_not_exposed() {
    let harness = Harness::start().await;
    harness.node_address("edge0", "192.0.2.10").await;
    harness.model("smollm2", "https://models.test/smollm2.gguf").await;
    harness.apply(assistant()).await;
    harness.until("assistant-edge", "the model server", |_: &InferenceModel| true).await;
    let services = harness.api::<Service>().list(&ListParams::default()).await;
    assert!(services.unwrap().items.is_empty());
    patch(&harness, json!({"gateway": {"expose": true}})).await;
    let name = exposed(&harness).await;
    let endpoints = harness.until(&name, "the addresses", |_: &Endpoints| true).await;
    let subsets = serde_json::to_value(endpoints.subsets).unwrap();
    let address = json!([{"ip": "192.0.2.10", "nodeName": "edge0"}]);
    assert_eq!(subsets[0]["addresses"], address);
    let url = format!("http://{name}.default.svc.cluster.local:8080");
    let has_url = |service: &JointInferenceService| {
        let gateway = service.status.as_ref().and_then(|status| status.gateway.as_ref());
        gateway.is_some_and(|gateway| gateway.service_url.as_ref() == Some(&url))
    };
    harness.until("assistant", "the URL of the Service", has_url).await;
    patch(&harness, json!({"gateway": null})).await;
    harness.until_gone::<Service>(&name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn server_in_the_cloud_without_a_node_is_a_deployment_with_a_service() {
    let harness = Harness::start().await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    harness.model("smollm2", "https://models.test/smollm2.gguf").await;
    harness.model("big", "https://models.test/big.gguf").await;
    let mut service = assistant();
    let cloud = json!({"name": "cloud", "model": {"name": "big"},
        "server": {"frameworkType": "llamacpp", "args": ["--ctx-size=2048"]}});
    service.spec.cloud_worker = serde_json::from_value(cloud).unwrap();
    harness.apply(service).await;

    let model = harness.until("assistant-cloud", "the model server", |_: &InferenceModel| true);
    let deploy_to_layer = model.await.spec.deploy_to_layer;
    assert_eq!(deploy_to_layer, "cloud");
    let deployment = harness.deployment().await;
    let name = deployment.name_any();
    let pod = deployment.spec.unwrap().template.spec.unwrap();
    let server = &pod.containers[0];
    assert!(server.image.as_deref().unwrap().contains("llama.cpp"), "{server:?}");
    let args = server.args.as_ref().unwrap();
    assert_eq!(args.last().unwrap(), "--ctx-size=2048");
    let port = server.ports.as_ref().unwrap()[0].container_port;
    let ip = harness.cluster_ip(&name).await;

    // The gateway reaches it by the name of its Service, without DNS. A host entry of the container
    // would replace it when the address changes.
    let host = format!("{name}.default.svc.cluster.local");
    let has_host = |content: &neptune_wire::ObjectContent| {
        let is_it = |worker: &neptune_wire::Worker| {
            let config = worker.gateway.as_deref().map(config);
            worker.hosts.is_empty()
                && config.is_some_and(|it| it["cloud"]["addresses"][&host] == ip.to_string())
        };
        content.workers.first().is_some_and(is_it)
    };
    let service = key("default/jointinferenceservices/assistant");
    let task = agent.has(&service, "the host of the Service", has_host).await;
    let gateway = worker(&task, Role::Edge).gateway.unwrap();
    let config = config(&gateway);
    assert_eq!(config["cloud"]["url"], format!("http://{host}:{port}"));
    assert_eq!(config["cloud"]["modelName"], "big");

    harness.deployment_available(&name).await;
    let is_served = |model: &InferenceModel| {
        model.status.as_ref().is_some_and(|status| status.serving_version.as_deref() == Some("1"))
    };
    harness.until("assistant-cloud", "serving", is_served).await;
    let api = harness.api::<JointInferenceService>();
    api.delete("assistant", &DeleteParams::background()).await.unwrap();
    harness.until_gone::<InferenceModel>("assistant-cloud").await;
    harness.until_gone::<Deployment>(&name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn service_follows_a_model_server_whose_watch_event_is_late() {
    let harness = Harness::start().await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    harness.model("smollm2", "https://models.test/smollm2.gguf").await;
    harness.model("big", "https://models.test/big.gguf").await;
    let mut service = assistant();
    service.metadata.name = Some(SERVICE.to_owned());
    let cloud = json!({"name": "cloud", "model": {"name": "big"},
        "server": {"frameworkType": "llamacpp"}});
    service.spec.cloud_worker = serde_json::from_value(cloud).unwrap();
    harness.apply(service).await;
    let name = harness.deployment().await.name_any();
    let has_active = |active: i32| {
        move |service: &JointInferenceService| {
            service.status.as_ref().is_some_and(|status| status.active == Some(active))
        }
    };
    let task = agent.task().await;
    let gateway = json!({"cloud": "Reachable", "problems": []});
    let numbers = |samples: u64| {
        json!({"inferenceNumber": samples, "hardExampleNumber": 0, "uploadCloudRatio": 0,
            "startTime": "", "currentTime": ""})
    };
    agent.report_gateway(&task, &numbers(0), &gateway);
    harness.until(SERVICE, "the gateway alone", has_active(1)).await;

    // The status of the server is written and not in the controller's cache yet.
    harness.faulty_api.hold_watches(Some("/inferencemodels"));
    harness.deployment_available(&name).await;
    let is_served = |model: &InferenceModel| {
        model.status.as_ref().is_some_and(|status| status.ready_replicas == Some(1))
    };
    harness.until(&format!("{SERVICE}-cloud"), "serving", is_served).await;
    // The service was looked at with the old status.
    agent.report_gateway(&task, &numbers(7), &gateway);
    harness.status("the samples", |status| status.inference == 7).await;
    harness.faulty_api.hold_watches(None);
    let active = harness.until(SERVICE, "the active server", has_active(2));
    // Without the event the service would be looked at again when all nodes had time to report.
    tokio::time::timeout(Duration::from_secs(30), active).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn service_in_a_chain_follows_the_address_of_the_other_gateway() {
    let harness = Harness::start().await;
    harness.node("edge1", json!({"node-role.kubernetes.io/edge": ""})).await;
    harness.model("smollm2", "https://models.test/smollm2.gguf").await;
    let far = ASSISTANT.replace("name: assistant", "name: far").replace("edge0", "edge1");
    let mut far: JointInferenceService = serde_saphyr::from_str(&far).unwrap();
    far.spec.gateway = serde_json::from_value(json!({"port": 8081, "expose": true})).unwrap();
    harness.apply(far).await;
    let mut near = assistant();
    let cloud = json!({"name": "cloud", "service": {"name": "far"}});
    near.spec.cloud_worker = serde_json::from_value(cloud).unwrap();
    harness.apply(near).await;
    let text = message(&harness, "ServerAddressUnknown").await;
    assert!(text.contains("waiting for the address of the node of"), "{text}");

    // No kubelet runs on the node: its agent reports the address, later another one.
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    let other = Agent::connect(&harness, "edge1", "b", 1).await;
    for address in ["192.0.2.9", "192.0.2.10"] {
        let report = json!({"instance": "b", "epoch": 1, "online": true, "address": address});
        other.publish(&Topic::Node(other.node.clone()), report.to_string().into_bytes(), true);
        let url = format!("http://{address}:8081");
        let calls = |content: &neptune_wire::ObjectContent| {
            let gateway = content.workers.first().and_then(|worker| worker.gateway.as_ref());
            gateway.is_some_and(|gateway| config(gateway)["cloud"]["url"] == url)
        };
        agent.has(&key("default/jointinferenceservices/assistant"), address, calls).await;
        let has_url = |service: &JointInferenceService| {
            let gateway = service.status.as_ref().and_then(|status| status.gateway.as_ref());
            gateway.is_some_and(|gateway| gateway.url.as_ref() == Some(&url))
        };
        harness.until("far", "its URL", has_url).await;
        let has_address = |endpoints: &Endpoints| {
            let subsets = serde_json::to_value(&endpoints.subsets).unwrap();
            subsets[0]["addresses"] == json!([{"ip": address, "nodeName": "edge1"}])
        };
        let name = exposed(&harness).await;
        harness.until(&name, "the address of its Endpoints", has_address).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn service_in_a_chain_calls_the_service_of_the_other_gateway_if_chosen() {
    let harness = Harness::start().await;
    harness.node("edge1", json!({"node-role.kubernetes.io/edge": ""})).await;
    harness.model("smollm2", "https://models.test/smollm2.gguf").await;
    let mut near = assistant();
    let cloud = json!({"name": "cloud", "service": {"name": "far", "address": "Service"}});
    near.spec.cloud_worker = serde_json::from_value(cloud).unwrap();
    let far = ASSISTANT.replace("name: assistant", "name: far").replace("edge0", "edge1");
    let mut far: JointInferenceService = serde_saphyr::from_str(&far).unwrap();
    far.spec.gateway = serde_json::from_value(json!({"port": 8081, "expose": true})).unwrap();
    harness.apply(far).await;
    harness.apply(near).await;
    // Its node has no address yet, so that there is no Service.
    let text = message(&harness, "ServerAddressUnknown").await;
    assert!(text.contains("waiting for the Service of the gateway of"), "{text}");

    harness.node_address("edge1", "192.0.2.11").await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    let name = exposed(&harness).await;
    let host = format!("{name}.default.svc.cluster.local");
    let mut last = None;
    for _ in 0..2 {
        let before = last;
        let is_other = |service: &Service| {
            let ip = service.spec.as_ref().and_then(|spec| spec.cluster_ip.clone());
            ip.is_some() && ip != before
        };
        let service = harness.until(&name, "its address", is_other).await;
        let ip = service.spec.unwrap().cluster_ip.unwrap();
        let calls = |content: &neptune_wire::ObjectContent| {
            let gateway = content.workers.first().and_then(|worker| worker.gateway.as_ref());
            gateway.is_some_and(|gateway| {
                let cloud = &config(gateway)["cloud"];
                cloud["url"] == format!("http://{host}:8081") && cloud["addresses"][&host] == ip
            })
        };
        agent.has(&key("default/jointinferenceservices/assistant"), "the Service", calls).await;
        // Somebody deletes it: the new one has another address.
        let services = harness.api::<Service>();
        services.delete(&name, &DeleteParams::default()).await.unwrap();
        last = Some(ip);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn older_service_that_is_edited_to_the_port_of_a_younger_one_gets_it() {
    let mut harness = Harness::start().await;
    harness.model("smollm2", "https://models.test/smollm2.gguf").await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    let mut services = Vec::new();
    for (name, port) in [("one", 8080), ("two", 8081)] {
        let text = ASSISTANT.replace("name: assistant", &format!("name: {name}"));
        let mut service: JointInferenceService = serde_saphyr::from_str(&text).unwrap();
        service.spec.gateway = serde_json::from_value(json!({ "port": port })).unwrap();
        let service = harness.apply(service).await;
        services.push((service.creation_timestamp(), service.uid(), name, port));
    }
    services.sort();
    let [(_, _, older, own), (_, _, younger, contested)] = services[..] else { unreachable!() };
    let keys = [older, younger].map(|name| key(&format!("default/jointinferenceservices/{name}")));
    let listens = |port: i32| {
        move |content: &neptune_wire::ObjectContent| {
            let gateway = content.workers.first().and_then(|worker| worker.gateway.as_ref());
            gateway.is_some_and(|it| config(it)["listen"] == format!("127.0.0.1:{port}"))
        }
    };
    agent.has(&keys[0], "the older gateway", listens(own)).await;
    agent.has(&keys[1], "the younger gateway", listens(contested)).await;

    let api = harness.api::<JointInferenceService>();
    let edit = async |port: i32| {
        let patch = Patch::Merge(json!({"spec": {"gateway": {"port": port}}}));
        api.patch(older, &PatchParams::default(), &patch).await.unwrap();
    };
    edit(contested).await;
    agent.has(&keys[0], "the contested port", listens(contested)).await;
    let is_gone = |replica: &neptune_wire::Replica| !replica.objects().contains_key(&keys[1]);
    agent.until("the younger gateway to be removed", is_gone).await;
    let is_taken = |service: &JointInferenceService| {
        let conditions = service.status.iter().flat_map(|status| &status.conditions);
        let last = conditions.last().and_then(|last| last.message.clone()).unwrap_or_default();
        let taken = format!("spec.gateway.port {contested} is already used by");
        last.starts_with(&taken) && last.contains(&format!("default/{older}"))
    };
    harness.until(younger, "the reason", is_taken).await;

    // A restart of the controller changes nothing, and an edit back returns the port.
    harness.kill_controller();
    harness.start_controller();
    edit(own).await;
    agent.has(&keys[0], "the older gateway again", listens(own)).await;
    agent.has(&keys[1], "the younger gateway again", listens(contested)).await;
}
