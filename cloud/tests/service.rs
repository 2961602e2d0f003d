//! A `JointInferenceService` from `kubectl apply` to its deletion: the built controller with an API
//! server and a broker; the test is the agents.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use harness::{
    Agent, Harness, SERVICE,
    agent::{key, worker},
    sample, within,
};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use kube::{ResourceExt as _, api::PostParams};
use neptune_api::JointInferenceService;
use neptune_wire::{
    AgentInstance, Counters, DepartedTotals, ObjectContent, Replica, Resource, Role, Sync, Topic,
    WorkerReason, WorkerState, encode, replica::ReplicaChange,
};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn service_recovers_runs_counts_and_is_deleted() {
    let harness = Harness::start().await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    harness.apply_sample().await;
    let status = harness.status("ModelNotFound", |s| s.is("Pending", "ModelNotFound")).await;
    assert!(
        status.message.contains("\"small-model\" not found in namespace \"default\""),
        "{status:?}"
    );
    assert_eq!((status.active, status.failed, status.observed), (0, 0, Some(1)));

    harness.models().await;
    let task = agent.task().await;
    let edge = worker(&task, Role::Edge);
    assert_eq!(task.workers.len(), 1, "the cloud worker is the kubelet's");
    assert_eq!(edge.program.args, ["/code/edge_inference.py"]);
    let deployment = harness.deployment().await;
    let name = deployment.name_any();
    let host = format!("{name}.default.svc.cluster.local");
    assert_eq!(edge.program.env["BIG_MODEL_URL"], format!("http://{host}:5000"));
    let address = harness.cluster_ip(&name).await;
    let has_address = |replica: &Replica| {
        replica.objects().get(&key()).is_some_and(|stored| {
            worker(&stored.content, Role::Edge).hosts == [(host.clone(), address)].into()
        })
    };
    agent.until("the address of the cloud worker", has_address).await;
    harness.status("AwaitingAgent", |s| s.is("Pending", "AwaitingAgent")).await;

    agent.report_running(&task, Some((8, 2)));
    harness
        .status("the starting Pod", |s| s.is("Pending", "CloudWorkerStarting") && s.active == 1)
        .await;
    harness.deployment_available(&name).await;
    let status =
        harness.status("both workers running", |s| s.is("Running", "WorkersRunning")).await;
    assert_eq!((status.active, status.failed), (2, 0));
    assert_eq!((status.inference, status.hard, &*status.ratio), (8, 2, "0.25"));
    agent.report_running(&task, Some((9, 3)));
    let status = harness.status("counters", |s| s.inference == 9).await;
    assert_eq!(status.ratio, "0.3333");
    for reason in ["ModelNotFound", "CloudWorkerCreated", "EdgeTaskPublished", "Running"] {
        harness.event(reason).await;
    }

    harness.delete().await;
    agent.until("the task to be deleted", |replica| replica.objects().is_empty()).await;
    harness.until_gone::<Deployment>(&name).await;
    harness.until_gone::<Service>(&name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn state_of_a_gateway_reaches_status_condition_event_and_metrics() {
    let harness = Harness::start().await;
    harness.models().await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    harness.apply_sample().await;
    let task = agent.task().await;
    harness.deployment_available(&harness.deployment().await.name_any()).await;
    let numbers = json!({
        "inferenceNumber": 100, "hardExampleNumber": 20, "fallbackNumber": 3, "hardNumber": 25,
        "overBudgetNumber": 2, "unjudgedNumber": 5, "shadowNumber": 1, "deadlineNumber": 4,
        "uploadCloudRatio": 0.2,
        "startTime": "", "currentTime": "",
    });
    let gateway = |threshold: &str, problems: &serde_json::Value| {
        json!({"signal": "Top2", "cloud": "Reachable", "threshold": threshold,
            "agreement": "0.962", "agreementLow": "0.941", "agreementHigh": "0.976",
            "uploadRatio": "0.200", "psi": "0.030", "problems": problems})
    };
    agent.report_gateway(&task, &numbers, &gateway("0.713", &json!([])));
    let has = |threshold: &'static str, reason: &'static str| {
        move |service: &JointInferenceService| {
            let status = service.status.clone().unwrap_or_default();
            let current = status.conditions.last().and_then(|last| last.reason.clone());
            let actual = status.gateway.and_then(|gateway| gateway.threshold);
            actual.as_deref() == Some(threshold) && current.as_deref() == Some(reason)
        }
    };
    let service = harness.until(SERVICE, "the figures", has("0.713", "WorkersRunning")).await;
    let status = service.status.unwrap();
    let reported = status.gateway.unwrap();
    assert_eq!(reported.agreement.as_deref(), Some("0.962 (0.941-0.976)"));
    assert_eq!((reported.signal.as_deref(), reported.history.len()), (Some("Top2"), 1));
    let metrics: Vec<_> =
        status.metrics.iter().map(|it| format!("{}={}", it.key, it.value)).collect();
    for metric in ["overBudgetNumber=2", "deadlineNumber=4"] {
        assert!(metrics.contains(&metric.to_owned()), "{metrics:?}");
    }
    let series = format!(
        r#"neptune_service_samples_total{{namespace="default",service="{SERVICE}",decision="easy"}}"#
    );
    harness.until_metric(&series, 70).await;

    let moved = json!([{"reason": "Drifting", "message": "the confidence moved"}]);
    agent.report_gateway(&task, &numbers, &gateway("0.800", &moved));
    harness.until(SERVICE, "the problem", has("0.800", "Drifting")).await;
    harness.event("Drifting").await;
    agent.report_gateway(&task, &numbers, &gateway("0.800", &json!([])));
    harness.until(SERVICE, "no problem", has("0.800", "WorkersRunning")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn edge_worker_on_all_matching_nodes_is_counted_on_each() {
    let mut harness = Harness::start().await;
    harness.models().await;
    let labels = |area: &str| json!({"node-role.kubernetes.io/edge": "", "area": area});
    harness.node("edge0", labels("north")).await;
    harness.node("edge1", labels("south")).await;
    let mut first = Agent::connect(&harness, "edge0", "a", 1).await;
    let mut second = Agent::connect(&harness, "edge1", "b", 1).await;
    let mut sample = sample();
    let edge = &mut sample.spec.edge_worker;
    (edge.node_name, edge.placement) = (None, Some(neptune_api::Placement::All));
    edge.node_selector = [("area".to_owned(), "north".to_owned())].into();
    harness.apply(sample).await;
    let task = first.task().await;
    first.report_running(&task, Some((100, 10)));
    harness.status("the counters of one node", |s| s.inference == 100).await;
    harness.node("edge1", labels("north")).await;
    let task = second.task().await;
    second.report_running(&task, Some((40, 4)));
    harness.status("the sum", |s| (s.inference, s.hard) == (140, 14)).await;
    // A node that leaves counts until its worker has stopped, and continues when it returns.
    harness.node("edge0", labels("south")).await;
    first.until("the task to leave", |replica| replica.objects().is_empty()).await;
    first.report_running(&task, Some((105, 10)));
    harness.status("the last report", |s| s.inference == 145).await;
    harness.kill_controller();
    harness.start_controller();
    harness.node("edge0", labels("north")).await;
    let task = first.task().await;
    first.report_running(&task, Some((110, 11)));
    harness.status("the returned node", |s| (s.inference, s.hard) == (150, 15)).await;
    let rows = |service: &JointInferenceService| {
        let rows = service.status.iter().flat_map(|status| &status.edge_workers);
        rows.map(|row| (&*row.node, &*row.state)).eq([("edge0", "Running"), ("edge1", "Running")])
    };
    harness.until(SERVICE, "a row per node", rows).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_node_gets_its_values_and_a_node_without_the_label_keeps_its_task() {
    let harness = Harness::start().await;
    harness.models().await;
    let labels =
        |line: &str| json!({"node-role.kubernetes.io/edge": "", "area": "n", "line": line});
    harness.node("edge0", labels("7")).await;
    let without = json!({"node-role.kubernetes.io/edge": "", "area": "n"});
    harness.node("edge1", without.clone()).await;
    let mut first = Agent::connect(&harness, "edge0", "a", 1).await;
    let mut second = Agent::connect(&harness, "edge1", "b", 1).await;
    let mut sample = sample();
    let edge = &mut sample.spec.edge_worker;
    (edge.node_name, edge.placement) = (None, Some(neptune_api::Placement::All));
    edge.node_selector = [("area".to_owned(), "n".to_owned())].into();
    let env = json!([
        {"name": "CAMERA", "value": "rtsp://$(NODE_NAME)/1"},
        {"name": "LINE", "valueFrom": {"nodeLabel": "line"}},
    ]);
    edge.worker_spec.as_mut().unwrap().env = serde_json::from_value(env).unwrap();
    harness.apply(sample).await;
    let values = |task: &ObjectContent| {
        let env = worker(task, Role::Edge).program.env;
        (env["CAMERA"].clone(), env["LINE"].clone())
    };
    let task = first.task().await;
    assert_eq!(values(&task), ("rtsp://edge0/1".to_owned(), "7".to_owned()));
    first.report_running(&task, Some((10, 1)));
    let row = |node: &str, state: &str, text: &str| {
        let (node, state, text) = (node.to_owned(), state.to_owned(), text.to_owned());
        move |service: &JointInferenceService| {
            let mut rows = service.status.iter().flat_map(|status| &status.edge_workers);
            rows.any(|row| {
                let message = row.message.as_deref().unwrap_or_default();
                row.node == node && row.state == state && message.contains(&text)
            })
        }
    };
    let missing = "label line is not set on node edge1 (kubectl label";
    harness.until(SERVICE, "the missing label", row("edge1", "Pending", missing)).await;
    assert!(second.replica.objects().is_empty(), "nothing runs without its value");

    harness.node("edge1", labels("8")).await;
    let task = second.task().await;
    assert_eq!(values(&task), ("rtsp://edge1/1".to_owned(), "8".to_owned()));
    second.report_running(&task, Some((5, 0)));
    harness.until(SERVICE, "both", row("edge1", "Running", "")).await;
    // The label is removed: the node keeps what it has, and the others notice nothing.
    harness.node("edge1", without).await;
    harness.until(SERVICE, "the removed label", row("edge1", "Pending", missing)).await;
    assert_eq!(values(&second.task().await), values(&task));
    let before = first.replica.objects()[&key()].revision;
    harness.node("edge1", labels("9")).await;
    let is_new = |replica: &Replica| {
        let object = replica.objects().get(&key());
        object.is_some_and(|object| values(&object.content).1 == "9")
    };
    second.until("the new value", is_new).await;
    first.sync();
    first.task().await;
    assert_eq!(first.replica.objects()[&key()].revision, before, "its task is unchanged");
}

#[tokio::test(flavor = "multi_thread")]
async fn departed_totals_count_and_uids_that_are_gone_are_answered() {
    let harness = Harness::start().await;
    harness.models().await;
    let uid = harness.apply_sample().await.uid().unwrap();
    let mut agent = Agent::connect(&harness, "edge0", "a", 7).await;
    agent.task().await;
    harness.status("the edge node", |s| s.type_ == "Pending").await;
    let departed = |uid: &str, inference| {
        let totals = DepartedTotals {
            object: key(),
            counters: Counters { inference, ..Counters::default() },
        };
        (uid.to_owned(), totals)
    };
    let sync = |agent: &Agent, epoch, inference| Sync {
        departed: [departed(&uid, inference), departed("of a deleted service", 9)].into(),
        ..agent.replica.sync(AgentInstance(agent.instance.clone()), epoch)
    };
    let publish = |agent: &Agent, sync: &Sync| {
        agent.publish(&Topic::Sync(agent.node.clone()), encode(sync), false);
    };
    publish(&agent, &sync(&agent, 7, 300));
    harness.status("the totals of the sync", |s| s.inference == 300).await;
    let is_answered =
        |replica: &Replica| replica.index().gone_uids.iter().eq(["of a deleted service"]);
    agent.until("the answer", is_answered).await;

    // A node that never had the edge worker, and a restored copy of the data directory.
    let foreign = Agent::connect(&harness, "solar-corona-cloud", "b", 1).await;
    publish(&foreign, &sync(&foreign, 1, 5000));
    harness
        .until_metric(r#"neptune_controller_upstream_rejected_total{reason="never_had"}"#, 1)
        .await;
    publish(&agent, &sync(&agent, 3, 310));
    agent
        .until("the newer start", |it| {
            it.index().newer_start.as_ref().is_some_and(|it| it.epoch == 7)
        })
        .await;
    harness.status("the totals of the copy", |s| s.inference == 310).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_counters_keep_states_and_are_named_in_the_status() {
    let harness = Harness::start().await;
    harness.models().await;
    harness.apply_sample().await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    let task = agent.task().await;
    agent.report_running(&task, Some((100, 1)));
    harness.status("counters", |s| s.inference == 100).await;
    agent.report(&task, WorkerState::Failed, Some(WorkerReason::ImageMissing), Some((u64::MAX, 1)));
    harness.status("the state of the refused report", |s| s.is("Failed", "ImageMissing")).await;
    let rejected = |service: &JointInferenceService| {
        service.status.as_ref().is_some_and(|status| {
            status
                .rejected
                .iter()
                .any(|it| it.node == "edge0" && it.reason.contains("not possible"))
        })
    };
    harness.until(SERVICE, "the refusal in the status", rejected).await;
    agent.report_running(&task, Some((120, 1)));
    harness.status("later counters", |s| s.inference == 120).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn totals_and_workers_survive_a_new_controller_and_node() {
    let mut harness = Harness::start().await;
    harness.models().await;
    harness.apply_sample().await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    let task = agent.task().await;
    agent.report_running(&task, Some((100, 10)));
    let name = harness.deployment().await.name_any();
    harness.deployment_available(&name).await;
    harness.status("counters", |s| s.inference == 100 && s.type_ == "Running").await;
    agent.until("a complete replica", neptune_wire::Replica::is_complete).await;

    harness.kill_controller();
    agent.changes.clear();
    let index = agent.replica.index().revision;
    agent.report_running(&task, Some((150, 15)));
    agent.flushed().await;
    harness.start_controller();
    let status = harness.status("the counters of the meantime", |s| s.inference >= 150).await;
    assert_eq!((status.inference, status.hard, &*status.type_), (150, 15, "Running"));
    agent
        .until("the index of the new controller", |replica| replica.index().revision > index)
        .await;
    let touched = agent
        .changes
        .iter()
        .any(|c| matches!(c, ReplicaChange::Set(_) | ReplicaChange::Removed(_)));
    assert!(!touched, "a restart of the controller changed {:?}", agent.changes);

    // Late and duplicate reports of an earlier start.
    agent.seq = 0;
    agent.report_running(&task, Some((100, 10)));
    agent.flushed().await;
    agent.vanish();
    let mut agent = Agent::connect(&harness, "edge0", "b", 1).await;
    let task = agent.task().await;
    agent.report_running(&task, Some((7, 1)));
    let status = harness.status("the counters of the new node", |s| s.inference != 150).await;
    assert_eq!((status.inference, status.hard), (157, 16));
    harness.event("NodeReplaced").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_service_is_published_once_with_the_address_of_its_cloud_worker() {
    let harness = Harness::start().await;
    harness.models().await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    harness.apply_sample().await;
    let task = agent.task().await;
    assert_eq!(worker(&task, Role::Edge).hosts.len(), 1, "the ClusterIP");
    agent.report_running(&task, Some((1, 0)));
    harness.status("counters", |s| s.inference == 1).await;
    let is_task = |change: &&ReplicaChange| matches!(change, ReplicaChange::Set(key) if key.resource == Resource::JointInferenceServices);
    assert_eq!(agent.changes.iter().filter(is_task).count(), 1, "{:?}", agent.changes);
}

#[tokio::test(flavor = "multi_thread")]
async fn node_label_moves_the_cloud_worker_between_agent_and_pod() {
    let harness = Harness::start().await;
    harness.models().await;
    harness.apply_sample().await;
    let behind_service = harness.deployment().await.name_any();
    harness.node("solar-corona-cloud", json!({"neptune.io/runtime": "agent"})).await;
    harness.status("CloudAddressUnknown", |s| s.is("Pending", "CloudAddressUnknown")).await;
    harness.node_address("solar-corona-cloud", "192.0.2.7").await;

    let mut cloud = Agent::connect(&harness, "solar-corona-cloud", "c", 1).await;
    let mut edge = Agent::connect(&harness, "edge0", "e", 1).await;
    let cloud_task = cloud.task().await;
    let cloud_worker = worker(&cloud_task, Role::Cloud);
    assert_eq!(cloud_task.workers.len(), 1);
    let port = cloud_worker.port.unwrap();
    assert!((20_000..30_000).contains(&port));
    assert_eq!(cloud_worker.program.env["BIG_MODEL_BIND_PORT"], port.to_string());
    let url = format!("http://192.0.2.7:{port}");
    edge.until("the cloud address at the edge", |replica| {
        let held = replica.objects().get(&key());
        held.is_some_and(|held| {
            worker(&held.content, Role::Edge).program.env["BIG_MODEL_URL"] == url
        })
    })
    .await;
    for agent in [&mut edge, &mut cloud] {
        agent.until("task and model", |replica| replica.objects().len() == 2).await;
    }
    assert_eq!(models(&edge), ["small-model"]);
    assert_eq!(models(&cloud), ["big-model"]);
    harness.until_gone::<Deployment>(&behind_service).await;
    harness.until_gone::<Service>(&behind_service).await;

    let edge_task = edge.task().await;
    edge.report_running(&edge_task, Some((5, 1)));
    cloud.report_running(&cloud_task, None);
    let status = harness.status("both agents to report", |s| s.type_ == "Running").await;
    assert_eq!((status.active, status.inference), (2, 5), "the cloud worker counts nothing");

    harness.node("solar-corona-cloud", json!({})).await;
    cloud.until("the kubelet to take over", |replica| replica.objects().is_empty()).await;
    assert_eq!(harness.deployment().await.name_any(), behind_service);
}

fn models(agent: &Agent) -> Vec<String> {
    let keys = agent.replica.objects().keys();
    keys.filter(|key| key.resource == neptune_wire::Resource::Models)
        .map(|key| key.name.to_string())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_node_is_reported_and_its_counters_stay() {
    let harness = Harness::start().await;
    harness.models().await;
    harness.apply_sample().await;
    let name = harness.deployment().await.name_any();
    harness.deployment_available(&name).await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    let task = agent.task().await;
    agent.report_running(&task, Some((40, 4)));
    harness.status("running workers", |s| s.type_ == "Running" && s.inference == 40).await;

    let replica = agent.vanish();
    let status = harness.status("the offline node", |s| s.is("Running", "NodeOffline")).await;
    assert_eq!((status.active, status.failed, status.inference), (2, 0, 40), "the last state");
    assert!(status.message.contains("node edge0 is offline since 20"), "{status:?}");
    harness.event("NodeOffline").await;

    let mut agent = Agent::with(&harness, "edge0", "a", 2, replica).await;
    agent.report_running(&task, Some((41, 4)));
    harness.status("the recovery", |s| s.type_ == "Running" && s.inference == 41).await;
    harness.event("NodeOnline").await;
    agent.report(&task, WorkerState::Failed, Some(WorkerReason::ImageMissing), Some((41, 4)));
    let status = harness.status("the failure", |s| s.is("Failed", "ImageMissing")).await;
    assert_eq!((status.active, status.failed), (1, 1));
    agent.report_running(&task, Some((42, 4)));
    harness.status("the recovery", |s| s.type_ == "Running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn change_reaches_the_edge_and_move_clears_the_old_node() {
    let harness = Harness::start().await;
    harness.models().await;
    harness.node("edge1", json!({"node-role.kubernetes.io/edge": ""})).await;
    harness.apply_sample().await;
    let mut edge0 = Agent::connect(&harness, "edge0", "a", 1).await;
    let mut edge1 = Agent::connect(&harness, "edge1", "b", 1).await;
    edge0.task().await;

    harness.patch(json!({"edgeWorker": {"hardExampleAlgorithm": {"name": "Random"}}})).await;
    edge0
        .until("the algorithm", |replica| {
            let held = replica.objects().get(&key());
            held.is_some_and(|held| {
                worker(&held.content, Role::Edge).program.env["HEM_NAME"] == "Random"
            })
        })
        .await;
    harness.model("small-model", "/model/smaller.pb").await;
    let model = "default/models/small-model".parse().unwrap();
    edge0
        .until("the model", |replica| {
            replica.objects()[&model].content.spec["modelUrl"] == "/model/smaller.pb"
        })
        .await;
    harness.patch(json!({"edgeWorker": {"nodeName": "edge1"}})).await;
    edge1.task().await;
    edge0.until("the removal", |replica| replica.objects().is_empty()).await;

    // An invalid spec stops no running worker.
    harness.patch(json!({"edgeWorker": {"workerSpec": {"frameworkType": "tensorfow"}}})).await;
    let status = harness.status("FrameworkUnknown", |s| s.is("Failed", "FrameworkUnknown")).await;
    assert!(status.message.contains("spec.edgeWorker.workerSpec.frameworkType"), "{status:?}");
    assert_eq!(status.observed, Some(4));
    edge1.sync();
    edge1
        .until("a complete replica", |replica| {
            replica.is_complete() && !replica.objects().is_empty()
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn controller_started_with_missing_reference_removes_nothing() {
    let mut harness = Harness::start().await;
    harness.models().await;
    harness.apply_sample().await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    agent.until("task and model", |replica| replica.objects().len() == 2).await;
    agent.until("a complete replica", neptune_wire::Replica::is_complete).await;

    harness.kill_controller();
    let models = harness.api::<neptune_api::Model>();
    models.delete("small-model", &kube::api::DeleteParams::background()).await.unwrap();
    agent.changes.clear();
    let index = agent.replica.index().revision;
    harness.start_controller();
    harness.status("the missing object", |s| s.is("Pending", "ModelNotFound")).await;
    agent
        .until("the index of the new controller", |replica| replica.index().revision > index)
        .await;
    agent.sync();
    harness.model("small-model", "/model/new.pb").await;
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
async fn task_over_the_size_limit_is_reported_until_it_shrinks() {
    let harness = Harness::start().await;
    harness.models().await;
    harness.apply_sample().await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    agent.task().await;
    let parameters = |bytes| {
        let parameters = json!([{"key": "prompt", "value": "x".repeat(bytes)}]);
        json!({"edgeWorker": {"workerSpec": {"parameters": parameters}}})
    };
    harness.patch(parameters(400_000)).await;
    let status = harness.status("TaskTooLarge", |s| s.is("Failed", "TaskTooLarge")).await;
    assert!(status.message.contains("the limit is 1048576; shorten"), "{}", status.message);
    harness.patch(parameters(10)).await;
    agent
        .until("the smaller task", |replica| {
            let held = replica.objects().get(&key());
            held.is_some_and(|held| {
                worker(&held.content, Role::Edge).program.env.contains_key("PROMPT")
            })
        })
        .await;
    harness.status("the recovery", |s| s.type_ == "Pending" && s.observed == Some(3)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn name_in_use_by_another_owner_is_not_taken_over() {
    let harness = Harness::without_controller().await;
    harness.models().await;
    // The name of the sample's cloud worker.
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
    let mut harness = harness;
    let theirs =
        harness.api::<Deployment>().create(&PostParams::default(), &foreign).await.unwrap();
    harness.apply_sample().await;
    harness.start_controller();
    let status = harness.status("NameTaken", |s| s.is("Failed", "NameTaken")).await;
    assert!(status.message.contains(&format!("Deployment default/{name}")), "{status:?}");
    let after = harness.api::<Deployment>().get(&name).await.unwrap();
    assert_eq!(after.resource_version(), theirs.resource_version());
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_or_deleted_workloads_are_restored() {
    let harness = Harness::start().await;
    harness.models().await;
    harness.apply_sample().await;
    let made = harness.deployment().await;
    let name = made.name_any();
    let api = harness.api::<Deployment>();
    api.delete(&name, &kube::api::DeleteParams::background()).await.unwrap();
    let is_new = |deployment: &Deployment| deployment.uid() != made.uid();
    harness.until(&name, "the recreated endpoint", is_new).await;
    let patch =
        json!({"spec": {"template": {"spec": {"securityContext": {"runAsNonRoot": false}}}}});
    let patch = kube::api::Patch::Merge(&patch);
    api.patch(&name, &kube::api::PatchParams::default(), &patch).await.unwrap();
    harness
        .until(&name, "the restored security context", |deployment: &Deployment| {
            let pod = deployment.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
            pod.security_context.as_ref().unwrap().run_as_non_root == Some(true)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_messages_are_counted_and_dropped() {
    let harness = Harness::start().await;
    harness.models().await;
    harness.apply_sample().await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    let task = agent.task().await;
    for topic in ["neptune/edge0/upstream/nonsense", "neptune/Edge_0/upstream/node"] {
        agent.publish_on(topic, b"{}".to_vec(), false);
    }
    let rejected =
        |reason| format!("neptune_controller_upstream_rejected_total{{reason=\"{reason}\"}}");
    agent.publish(&Topic::Node(agent.node.clone()), b"{\"instance\":".to_vec(), false);
    agent.publish(&Topic::Status(agent.node.clone(), key()), vec![0xff, 0xfe], false);
    // A newer message on a topic replaces one that waits.
    harness.until_metric(&rejected("payload"), 2).await;
    agent.report_running(&task, Some((1, 2)));
    harness.until_metric(&rejected("impossible"), 1).await;
    let mut other_object = task.clone();
    other_object.metadata.uid = "another".to_owned();
    agent.report_running(&other_object, Some((1000, 0)));
    harness.until_metric(&rejected("unknown_object"), 1).await;
    agent.report_running(&task, Some((3, 1)));
    let status = harness.status("valid reports", |s| s.inference > 0).await;
    assert_eq!((status.inference, status.hard), (3, 1));
    harness.until_metric(&rejected("topic"), 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_broker_gets_everything_again() {
    let mut harness = Harness::start().await;
    harness.models().await;
    harness.apply_sample().await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    agent.task().await;
    drop(agent);
    harness.broker.kill();
    harness.until_metric("neptune_controller_mqtt_connected", 0).await;
    assert!(harness.http("/readyz").await.unwrap().contains("broker: not connected"));
    harness.broker.restart().await;
    harness.until_metric("neptune_controller_mqtt_connected", 1).await;
    // No sync is needed: the retained messages are enough.
    let mut agent = Agent::connect(&harness, "edge0", "a", 2).await;
    agent.task().await;
    within("ready", async {
        while !harness.http("/readyz").await.unwrap().contains("broker: connected") {}
    })
    .await;
    assert_eq!(harness.http("/livez").await.unwrap(), "ok\n");
}
