//! A `JointInferenceService` from `kubectl apply` to its end: the built controller against an API
//! server and a broker, with the test as the agents.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one future and waits on its own.
#![allow(clippy::large_futures)]

mod bed;

use bed::{
    Agent, Bed, SERVICE,
    agent::{key, worker},
    soon,
};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use kube::{ResourceExt as _, api::PostParams};
use neptune_wire::{Role, Topic, WorkerReason, WorkerState, replica::ReplicaChange};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_service_heals_runs_counts_and_goes() {
    let bed = Bed::start().await;
    let mut agent = Agent::connect(&bed, "edge0", "a", 1).await;
    bed.apply_sample().await;
    let status = bed.status("models are missed", |s| s.is("Pending", "ModelNotFound")).await;
    assert!(
        status.message.contains("\"small-model\" not found in namespace \"default\""),
        "{status:?}"
    );
    assert_eq!((status.active, status.failed, status.observed), (0, 0, Some(1)));

    bed.models().await;
    let task = agent.task().await;
    let edge = worker(&task, Role::Edge);
    assert_eq!(task.workers.len(), 1, "the cloud worker is the kubelet's");
    assert_eq!(edge.args, ["/code/edge_inference.py"]);
    let deployment = bed.deployment().await;
    let name = deployment.name_any();
    assert_eq!(edge.env["BIG_MODEL_URL"], format!("http://{name}.default.svc:5000"));
    bed.status("the agent is awaited", |s| s.is("Pending", "AwaitingAgent")).await;

    agent.report_running(&task, Some((8, 2)));
    bed.status("the Pod is awaited", |s| s.is("Pending", "CloudWorkerStarting") && s.active == 1)
        .await;
    bed.deployment_available(&name).await;
    let status = bed.status("both run", |s| s.is("Running", "WorkersRunning")).await;
    assert_eq!((status.active, status.failed), (2, 0));
    assert_eq!((status.inference, status.hard, &*status.ratio), (8, 2, "0.25"));
    agent.report_running(&task, Some((9, 3)));
    let status = bed.status("counters rise", |s| s.inference == 9).await;
    assert_eq!(status.ratio, "0.3333");
    for reason in ["ModelNotFound", "CloudWorkerCreated", "EdgeTaskPublished", "Running"] {
        bed.event(reason).await;
    }

    bed.delete().await;
    agent.until("the task is gone", |replica| replica.objects().is_empty()).await;
    bed.until_gone::<Deployment>(&name).await;
    bed.until_gone::<Service>(&name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn totals_and_workers_survive_a_killed_controller_and_a_replaced_node() {
    let mut bed = Bed::start().await;
    bed.models().await;
    bed.apply_sample().await;
    let mut agent = Agent::connect(&bed, "edge0", "a", 1).await;
    let task = agent.task().await;
    agent.report_running(&task, Some((100, 10)));
    let name = bed.deployment().await.name_any();
    bed.deployment_available(&name).await;
    bed.status("it counts", |s| s.inference == 100 && s.type_ == "Running").await;
    agent.until("it has all", neptune_wire::Replica::is_complete).await;

    bed.kill_controller();
    agent.changes.clear();
    let index = agent.replica.index().revision;
    agent.report_running(&task, Some((150, 15)));
    agent.flushed().await;
    bed.start_controller();
    let status = bed.status("what came meanwhile counts", |s| s.inference >= 150).await;
    assert_eq!((status.inference, status.hard, &*status.type_), (150, 15, "Running"));
    agent.until("the new controller spoke", |replica| replica.index().revision > index).await;
    let touched = agent
        .changes
        .iter()
        .any(|c| matches!(c, ReplicaChange::Set(_) | ReplicaChange::Removed(_)));
    assert!(!touched, "a restart of the controller changed {:?}", agent.changes);

    // Late and doubled words, of a start that is over.
    agent.seq = 0;
    agent.report_running(&task, Some((100, 10)));
    agent.flushed().await;
    agent.vanish();
    let mut agent = Agent::connect(&bed, "edge0", "b", 1).await;
    let task = agent.task().await;
    agent.report_running(&task, Some((7, 1)));
    let status = bed.status("the new node adds", |s| s.inference != 150).await;
    assert_eq!((status.inference, status.hard), (157, 16));
    bed.event("NodeReplaced").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cloud_node_with_an_agent_runs_the_worker_and_a_label_switches_over() {
    let bed = Bed::start().await;
    bed.models().await;
    bed.apply_sample().await;
    let behind_service = bed.deployment().await.name_any();
    bed.node("solar-corona-cloud", json!({"neptune.io/runtime": "agent"})).await;
    bed.status("no address yet", |s| s.is("Pending", "CloudAddressUnknown")).await;
    bed.node_address("solar-corona-cloud", "192.0.2.7").await;

    let mut cloud = Agent::connect(&bed, "solar-corona-cloud", "c", 1).await;
    let mut edge = Agent::connect(&bed, "edge0", "e", 1).await;
    let cloud_task = cloud.task().await;
    let cloud_worker = worker(&cloud_task, Role::Cloud);
    assert_eq!(cloud_task.workers.len(), 1);
    let port = cloud_worker.port.unwrap();
    assert!((20_000..30_000).contains(&port));
    assert_eq!(cloud_worker.env["BIG_MODEL_BIND_PORT"], port.to_string());
    let url = format!("http://192.0.2.7:{port}");
    edge.until("the edge knows where", |replica| {
        let held = replica.objects().get(&key());
        held.is_some_and(|held| worker(&held.content, Role::Edge).env["BIG_MODEL_URL"] == url)
    })
    .await;
    for agent in [&mut edge, &mut cloud] {
        agent.until("task and model", |replica| replica.objects().len() == 2).await;
    }
    assert_eq!(models(&edge), ["small-model"]);
    assert_eq!(models(&cloud), ["big-model"]);
    bed.until_gone::<Deployment>(&behind_service).await;
    bed.until_gone::<Service>(&behind_service).await;

    let edge_task = edge.task().await;
    edge.report_running(&edge_task, Some((5, 1)));
    cloud.report_running(&cloud_task, None);
    let status = bed.status("both agents report", |s| s.type_ == "Running").await;
    assert_eq!((status.active, status.inference), (2, 5), "the cloud worker counts nothing");

    bed.node("solar-corona-cloud", json!({})).await;
    cloud.until("the kubelet took over", |replica| replica.objects().is_empty()).await;
    assert_eq!(bed.deployment().await.name_any(), behind_service);
}

fn models(agent: &Agent) -> Vec<String> {
    let keys = agent.replica.objects().keys();
    keys.filter(|key| key.resource == neptune_wire::Resource::Models)
        .map(|key| key.name.to_string())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_vanishes_is_seen_and_its_counters_stay() {
    let bed = Bed::start().await;
    bed.models().await;
    bed.apply_sample().await;
    let name = bed.deployment().await.name_any();
    bed.deployment_available(&name).await;
    let mut agent = Agent::connect(&bed, "edge0", "a", 1).await;
    let task = agent.task().await;
    agent.report_running(&task, Some((40, 4)));
    bed.status("it runs", |s| s.type_ == "Running" && s.inference == 40).await;

    let replica = agent.vanish();
    let status = bed.status("it is missed", |s| s.is("Pending", "NodeOffline")).await;
    assert_eq!((status.active, status.failed, status.inference), (1, 0, 40));
    assert!(status.message.contains("node edge0 is not connected, last heard 20"), "{status:?}");
    bed.event("NodeOffline").await;

    let mut agent = Agent::with(&bed, "edge0", "a", 2, replica).await;
    agent.report_running(&task, Some((41, 4)));
    bed.status("it is back", |s| s.type_ == "Running" && s.inference == 41).await;
    bed.event("NodeOnline").await;
    agent.report(&task, WorkerState::Failed, Some(WorkerReason::ImageMissing), Some((41, 4)));
    let status = bed.status("it fails", |s| s.is("Failed", "ImageMissing")).await;
    assert_eq!((status.active, status.failed), (1, 1));
    agent.report_running(&task, Some((42, 4)));
    bed.status("failed is not for ever", |s| s.type_ == "Running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_reaches_the_edge_and_a_move_leaves_the_old_node() {
    let bed = Bed::start().await;
    bed.models().await;
    bed.node("edge1", json!({"node-role.kubernetes.io/edge": ""})).await;
    bed.apply_sample().await;
    let mut edge0 = Agent::connect(&bed, "edge0", "a", 1).await;
    let mut edge1 = Agent::connect(&bed, "edge1", "b", 1).await;
    edge0.task().await;

    bed.patch(json!({"edgeWorker": {"hardExampleAlgorithm": {"name": "Random"}}})).await;
    edge0
        .until("the algorithm", |replica| {
            let held = replica.objects().get(&key());
            held.is_some_and(|held| worker(&held.content, Role::Edge).env["HEM_NAME"] == "Random")
        })
        .await;
    bed.model("small-model", "/model/smaller.pb").await;
    let model = "default/models/small-model".parse().unwrap();
    edge0
        .until("the model", |replica| {
            replica.objects()[&model].content.spec["modelUrl"] == "/model/smaller.pb"
        })
        .await;
    bed.patch(json!({"edgeWorker": {"nodeName": "edge1"}})).await;
    edge1.task().await;
    edge0.until("it is gone here", |replica| replica.objects().is_empty()).await;

    // What cannot work stops nothing that runs.
    bed.patch(json!({"edgeWorker": {"workerSpec": {"frameworkType": "tensorfow"}}})).await;
    let status = bed.status("the typing error", |s| s.is("Failed", "FrameworkUnknown")).await;
    assert!(status.message.contains("spec.edgeWorker.workerSpec.frameworkType"), "{status:?}");
    assert_eq!(status.observed, Some(4));
    edge1.sync();
    edge1
        .until("it is whole", |replica| replica.is_complete() && !replica.objects().is_empty())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_starts_while_a_reference_is_missing_takes_nothing_from_a_node() {
    let mut bed = Bed::start().await;
    bed.models().await;
    bed.apply_sample().await;
    let mut agent = Agent::connect(&bed, "edge0", "a", 1).await;
    agent.until("task and model", |replica| replica.objects().len() == 2).await;
    agent.until("it has all", neptune_wire::Replica::is_complete).await;

    bed.kill_controller();
    let models = bed.api::<neptune_api::Model>();
    models.delete("small-model", &kube::api::DeleteParams::background()).await.unwrap();
    agent.changes.clear();
    let index = agent.replica.index().revision;
    bed.start_controller();
    bed.status("it is missed", |s| s.is("Pending", "ModelNotFound")).await;
    agent.until("the new controller spoke", |replica| replica.index().revision > index).await;
    agent.sync();
    bed.model("small-model", "/model/new.pb").await;
    let model = "default/models/small-model".parse().unwrap();
    agent
        .until("the new model", |replica| {
            replica.objects()[&model].content.spec["modelUrl"] == "/model/new.pb"
        })
        .await;
    let removed = agent.changes.iter().any(|change| matches!(change, ReplicaChange::Removed(_)));
    assert!(!removed, "{:?}", agent.changes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_no_message_can_carry_is_said_and_heals() {
    let bed = Bed::start().await;
    bed.models().await;
    bed.apply_sample().await;
    let mut agent = Agent::connect(&bed, "edge0", "a", 1).await;
    agent.task().await;
    let parameters = |bytes| {
        let parameters = json!([{"key": "prompt", "value": "x".repeat(bytes)}]);
        json!({"edgeWorker": {"workerSpec": {"parameters": parameters}}})
    };
    bed.patch(parameters(400_000)).await;
    let status = bed.status("it is too large", |s| s.is("Failed", "TaskTooLarge")).await;
    assert!(status.message.contains("the limit is 1048576; shorten"), "{}", status.message);
    bed.patch(parameters(10)).await;
    agent
        .until("the smaller one", |replica| {
            let held = replica.objects().get(&key());
            held.is_some_and(|held| worker(&held.content, Role::Edge).env.contains_key("PROMPT"))
        })
        .await;
    bed.status("it heals", |s| s.type_ == "Pending" && s.observed == Some(3)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_somebody_else_has_is_never_taken_over() {
    let bed = Bed::without_controller().await;
    bed.models().await;
    // The name that the sample's cloud worker gets.
    let name = format!("{SERVICE}-work-1a02631a");
    let foreign: Deployment = serde_json::from_value(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": "theirs"}},
            "template": {
                "metadata": {"labels": {"app": "theirs"}},
                "spec": {"containers": [{"name": "c", "image": "theirs"}]},
            },
        },
    }))
    .unwrap();
    let mut bed = bed;
    let theirs = bed.api::<Deployment>().create(&PostParams::default(), &foreign).await.unwrap();
    bed.apply_sample().await;
    bed.start_controller();
    let status = bed.status("the name is taken", |s| s.is("Failed", "NameTaken")).await;
    assert!(status.message.contains(&format!("Deployment default/{name}")), "{status:?}");
    let after = bed.api::<Deployment>().get(&name).await.unwrap();
    assert_eq!(after.resource_version(), theirs.resource_version());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_user_changes_or_removes_of_ours_is_made_again() {
    let bed = Bed::start().await;
    bed.models().await;
    bed.apply_sample().await;
    let made = bed.deployment().await;
    let name = made.name_any();
    let api = bed.api::<Deployment>();
    api.delete(&name, &kube::api::DeleteParams::background()).await.unwrap();
    let is_new = |deployment: &Deployment| deployment.uid() != made.uid();
    bed.until(&name, "made again", is_new).await;
    let patch = json!({"spec": {"template": {"spec": {"nodeName": "elsewhere"}}}});
    let patch = kube::api::Patch::Merge(&patch);
    api.patch(&name, &kube::api::PatchParams::default(), &patch).await.unwrap();
    bed.until(&name, "on its node again", |deployment: &Deployment| {
        let pod = deployment.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
        pod.node_name.as_deref() == Some("solar-corona-cloud")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_messages_are_counted_and_dropped_and_stop_nothing() {
    let bed = Bed::start().await;
    bed.models().await;
    bed.apply_sample().await;
    let mut agent = Agent::connect(&bed, "edge0", "a", 1).await;
    let task = agent.task().await;
    for topic in ["neptune/edge0/upstream/nonsense", "neptune/Edge_0/upstream/node"] {
        agent.say_on(topic, b"{}".to_vec(), false);
    }
    agent.say(&Topic::Node(agent.node.clone()), b"{\"instance\":".to_vec(), false);
    agent.flushed().await;
    agent.say(&Topic::Status(agent.node.clone(), key()), vec![0xff, 0xfe], false);
    agent.flushed().await;
    agent.report_running(&task, Some((1, 2)));
    agent.flushed().await;
    let mut stranger = task.clone();
    stranger.metadata.uid = "another".to_owned();
    agent.report_running(&stranger, Some((1000, 0)));
    agent.flushed().await;
    agent.report_running(&task, Some((3, 1)));
    let status = bed.status("good ones count", |s| s.inference > 0).await;
    assert_eq!((status.inference, status.hard), (3, 1));
    for (reason, count) in [("Topic", 2), ("Payload", 2), ("Impossible", 1), ("UnknownObject", 1)] {
        let line = format!("neptune_controller_upstream_rejected_total{{reason=\"{reason}\"}}");
        bed.until_metric(&line, count).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_forgot_everything_is_told_again() {
    let mut bed = Bed::start().await;
    bed.models().await;
    bed.apply_sample().await;
    let mut agent = Agent::connect(&bed, "edge0", "a", 1).await;
    agent.task().await;
    drop(agent);
    bed.kill_broker();
    bed.until_metric("neptune_controller_mqtt_connected", 0).await;
    assert!(bed.http("/readyz").await.unwrap().contains("broker: not connected"));
    bed.start_broker();
    bed.until_metric("neptune_controller_mqtt_connected", 1).await;
    // Not by its sync: what the broker keeps is enough.
    let mut agent = Agent::connect(&bed, "edge0", "a", 2).await;
    agent.task().await;
    soon("ready", async {
        while !bed.http("/readyz").await.unwrap().contains("broker: connected") {}
    })
    .await;
    assert_eq!(bed.http("/livez").await.unwrap(), "ok\n");
}
