//! An `InferenceModel` from `kubectl apply` to its deletion: the built controller with an API
//! server and a broker; the test is the agents and the kubelet.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use harness::{Agent, Harness, within};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use kube::{
    ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use neptune_api::{InferenceModel, InferenceModelStatus, Model, TransitionStatus};
use neptune_wire::{ModelServer, ObjectKey};
use serde_json::{Value, json};

const SAMPLE: &str = include_str!("../../common/api/tests/samples/inferencemodel.yaml");
const NAME: &str = "facialexpression";
/// The node of the sample.
const NODE: &str = "precision-5820";

fn key() -> ObjectKey {
    format!("default/inferencemodels/{NAME}").parse().unwrap()
}

fn edge() -> Value {
    json!({"node-role.kubernetes.io/edge": "", "kubernetes.io/hostname": NODE})
}

/// Creates the sample with a merge patch, in one request: the controller never sees it without.
async fn apply(harness: &Harness, change: Value) -> InferenceModel {
    let mut sample: Value = serde_saphyr::from_str(SAMPLE).unwrap();
    merge(&mut sample, &change);
    let sample: InferenceModel = serde_json::from_value(sample).unwrap();
    harness.api().create(&PostParams::default(), &sample).await.unwrap()
}

/// Applies a JSON Merge Patch (RFC 7386).
fn merge(value: &mut Value, change: &Value) {
    let Some(fields) = change.as_object() else {
        *value = change.clone();
        return;
    };
    if !value.is_object() {
        *value = json!({});
    }
    for (name, change) in fields {
        if change.is_null() {
            value.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut value[name.as_str()], change);
        }
    }
}

async fn patch(harness: &Harness, change: Value) -> InferenceModel {
    let params = PatchParams::default();
    harness.api().patch(NAME, &params, &Patch::Merge(&change)).await.unwrap()
}

/// A merge patch that deploys to the cloud, without a node.
fn in_the_cloud() -> Value {
    json!({"spec": {"deployToLayer": "cloud", "nodeName": null, "nodeSelector": null}})
}

async fn status(
    harness: &Harness,
    what: &str,
    expected: impl Fn(&InferenceModelStatus) -> bool + Send + Sync,
) -> InferenceModelStatus {
    let is = |model: &InferenceModel| model.status.as_ref().is_some_and(&expected);
    harness.until(NAME, what, is).await.status.unwrap()
}

fn is(status: &InferenceModelStatus, transition: TransitionStatus) -> bool {
    status.transition_status == Some(transition)
}

fn serves(status: &InferenceModelStatus, version: &str) -> bool {
    status.serving_version.as_deref() == Some(version)
}

/// A condition as `status reason`, and its message.
fn condition(status: &InferenceModelStatus, type_: &str) -> (String, String) {
    let condition = status.conditions.iter().find(|condition| condition.type_ == type_);
    condition.map_or_else(Default::default, |c| {
        (format!("{} {}", c.status, c.reason), c.message.clone())
    })
}

fn ready(status: &InferenceModelStatus) -> String {
    condition(status, "Ready").0
}

async fn task(agent: &mut Agent, version: &str) -> ModelServer {
    let is_version = |serving: &ModelServer| {
        serving.model.as_ref().is_some_and(|model| model.version == version)
    };
    let what = format!("the task of version {version}");
    let content =
        agent.has(&key(), &what, |held| held.serving.as_deref().is_some_and(is_version)).await;
    *content.serving.unwrap()
}

fn up_to_date(version: &str) -> Value {
    json!({"servingVersion": version, "targetVersion": version, "transition": "UpToDate"})
}

async fn until_no_task(agent: &mut Agent) {
    agent.until("the task to be deleted", |replica| replica.objects().is_empty()).await;
}

async fn owned(harness: &Harness) -> String {
    harness.deployment().await.name_any()
}

#[tokio::test(flavor = "multi_thread")]
async fn sample_model_is_served_switched_rolled_back_and_deleted() {
    let harness = Harness::start().await;
    let model = apply(&harness, json!({})).await;
    let uid = model.uid().unwrap();
    let waiting = status(&harness, "NodeNotFound", |s| ready(s) == "False NodeNotFound").await;
    assert!(is(&waiting, TransitionStatus::Pending));
    assert!(condition(&waiting, "Degraded").1.contains("create the EdgeNode"), "{waiting:?}");

    harness.node(NODE, edge()).await;
    harness.node_address(NODE, "192.0.2.7").await;
    let mut agent = Agent::connect(&harness, NODE, "a", 1).await;
    let serving = task(&mut agent, "4").await;
    assert_eq!((serving.port, &*serving.model_name, serving.hold), (8501, NAME, false));
    status(&harness, "AwaitingAgent", |s| ready(s) == "Unknown AwaitingAgent").await;

    let progress = |bytes: u64| {
        json!({"targetVersion": "4", "transition": "InProgress", "message": "fetching",
               "progress": {"receivedBytes": bytes, "totalBytes": 200, "bytesPerSecond": 10}})
    };
    agent.report_serving(&key(), &uid, &progress(50));
    let coming = status(&harness, "the progress", |s| s.progress.is_some()).await;
    assert_eq!(coming.progress.as_ref().unwrap().summary, "25% of 200 B, 10 B/s");
    assert_eq!(condition(&coming, "Progressing").0, "True ModelDownloading");

    let full = json!({"targetVersion": "4", "transition": "InProgress", "trouble": "DiskFull",
                      "message": "downloading 4: 7 bytes of disk space are missing"});
    agent.report_serving(&key(), &uid, &full);
    let is_full = |s: &InferenceModelStatus| condition(s, "Degraded").0 == "True DiskFull";
    let full = status(&harness, "the disk is full", is_full).await;
    assert!(condition(&full, "Degraded").1.contains("7 bytes of disk space are missing"));

    agent.report_serving(&key(), &uid, &up_to_date("4"));
    let served =
        status(&harness, "the model to be served", |s| is(s, TransitionStatus::UpToDate)).await;
    assert!(serves(&served, "4") && ready(&served) == "True Serving");
    assert_eq!((served.progress, served.ready_replicas), (None, Some(1)));
    assert_eq!(
        (served.node.as_deref(), served.url.as_deref()),
        (Some(NODE), Some("http://192.0.2.7:8501"))
    );

    patch(&harness, json!({"spec": {"targetVersion": "3"}})).await;
    task(&mut agent, "3").await;
    let wanted =
        status(&harness, "the new target", |s| s.target_version.as_deref() == Some("3")).await;
    assert!(serves(&wanted, "4") && is(&wanted, TransitionStatus::InProgress), "{wanted:?}");
    assert_eq!(ready(&wanted), "True Serving", "the old version keeps serving");
    agent.report_serving(&key(), &uid, &json!({"targetVersion": "3", "transition": "InProgress"}));
    status(&harness, "the rollout", |s| s.serving_version.is_none()).await;
    let failed = json!({
        "servingVersion": "4", "targetVersion": "3", "transition": "BlockedByFailedLoad",
        "message": "3 failed; returned to 4", "lastGoodVersion": "4",
        "lastFailure": {"version": "3", "reason": "HealthCheckFailed", "message": "404", "time": "2026-01-02T03:04:05Z"},
    });
    agent.report_serving(&key(), &uid, &failed);
    let blocked =
        status(&harness, "the failure", |s| is(s, TransitionStatus::BlockedByFailedLoad)).await;
    assert!(serves(&blocked, "4") && ready(&blocked) == "True Serving");
    assert_eq!(
        condition(&blocked, "Degraded"),
        ("True LoadFailed".into(), "3 failed; returned to 4".into())
    );
    assert_eq!(blocked.last_failure.unwrap().reason, "HealthCheckFailed");
    for reason in ["NodeNotFound", "DownloadStarted", "DiskFull", "SwitchCommitted", "RolledBack"] {
        harness.event(reason).await;
    }

    harness.api::<InferenceModel>().delete(NAME, &DeleteParams::default()).await.unwrap();
    until_no_task(&mut agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn version_of_a_model_object_is_compared_at_the_edge_and_in_the_cloud() {
    let harness = Harness::start().await;
    harness.node(NODE, edge()).await;
    let mut agent = Agent::connect(&harness, NODE, "a", 1).await;
    let digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    let source = json!({"apiVersion": "edgeai.io/v1alpha1", "kind": "Model",
        "metadata": {"name": "small"},
        "spec": {"modelUrl": "https://models.test/small.tar.gz", "sha256sum": digest}});
    let source: Model = serde_json::from_value(source).unwrap();
    harness.api().create(&PostParams::default(), &source).await.unwrap();
    let change = json!({"manifest": null, "targetVersion": null, "model": {"name": "small"}});
    let uid = apply(&harness, json!({ "spec": change })).await.uid().unwrap();
    let version = 0x2cf2_4dba_5fb0_u64.to_string();
    task(&mut agent, &version).await;

    let mut report = json!({"targetVersion": version, "transition": "InProgress",
        "progress": {"receivedBytes": 50, "totalBytes": 200, "bytesPerSecond": 10}});
    agent.report_serving(&key(), &uid, &report);
    status(&harness, "the progress", |s| s.progress.is_some()).await;
    report = json!({"targetVersion": version, "transition": "BlockedByFailedLoad",
        "message": "not a model", "lastFailure": {"version": version, "reason": "LoadFailed",
            "message": "not a model", "time": "2026-01-02T03:04:05Z"}});
    agent.report_serving(&key(), &uid, &report);
    let failed = ("True LoadFailed".to_owned(), "not a model".to_owned());
    let is_failed = |s: &InferenceModelStatus| condition(s, "Degraded") == failed;
    let blocked = status(&harness, "the failure", is_failed).await;
    assert!(is(&blocked, TransitionStatus::BlockedByFailedLoad), "{blocked:?}");
    agent.report_serving(&key(), &uid, &up_to_date(&version));
    let is_served = |s: &InferenceModelStatus| {
        is(s, TransitionStatus::UpToDate) && serves(s, &version) && ready(s) == "True Serving"
    };
    let served = status(&harness, "the edge to serve", is_served).await;
    assert_eq!(served.target_version.as_deref(), Some(&*version));

    patch(&harness, in_the_cloud()).await;
    harness.deployment_available(&owned(&harness).await).await;
    status(&harness, "the cloud to serve", |s| s.node.is_none() && is_served(s)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cloud_model_is_a_deployment_and_layer_change_cleans_up() {
    let harness = Harness::start().await;
    harness.node(NODE, edge()).await;
    harness.node_address("solar-corona-cloud", "192.0.2.9").await;
    let mut agent = Agent::connect(&harness, NODE, "a", 1).await;
    let theirs: Deployment = serde_json::from_value(json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "theirs", "labels": {"app.kubernetes.io/managed-by": "neptune-cloud"}},
        "spec": {
            "selector": {"matchLabels": {"app": "theirs"}},
            "template": {
                "metadata": {"labels": {"app": "theirs"}},
                "spec": {"containers": [{"name": "c", "image": "theirs"}]},
            },
        },
    }))
    .unwrap();
    let uid = apply(&harness, in_the_cloud()).await.uid().unwrap();
    let name = owned(&harness).await;
    harness.api().create(&PostParams::default(), &theirs).await.unwrap();
    status(&harness, "the starting Pod", |s| ready(s) == "False ServerStarting").await;
    harness.deployment_available(&name).await;
    let served = status(&harness, "the model to be served", |s| serves(s, "4")).await;
    assert!(is(&served, TransitionStatus::UpToDate));
    let service = harness.api::<Service>().get(&name).await.unwrap();
    let port = service.spec.unwrap().ports.unwrap()[0].node_port.unwrap();
    let url = format!("http://192.0.2.9:{port}");
    status(&harness, "the URL", |s| s.url.as_deref() == Some(&url)).await;

    patch(&harness, json!({"spec": {"targetVersion": "3"}})).await;
    let next =
        status(&harness, "the new target", |s| s.target_version.as_deref() == Some("3")).await;
    assert!(serves(&next, "4"), "until the Deployment reports the switch: {next:?}");
    let is_3 = |deployment: &Deployment| {
        let template = &deployment.spec.as_ref().unwrap().template;
        let labels = template.metadata.as_ref().unwrap().labels.as_ref().unwrap();
        labels["neptune.io/model-version"] == "3"
    };
    harness.until(&name, "its template", is_3).await;
    harness.deployment_available(&name).await;
    status(&harness, "the switch", |s| serves(s, "3") && is(s, TransitionStatus::UpToDate)).await;

    patch(&harness, json!({"spec": {"serviceType": "ClusterIP", "replicas": 0}})).await;
    let url = format!("http://{name}.default.svc.cluster.local:8501");
    status(&harness, "the cluster-internal URL", |s| s.url.as_deref() == Some(&url)).await;

    patch(&harness, json!({"spec": {"deployToLayer": "edge", "nodeName": NODE}})).await;
    harness.until_gone::<Deployment>(&name).await;
    status(&harness, "no server at the edge", |s| ready(s) == "False ScaledToZero").await;
    patch(&harness, json!({"spec": {"replicas": 1}})).await;
    task(&mut agent, "3").await;
    harness.until_gone::<Service>(&name).await;
    agent.report_serving(&key(), &uid, &up_to_date("3"));
    status(&harness, "the edge to serve", |s| s.node.as_deref() == Some(NODE) && serves(s, "3"))
        .await;

    patch(&harness, in_the_cloud()).await;
    until_no_task(&mut agent).await;
    harness.until(&name, "the Deployment", |_: &Deployment| true).await;
    let back = status(&harness, "the cloud layer", |s| s.node.is_none()).await;
    assert!(back.serving_version.is_none(), "{back:?}");
    harness.api::<InferenceModel>().delete(NAME, &DeleteParams::default()).await.unwrap();
    // A write that was in progress when the owner was deleted succeeds once more; garbage
    // collection removes it.
    let left = || async {
        let left = harness.api::<Deployment>().list(&ListParams::default()).await.unwrap();
        left.items.iter().map(kube::ResourceExt::name_any).collect::<Vec<_>>()
    };
    within("only the foreign object", async {
        while left().await != ["theirs"] {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    })
    .await;
    harness.until_gone::<Service>(&name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_spec_and_killed_controller_remove_nothing() {
    let mut harness = Harness::start().await;
    harness.node(NODE, edge()).await;
    let mut agent = Agent::connect(&harness, NODE, "a", 1).await;
    let uid = apply(&harness, json!({})).await.uid().unwrap();
    task(&mut agent, "4").await;
    agent.report_serving(&key(), &uid, &up_to_date("4"));
    status(&harness, "the model to be served", |s| is(s, TransitionStatus::UpToDate)).await;

    patch(&harness, json!({"spec": {"servingPort": null, "frameworkType": "tensorfow"}})).await;
    let wrong = status(&harness, "InvalidSpec", |s| is(s, TransitionStatus::InvalidSpec)).await;
    let (status_and_reason, message) = condition(&wrong, "Degraded");
    assert_eq!(status_and_reason, "True ServingPortInvalid");
    assert!(
        message.contains("spec.servingPort is missing")
            && message.contains("\"tensorfow\" has no model server"),
        "{message}"
    );
    assert!(serves(&wrong, "4") && ready(&wrong) == "True Serving");
    harness.event("ServingPortInvalid").await;

    harness.kill_controller();
    harness.start_controller();
    let index = agent.replica.sync(neptune_wire::AgentInstance("a".into()), 1).index_revision;
    agent.sync();
    let newer = |replica: &neptune_wire::Replica| {
        replica.sync(neptune_wire::AgentInstance("a".into()), 1).index_revision > index
    };
    agent.until("the new controller's index", newer).await;
    assert!(agent.replica.objects().contains_key(&key()), "it is kept");

    let right = json!({"servingPort": 8502, "frameworkType": "tensorflow", "targetVersion": "3"});
    patch(&harness, json!({ "spec": right })).await;
    assert_eq!(task(&mut agent, "3").await.port, 8502);
    status(&harness, "the recovery", |s| !is(s, TransitionStatus::InvalidSpec)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_select_one_node_and_the_choice_is_stable() {
    let mut harness = Harness::start().await;
    let labels = |area: &str| json!({"node-role.kubernetes.io/edge": "", "area": area});
    harness.node("edge1", labels("north")).await;
    harness.node("edge2", labels("north")).await;
    let mut agent = Agent::connect(&harness, "edge2", "a", 1).await;
    let select = json!({"spec": {"nodeName": null, "nodeSelector": {"kubernetes.io/hostname": null, "area": "north"}}});
    apply(&harness, select).await;
    task(&mut agent, "4").await;
    status(&harness, "the connected node", |s| s.node.as_deref() == Some("edge2")).await;
    agent.vanish();
    harness.node("edge0", labels("north")).await;
    let mut first = Agent::connect(&harness, "edge1", "b", 1).await;
    harness.kill_controller();
    harness.start_controller();
    patch(&harness, json!({"spec": {"targetVersion": "3"}})).await;
    let still =
        status(&harness, "the stable choice", |s| s.target_version.as_deref() == Some("3")).await;
    assert_eq!(still.node.as_deref(), Some("edge2"), "an offline node is kept");
    let mut agent = Agent::connect(&harness, "edge2", "a", 2).await;
    task(&mut agent, "3").await;
    harness.node("edge0", edge()).await;
    harness.node("edge2", labels("south")).await;
    status(&harness, "the move", |s| s.node.as_deref() == Some("edge1")).await;
    task(&mut first, "3").await;
    until_no_task(&mut agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_scale_changes_the_pods() {
    let harness = Harness::start().await;
    apply(&harness, in_the_cloud()).await;
    let name = owned(&harness).await;
    harness.deployment_available(&name).await;
    let selector = format!("app.kubernetes.io/instance={name}");
    let is_scaled = |s: &neptune_api::InferenceModelStatus| {
        s.replicas == Some(1) && s.selector.as_deref() == Some(&selector)
    };
    status(&harness, "the number of Pods", is_scaled).await;
    let scaled = harness.kubectl(&["scale", "im/facialexpression", "--replicas=2"], "");
    assert!(scaled.ok, "{scaled:?}");
    let has_two = |deployment: &Deployment| deployment.spec.as_ref().unwrap().replicas == Some(2);
    harness.until(&name, "the Deployment to be scaled", has_two).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn placement_all_serves_on_each_node_that_has_the_labels() {
    let harness = Harness::start().await;
    let labels = |area: &str| json!({"node-role.kubernetes.io/edge": "", "area": area});
    harness.node("edge1", labels("north")).await;
    harness.node("edge2", labels("south")).await;
    let mut one = Agent::connect(&harness, "edge1", "a", 1).await;
    let mut two = Agent::connect(&harness, "edge2", "b", 1).await;
    let select = json!({"spec": {"nodeName": null, "placement": "All",
        "nodeSelector": {"kubernetes.io/hostname": null, "area": "north"}}});
    let uid = apply(&harness, select).await.uid().unwrap();
    task(&mut one, "4").await;
    one.report_serving(&key(), &uid, &up_to_date("4"));
    let served = |count: usize| {
        move |s: &neptune_api::InferenceModelStatus| {
            s.servers.len() == count && ready(s) == "True Serving"
        }
    };
    status(&harness, "the first node to serve", served(1)).await;
    harness.node("edge2", labels("north")).await;
    task(&mut two, "4").await;
    status(&harness, "the second node", |s| s.servers.len() == 2).await;
    two.report_serving(&key(), &uid, &up_to_date("4"));
    let both = status(&harness, "both nodes to serve", served(2)).await;
    assert_eq!((both.ready_replicas, both.node.as_deref()), (Some(2), None));
    harness.node("edge1", labels("south")).await;
    until_no_task(&mut one).await;
    let left = status(&harness, "one node to leave", served(1)).await;
    assert_eq!(left.servers[0].node, "edge2");
    assert!(two.replica.objects().contains_key(&key()));
}

#[tokio::test(flavor = "multi_thread")]
async fn cloud_node_with_an_agent_serves_like_an_edge_node() {
    let harness = Harness::start().await;
    harness.node("solar-corona-cloud", json!({"neptune.io/runtime": "agent"})).await;
    let mut agent = Agent::connect(&harness, "solar-corona-cloud", "a", 1).await;
    let change = json!({"spec": {"deployToLayer": "cloud", "nodeName": "solar-corona-cloud", "image": "mine:1"}});
    let uid = apply(&harness, change).await.uid().unwrap();
    let image = |held: &neptune_wire::ObjectContent| {
        held.serving.as_ref().unwrap().program.image == "mine:1"
    };
    let serving = agent.has(&key(), "the image", image).await.serving.unwrap();
    assert_eq!(serving.model, None);
    agent.report_serving(&key(), &uid, &up_to_date("mine:1"));
    let served =
        status(&harness, "the model to be served", |s| is(s, TransitionStatus::UpToDate)).await;
    assert_eq!(
        (served.target_version, served.node.as_deref()),
        (Some("mine:1".into()), Some("solar-corona-cloud"))
    );
    patch(&harness, json!({"spec": {"image": ""}})).await;
    task(&mut agent, "4").await;
    assert!(
        harness.api::<Deployment>().list(&ListParams::default()).await.unwrap().items.is_empty()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn name_in_use_by_another_owner_is_not_taken_over() {
    let mut harness = Harness::start().await;
    apply(&harness, in_the_cloud()).await;
    let ours = harness.deployment().await;
    let name = ours.name_any();
    harness.kill_controller();
    harness.api::<Deployment>().delete(&name, &DeleteParams::background()).await.unwrap();
    harness.until_gone::<Deployment>(&name).await;
    let mut theirs = ours.clone();
    theirs.metadata = kube::api::ObjectMeta { name: Some(name.clone()), ..Default::default() };
    theirs.status = None;
    let theirs = harness.api::<Deployment>().create(&PostParams::default(), &theirs).await.unwrap();
    harness.start_controller();
    let taken =
        status(&harness, "NameTaken", |s| condition(s, "Degraded").0 == "True NameTaken").await;
    assert!(condition(&taken, "Degraded").1.contains(&format!("Deployment default/{name}")));
    let after = harness.api::<Deployment>().get(&name).await.unwrap();
    assert_eq!(after.resource_version(), theirs.resource_version());
}

#[tokio::test(flavor = "multi_thread")]
async fn older_of_two_models_on_one_port_is_served() {
    let harness = Harness::start().await;
    harness.node(NODE, edge()).await;
    let mut agent = Agent::connect(&harness, NODE, "a", 1).await;
    apply(&harness, json!({})).await;
    task(&mut agent, "4").await;
    let mut other: InferenceModel = serde_saphyr::from_str(SAMPLE).unwrap();
    other.metadata.name = Some("zz-other".to_owned());
    // Creation timestamps have a resolution of one second.
    let first =
        harness.api::<InferenceModel>().get(NAME).await.unwrap().metadata.creation_timestamp;
    within("a later second", async {
        while k8s_openapi::jiff::Timestamp::now().as_second()
            <= first.as_ref().unwrap().0.as_second()
        {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    harness.api().create(&PostParams::default(), &other).await.unwrap();
    let taken = |model: &InferenceModel| {
        model.status.as_ref().is_some_and(|s| ready(s) == "False ServingPortTaken")
    };
    let status = harness.until("zz-other", "the port conflict", taken).await.status.unwrap();
    let message = condition(&status, "Ready").1;
    assert!(
        message.contains(
            "8501 is already used by InferenceModel default/facialexpression on node precision-5820"
        ),
        "{message}"
    );
    let patch = json!({"spec": {"servingPort": 8502}});
    let params = PatchParams::default();
    harness
        .api::<InferenceModel>()
        .patch("zz-other", &params, &Patch::Merge(&patch))
        .await
        .unwrap();
    agent.until("both", |replica| replica.objects().len() == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn annotation_holds_a_switch_on_a_node_and_in_the_cloud() {
    let harness = Harness::start().await;
    harness.node(NODE, edge()).await;
    let mut agent = Agent::connect(&harness, NODE, "a", 1).await;
    let annotated = |value: Value| json!({"metadata": {"annotations": {"edge.kubeedge.io/hold-upgrade": value}}});
    apply(&harness, annotated(json!("true"))).await;
    assert!(task(&mut agent, "4").await.hold);
    patch(&harness, in_the_cloud()).await;
    let name = owned(&harness).await;
    harness.deployment_available(&name).await;
    status(&harness, "the model to be served", |s| {
        serves(s, "4") && is(s, TransitionStatus::UpToDate)
    })
    .await;
    patch(&harness, json!({"spec": {"targetVersion": "3"}})).await;
    let held =
        status(&harness, "UpgradeHeld", |s| condition(s, "Progressing").0 == "True UpgradeHeld")
            .await;
    assert!(serves(&held, "4") && held.target_version.as_deref() == Some("3"), "{held:?}");
    let generation = harness.api::<Deployment>().get(&name).await.unwrap().metadata.generation;
    assert_eq!(generation, Some(1), "nothing of it was changed");
    patch(&harness, annotated(Value::Null)).await;
    harness
        .until(&name, "the released switch", |held: &Deployment| {
            held.metadata.generation == Some(2)
        })
        .await;
    harness.deployment_available(&name).await;
    status(&harness, "the switch", |s| serves(s, "3") && is(s, TransitionStatus::UpToDate)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn download_progress_is_written_at_most_once_per_second() {
    let harness = Harness::start().await;
    harness.node(NODE, edge()).await;
    let mut agent = Agent::connect(&harness, NODE, "a", 1).await;
    let uid = apply(&harness, json!({})).await.uid().unwrap();
    task(&mut agent, "4").await;
    status(&harness, "AwaitingAgent", |s| ready(s) == "Unknown AwaitingAgent").await;
    let line = "neptune_controller_status_write_total{result=\"ok\"}";
    let (before, start) = (harness.metric(line).await, std::time::Instant::now());
    for percent in 0..=100 {
        let progress = json!({"receivedBytes": percent, "totalBytes": 100, "bytesPerSecond": 9});
        let serving =
            json!({"targetVersion": "4", "transition": "InProgress", "progress": progress});
        agent.report_serving(&key(), &uid, &serving);
        agent.flushed().await;
    }
    let percent = |s: &InferenceModelStatus| s.progress.as_ref().and_then(|p| p.percent);
    let all = |s: &InferenceModelStatus| percent(s) == Some(100);
    status(&harness, "the last one", all).await;
    let writes = harness.metric(line).await - before;
    assert!(writes <= start.elapsed().as_secs() + 2, "{writes} in {:?}", start.elapsed());
    // A report on an earlier model of that name is dropped.
    agent.report_serving(&key(), "another", &up_to_date("4"));
    let line = "neptune_controller_upstream_rejected_total{reason=\"unknown_object\"}";
    within("the dropped message", harness.until_metric(line, 1)).await;
}
