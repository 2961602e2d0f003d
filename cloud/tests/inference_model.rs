//! An `InferenceModel` from `kubectl apply` to its end: the built controller against an API server and
//! a broker, with the test as the agents and as the kubelet.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one future and waits on its own.
#![allow(clippy::large_futures)]

mod bed;

use bed::{Agent, Bed, soon};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use kube::{
    ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use neptune_api::{InferenceModel, InferenceModelStatus, TransitionStatus};
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

/// Makes the sample, changed by a merge patch.
async fn apply(bed: &Bed, change: Value) -> InferenceModel {
    let sample: InferenceModel = serde_saphyr::from_str(SAMPLE).unwrap();
    bed.api().create(&PostParams::default(), &sample).await.unwrap();
    patch(bed, change).await
}

async fn patch(bed: &Bed, change: Value) -> InferenceModel {
    let params = PatchParams::default();
    bed.api().patch(NAME, &params, &Patch::Merge(&change)).await.unwrap()
}

/// In the cloud, on no node of its own.
fn in_the_cloud() -> Value {
    json!({"spec": {"deployToLayer": "cloud", "nodeName": null, "nodeSelector": null}})
}

async fn status(
    bed: &Bed,
    what: &str,
    wished: impl Fn(&InferenceModelStatus) -> bool + Send + Sync,
) -> InferenceModelStatus {
    let is = |model: &InferenceModel| model.status.as_ref().is_some_and(&wished);
    bed.until(NAME, what, is).await.status.unwrap()
}

fn is(status: &InferenceModelStatus, transition: TransitionStatus) -> bool {
    status.transition_status == Some(transition)
}

fn serves(status: &InferenceModelStatus, version: &str) -> bool {
    status.serving_version.as_deref() == Some(version)
}

/// A condition as `status reason`, and its message.
fn condition(status: &InferenceModelStatus, type_: &str) -> (String, String) {
    let found = status.conditions.iter().find(|condition| condition.type_ == type_);
    found.map_or_else(Default::default, |c| {
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
    agent.until("the task is gone", |replica| replica.objects().is_empty()).await;
}

async fn owned(bed: &Bed) -> String {
    bed.deployment().await.name_any()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sample_waits_for_its_node_is_served_switches_returns_and_goes() {
    let bed = Bed::start().await;
    let model = apply(&bed, json!({})).await;
    let uid = model.uid().unwrap();
    let waiting = status(&bed, "its node is missed", |s| ready(s) == "False NodeNotFound").await;
    assert!(is(&waiting, TransitionStatus::Pending));
    assert!(condition(&waiting, "Degraded").1.contains("let the node join"), "{waiting:?}");

    bed.node(NODE, edge()).await;
    bed.node_address(NODE, "192.0.2.7").await;
    let mut agent = Agent::connect(&bed, NODE, "a", 1).await;
    let serving = task(&mut agent, "4").await;
    assert_eq!((serving.port, &*serving.model_name, serving.hold), (8501, NAME, false));
    status(&bed, "the agent is awaited", |s| ready(s) == "Unknown AwaitingAgent").await;

    let progress = |bytes: u64| {
        json!({"targetVersion": "4", "transition": "InProgress", "message": "fetching",
               "progress": {"receivedBytes": bytes, "totalBytes": 200, "bytesPerSecond": 10}})
    };
    agent.report_serving(&key(), &uid, &progress(50));
    let coming = status(&bed, "the download is shown", |s| s.progress.is_some()).await;
    assert_eq!(coming.progress.as_ref().unwrap().summary, "25% of 200 B, 10 B/s");
    assert_eq!(condition(&coming, "Progressing").0, "True ModelDownloading");

    let full = json!({"targetVersion": "4", "transition": "InProgress", "trouble": "DiskFull",
                      "message": "downloading 4: 7 bytes of disk space are missing"});
    agent.report_serving(&key(), &uid, &full);
    let is_full = |s: &InferenceModelStatus| condition(s, "Degraded").0 == "True DiskFull";
    let full = status(&bed, "the disk is full", is_full).await;
    assert!(condition(&full, "Degraded").1.contains("7 bytes of disk space are missing"));

    agent.report_serving(&key(), &uid, &up_to_date("4"));
    let served = status(&bed, "it is served", |s| is(s, TransitionStatus::UpToDate)).await;
    assert!(serves(&served, "4") && ready(&served) == "True Serving");
    assert_eq!((served.progress, served.ready_replicas), (None, Some(1)));
    assert_eq!(
        (served.node.as_deref(), served.url.as_deref()),
        (Some(NODE), Some("http://192.0.2.7:8501"))
    );

    patch(&bed, json!({"spec": {"targetVersion": "3"}})).await;
    task(&mut agent, "3").await;
    let wanted =
        status(&bed, "another is wanted", |s| s.target_version.as_deref() == Some("3")).await;
    assert!(serves(&wanted, "4") && is(&wanted, TransitionStatus::InProgress), "{wanted:?}");
    assert_eq!(ready(&wanted), "True Serving", "what serves goes on");
    agent.report_serving(&key(), &uid, &json!({"targetVersion": "3", "transition": "InProgress"}));
    status(&bed, "it is tried", |s| s.serving_version.is_none()).await;
    let failed = json!({
        "servingVersion": "4", "targetVersion": "3", "transition": "BlockedByFailedLoad",
        "message": "3 failed; returned to 4", "lastGoodVersion": "4",
        "lastFailure": {"version": "3", "reason": "HealthCheckFailed", "message": "404", "time": "2026-01-02T03:04:05Z"},
    });
    agent.report_serving(&key(), &uid, &failed);
    let blocked = status(&bed, "it failed", |s| is(s, TransitionStatus::BlockedByFailedLoad)).await;
    assert!(serves(&blocked, "4") && ready(&blocked) == "True Serving");
    assert_eq!(
        condition(&blocked, "Degraded"),
        ("True LoadFailed".into(), "3 failed; returned to 4".into())
    );
    assert_eq!(blocked.last_failure.unwrap().reason, "HealthCheckFailed");
    for reason in ["NodeNotFound", "DownloadStarted", "DiskFull", "SwitchCommitted", "RolledBack"] {
        bed.event(reason).await;
    }

    bed.api::<InferenceModel>().delete(NAME, &DeleteParams::default()).await.unwrap();
    until_no_task(&mut agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_cloud_a_deployment_serves_and_each_layer_leaves_nothing_of_the_other() {
    let bed = Bed::start().await;
    bed.node(NODE, edge()).await;
    bed.node_address("solar-corona-cloud", "192.0.2.9").await;
    let mut agent = Agent::connect(&bed, NODE, "a", 1).await;
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
    let uid = apply(&bed, in_the_cloud()).await.uid().unwrap();
    let name = owned(&bed).await;
    bed.api().create(&PostParams::default(), &theirs).await.unwrap();
    status(&bed, "the Pod is awaited", |s| ready(s) == "False ServerStarting").await;
    bed.deployment_available(&name).await;
    let served = status(&bed, "it is served", |s| serves(s, "4")).await;
    assert!(is(&served, TransitionStatus::UpToDate));
    let service = bed.api::<Service>().get(&name).await.unwrap();
    let port = service.spec.unwrap().ports.unwrap()[0].node_port.unwrap();
    let url = format!("http://192.0.2.9:{port}");
    status(&bed, "its URL", |s| s.url.as_deref() == Some(&url)).await;

    patch(&bed, json!({"spec": {"targetVersion": "3"}})).await;
    let next =
        status(&bed, "another is wanted", |s| s.target_version.as_deref() == Some("3")).await;
    assert!(serves(&next, "4"), "until the Deployment says otherwise: {next:?}");
    let is_3 = |deployment: &Deployment| {
        let template = &deployment.spec.as_ref().unwrap().template;
        let labels = template.metadata.as_ref().unwrap().labels.as_ref().unwrap();
        labels["neptune.io/model-version"] == "3"
    };
    bed.until(&name, "its template", is_3).await;
    bed.deployment_available(&name).await;
    status(&bed, "it is switched", |s| serves(s, "3") && is(s, TransitionStatus::UpToDate)).await;

    patch(&bed, json!({"spec": {"serviceType": "ClusterIP", "replicas": 0}})).await;
    let url = format!("http://{name}.default.svc:8501");
    status(&bed, "inside only", |s| s.url.as_deref() == Some(&url)).await;

    patch(&bed, json!({"spec": {"deployToLayer": "edge", "nodeName": NODE}})).await;
    task(&mut agent, "3").await;
    bed.until_gone::<Deployment>(&name).await;
    bed.until_gone::<Service>(&name).await;
    agent.report_serving(&key(), &uid, &up_to_date("3"));
    status(&bed, "the edge serves", |s| s.node.as_deref() == Some(NODE) && serves(s, "3")).await;

    patch(&bed, in_the_cloud()).await;
    until_no_task(&mut agent).await;
    bed.until(&name, "the Deployment is back", |_: &Deployment| true).await;
    let back = status(&bed, "the cloud again", |s| s.node.is_none()).await;
    assert!(back.serving_version.is_none(), "{back:?}");
    bed.api::<InferenceModel>().delete(NAME, &DeleteParams::default()).await.unwrap();
    // What was being written when its owner went comes once more, and goes for want of an owner.
    let left = || async {
        let left = bed.api::<Deployment>().list(&ListParams::default()).await.unwrap();
        left.items.iter().map(kube::ResourceExt::name_any).collect::<Vec<_>>()
    };
    soon("only theirs is left", async {
        while left().await != ["theirs"] {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    })
    .await;
    bed.until_gone::<Service>(&name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_spec_and_a_killed_controller_take_nothing_from_a_node() {
    let mut bed = Bed::start().await;
    bed.node(NODE, edge()).await;
    let mut agent = Agent::connect(&bed, NODE, "a", 1).await;
    let uid = apply(&bed, json!({})).await.uid().unwrap();
    task(&mut agent, "4").await;
    agent.report_serving(&key(), &uid, &up_to_date("4"));
    status(&bed, "it is served", |s| is(s, TransitionStatus::UpToDate)).await;

    patch(&bed, json!({"spec": {"servingPort": null, "frameworkType": "tensorfow"}})).await;
    let wrong = status(&bed, "it is wrong", |s| is(s, TransitionStatus::InvalidSpec)).await;
    let (word, message) = condition(&wrong, "Degraded");
    assert_eq!(word, "True ServingPortInvalid");
    assert!(
        message.contains("spec.servingPort is missing")
            && message.contains("\"tensorfow\" has no model server"),
        "{message}"
    );
    assert!(serves(&wrong, "4") && ready(&wrong) == "True Serving");
    bed.event("ServingPortInvalid").await;

    bed.kill_controller();
    bed.start_controller();
    let index = agent.replica.sync(neptune_wire::AgentInstance("a".into()), 1).index_revision;
    agent.sync();
    let newer = |replica: &neptune_wire::Replica| {
        replica.sync(neptune_wire::AgentInstance("a".into()), 1).index_revision > index
    };
    agent.until("the new controller's index", newer).await;
    assert!(agent.replica.objects().contains_key(&key()), "it is kept");

    let right = json!({"servingPort": 8502, "frameworkType": "tensorflow", "targetVersion": "3"});
    patch(&bed, json!({ "spec": right })).await;
    assert_eq!(task(&mut agent, "3").await.port, 8502);
    status(&bed, "it heals", |s| !is(s, TransitionStatus::InvalidSpec)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_pick_one_node_and_the_choice_stays() {
    let bed = Bed::start().await;
    let labels = |area: &str| json!({"node-role.kubernetes.io/edge": "", "area": area});
    bed.node("edge1", labels("north")).await;
    bed.node("edge2", labels("north")).await;
    let select = json!({"spec": {"nodeName": null, "nodeSelector": {"kubernetes.io/hostname": null, "area": "north"}}});
    apply(&bed, select).await;
    let several = status(&bed, "several", |s| ready(s) == "False NodeAmbiguous").await;
    assert!(condition(&several, "Ready").1.contains("(edge1, edge2)"), "{several:?}");
    bed.node("edge1", labels("south")).await;
    let mut agent = Agent::connect(&bed, "edge2", "a", 1).await;
    task(&mut agent, "4").await;
    status(&bed, "one is picked", |s| s.node.as_deref() == Some("edge2")).await;
    bed.node("edge1", labels("north")).await;
    bed.node("edge0", labels("north")).await;
    patch(&bed, json!({"spec": {"targetVersion": "3"}})).await;
    task(&mut agent, "3").await;
    let still = status(&bed, "it stays", |s| s.target_version.as_deref() == Some("3")).await;
    assert_eq!(still.node.as_deref(), Some("edge2"));
    bed.node("edge0", edge()).await;
    bed.node("edge2", labels("south")).await;
    status(&bed, "it moves", |s| s.node.as_deref() == Some("edge1")).await;
    until_no_task(&mut agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_s_node_of_the_cloud_serves_as_one_of_the_edge() {
    let bed = Bed::start().await;
    bed.node("solar-corona-cloud", json!({"neptune.io/runtime": "agent"})).await;
    let mut agent = Agent::connect(&bed, "solar-corona-cloud", "a", 1).await;
    let change = json!({"spec": {"deployToLayer": "cloud", "nodeName": "solar-corona-cloud", "image": "mine:1"}});
    let uid = apply(&bed, change).await.uid().unwrap();
    let image =
        |held: &neptune_wire::ObjectContent| held.serving.as_ref().unwrap().image == "mine:1";
    let serving = agent.has(&key(), "the image", image).await.serving.unwrap();
    assert_eq!(serving.model, None);
    agent.report_serving(&key(), &uid, &up_to_date("mine:1"));
    let served = status(&bed, "it is served", |s| is(s, TransitionStatus::UpToDate)).await;
    assert_eq!(
        (served.target_version, served.node.as_deref()),
        (Some("mine:1".into()), Some("solar-corona-cloud"))
    );
    patch(&bed, json!({"spec": {"image": ""}})).await;
    task(&mut agent, "4").await;
    assert!(bed.api::<Deployment>().list(&ListParams::default()).await.unwrap().items.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_somebody_else_has_is_never_taken_over() {
    let mut bed = Bed::start().await;
    apply(&bed, in_the_cloud()).await;
    let ours = bed.deployment().await;
    let name = ours.name_any();
    bed.kill_controller();
    bed.api::<Deployment>().delete(&name, &DeleteParams::background()).await.unwrap();
    bed.until_gone::<Deployment>(&name).await;
    let mut theirs = ours.clone();
    theirs.metadata = kube::api::ObjectMeta { name: Some(name.clone()), ..Default::default() };
    theirs.status = None;
    let theirs = bed.api::<Deployment>().create(&PostParams::default(), &theirs).await.unwrap();
    bed.start_controller();
    let taken =
        status(&bed, "the name is taken", |s| condition(s, "Degraded").0 == "True NameTaken").await;
    assert!(condition(&taken, "Degraded").1.contains(&format!("Deployment default/{name}")));
    let after = bed.api::<Deployment>().get(&name).await.unwrap();
    assert_eq!(after.resource_version(), theirs.resource_version());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_models_on_one_port_of_a_node_the_older_one_is_served() {
    let bed = Bed::start().await;
    bed.node(NODE, edge()).await;
    let mut agent = Agent::connect(&bed, NODE, "a", 1).await;
    apply(&bed, json!({})).await;
    task(&mut agent, "4").await;
    let mut other: InferenceModel = serde_saphyr::from_str(SAMPLE).unwrap();
    other.metadata.name = Some("zz-other".to_owned());
    // A second is the finest that a creation's time tells.
    let first = bed.api::<InferenceModel>().get(NAME).await.unwrap().metadata.creation_timestamp;
    soon("a later second", async {
        while k8s_openapi::jiff::Timestamp::now().as_second()
            <= first.as_ref().unwrap().0.as_second()
        {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    bed.api().create(&PostParams::default(), &other).await.unwrap();
    let taken = |model: &InferenceModel| {
        model.status.as_ref().is_some_and(|s| ready(s) == "False ServingPortTaken")
    };
    let status = bed.until("zz-other", "the port is taken", taken).await.status.unwrap();
    let message = condition(&status, "Ready").1;
    assert!(
        message
            .contains("8501 of node precision-5820 is InferenceModel default/facialexpression's"),
        "{message}"
    );
    let patch = json!({"spec": {"servingPort": 8502}});
    let params = PatchParams::default();
    bed.api::<InferenceModel>().patch("zz-other", &params, &Patch::Merge(&patch)).await.unwrap();
    agent.until("both", |replica| replica.objects().len() == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_annotation_holds_a_switch_on_a_node_and_in_the_cloud() {
    let bed = Bed::start().await;
    bed.node(NODE, edge()).await;
    let mut agent = Agent::connect(&bed, NODE, "a", 1).await;
    let annotated = |value: Value| json!({"metadata": {"annotations": {"edge.kubeedge.io/hold-upgrade": value}}});
    apply(&bed, annotated(json!("true"))).await;
    assert!(task(&mut agent, "4").await.hold);
    patch(&bed, in_the_cloud()).await;
    let name = owned(&bed).await;
    bed.deployment_available(&name).await;
    status(&bed, "it is served", |s| serves(s, "4") && is(s, TransitionStatus::UpToDate)).await;
    patch(&bed, json!({"spec": {"targetVersion": "3"}})).await;
    let held = status(&bed, "held", |s| condition(s, "Progressing").0 == "True UpgradeHeld").await;
    assert!(serves(&held, "4") && held.target_version.as_deref() == Some("3"), "{held:?}");
    let generation = bed.api::<Deployment>().get(&name).await.unwrap().metadata.generation;
    assert_eq!(generation, Some(1), "nothing of it was changed");
    patch(&bed, annotated(Value::Null)).await;
    bed.until(&name, "let go", |held: &Deployment| held.metadata.generation == Some(2)).await;
    bed.deployment_available(&name).await;
    status(&bed, "it is switched", |s| serves(s, "3") && is(s, TransitionStatus::UpToDate)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_s_progress_is_written_at_most_once_a_second() {
    let bed = Bed::start().await;
    bed.node(NODE, edge()).await;
    let mut agent = Agent::connect(&bed, NODE, "a", 1).await;
    let uid = apply(&bed, json!({})).await.uid().unwrap();
    task(&mut agent, "4").await;
    status(&bed, "the agent is awaited", |s| ready(s) == "Unknown AwaitingAgent").await;
    let line = "neptune_controller_status_write_total{result=\"Ok\"}";
    let (before, start) = (bed.metric(line).await, std::time::Instant::now());
    for percent in 0..=100 {
        let progress = json!({"receivedBytes": percent, "totalBytes": 100, "bytesPerSecond": 9});
        let serving =
            json!({"targetVersion": "4", "transition": "InProgress", "progress": progress});
        agent.report_serving(&key(), &uid, &serving);
        agent.flushed().await;
    }
    let percent = |s: &InferenceModelStatus| s.progress.as_ref().and_then(|p| p.percent);
    let all = |s: &InferenceModelStatus| percent(s) == Some(100);
    status(&bed, "the last one", all).await;
    let writes = bed.metric(line).await - before;
    assert!(writes <= start.elapsed().as_secs() + 2, "{writes} in {:?}", start.elapsed());
    // What another model of that name is said to do is nothing to this one.
    agent.report_serving(&key(), "another", &up_to_date("4"));
    let line = "neptune_controller_upstream_rejected_total{reason=\"UnknownObject\"}";
    soon("it is dropped", bed.until_metric(line, 1)).await;
}
