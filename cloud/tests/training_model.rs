//! A `TrainingModel` from `kubectl apply` to its output Model: the built controller with an API
//! server and a broker; the test is the agents, the kubelet, and an emulated aggregator.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use harness::{
    Agent, Harness,
    agent::pin,
    aggregator::{Aggregator, AggregatorFiles, obeyed_controller, start_pod},
    free_port,
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{PersistentVolumeClaim, Secret, Service},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use neptune_api::{Dataset, Model, TrainingModel, TrainingModelStatus, TrainingPhase};
use neptune_harness::eventually_some;
use neptune_pinned_tls::TlsKey;
use neptune_wire::{
    KeyPin, ObjectContent, ObjectKey, TaskKind, TrainingContent,
    aggregator::{ResultState, RoundWorker},
    replica::ReplicaChange,
};
use serde_json::{Value, json};

const NAME: &str = "digits";

fn key() -> ObjectKey {
    format!("default/trainingmodels/{NAME}").parse().unwrap()
}

/// Two workers on two nodes, two rounds, an evaluation on the first node.
fn spec(port: u16) -> Value {
    json!({
        "workerSpec": {"image": "train:1", "parameters": [{"key": "lr", "value": "0.1"}]},
        "trainingWorkers": [
            {"name": "a", "nodeName": "edge0", "dataset": {"name": "digits-a"}},
            {"name": "b", "nodeName": "edge1", "dataset": {"name": "digits-b"}},
        ],
        "aggregation": {"rounds": 2, "service": {"address": format!("127.0.0.1:{port}")}},
        "evaluation": {"dataset": {"name": "digits-a"}, "metric": "accuracy"},
        "output": {"model": {"name": "digits-small"}, "minImprovement": "0.005"},
    })
}

async fn apply(harness: &Harness, spec: Value) -> TrainingModel {
    let model = json!({"apiVersion": "sedna.io/v1alpha1", "kind": "TrainingModel",
        "metadata": {"name": NAME}, "spec": spec});
    let model: TrainingModel = serde_json::from_value(model).unwrap();
    harness.api().create(&PostParams::default(), &model).await.unwrap()
}

async fn patch(harness: &Harness, spec: Value) {
    let patch = Patch::Merge(json!({ "spec": spec }));
    let api = harness.api::<TrainingModel>();
    api.patch(NAME, &PatchParams::default(), &patch).await.unwrap();
}

async fn dataset(harness: &Harness, name: &str, node: &str) {
    let dataset = json!({"apiVersion": "edgeai.io/v1alpha1", "kind": "Dataset",
        "metadata": {"name": name},
        "spec": {"dataUrl": format!("/data/{name}"), "format": "csv", "nodeName": node}});
    let dataset: Dataset = serde_json::from_value(dataset).unwrap();
    harness.api().create(&PostParams::default(), &dataset).await.unwrap();
}

async fn nodes_and_datasets(harness: &Harness) {
    harness.node("edge1", json!({"node-role.kubernetes.io/edge": ""})).await;
    dataset(harness, "digits-a", "edge0").await;
    dataset(harness, "digits-b", "edge1").await;
}

async fn status(
    harness: &Harness,
    what: &str,
    expected: impl Fn(&TrainingModelStatus) -> bool + Send + Sync,
) -> TrainingModelStatus {
    let is = |model: &TrainingModel| model.status.as_ref().is_some_and(&expected);
    harness.until(NAME, what, is).await.status.unwrap()
}

/// A condition as `status reason`, and its message.
fn condition(status: &TrainingModelStatus, type_: &str) -> (String, String) {
    let condition = status.conditions.iter().find(|condition| condition.type_ == type_);
    condition.map_or_else(Default::default, |c| {
        (format!("{} {}", c.status, c.reason), c.message.clone())
    })
}

fn degraded(status: &TrainingModelStatus) -> String {
    condition(status, "Degraded").0
}

fn training(content: &ObjectContent) -> &TrainingContent {
    content.training.as_deref().unwrap()
}

/// Waits until a node has exactly these tasks, as `worker kind round`.
async fn tasks(agent: &mut Agent, expected: &[(&str, TaskKind, u32)]) -> ObjectContent {
    let is = |content: &ObjectContent| {
        content.training.as_deref().is_some_and(|training| {
            let tasks = training.tasks.iter();
            tasks
                .map(|task| (task.worker.as_str(), task.kind, task.round))
                .eq(expected.iter().copied())
        })
    };
    agent.has(&key(), &format!("the tasks {expected:?}"), is).await
}

/// A training with both agents and its aggregator, whose first weights are being made.
struct Started {
    harness: Harness,
    edge0: Agent,
    edge1: Agent,
    aggregator: Aggregator,
    key: TlsKey,
    /// The pin of the controller that the aggregator obeys.
    controller: KeyPin,
    port: u16,
}

impl Started {
    async fn new(change: impl FnOnce(&mut Value)) -> Self {
        Self::on(Harness::start().await, change).await
    }

    async fn on(harness: Harness, change: impl FnOnce(&mut Value)) -> Self {
        nodes_and_datasets(&harness).await;
        let port = free_port();
        let mut spec = spec(port);
        change(&mut spec);
        apply(&harness, spec).await;
        let mut edge0 = Agent::connect(&harness, "edge0", "a", 1).await;
        let edge1 = Agent::connect(&harness, "edge1", "b", 1).await;
        let key = TlsKey::generate();
        let controller = start_pod(&harness, &key).await;
        let files = AggregatorFiles::default();
        let aggregator = Aggregator::start(key.clone(), controller.clone(), port, files).await;
        tasks(&mut edge0, &[("a", TaskKind::Initialize, 0)]).await;
        Self { harness, edge0, edge1, aggregator, key, controller, port }
    }

    /// Starts the stopped aggregator again.
    async fn restart_aggregator(&mut self, files: AggregatorFiles) {
        let (key, controller) = (self.key.clone(), self.controller.clone());
        self.aggregator = Aggregator::start(key, controller, self.port, files).await;
    }

    fn files(&self) -> &AggregatorFiles {
        &self.aggregator.files
    }

    /// The first weights exist: both nodes have the tasks of round 1.
    async fn opened() -> Self {
        let mut started = Self::new(|_| {}).await;
        started.files().initialized();
        started.has_round(1).await;
        started
    }

    async fn has_round(&mut self, round: u32) {
        tasks(&mut self.edge0, &[("a", TaskKind::Train, round)]).await;
        tasks(&mut self.edge1, &[("b", TaskKind::Train, round)]).await;
    }

    /// Ends both rounds of the run; the last has this metric.
    async fn finish(&mut self, metric: &str) {
        self.files().finish_round("0.5");
        self.has_round(2).await;
        self.files().finish_round(metric);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn run_goes_from_apply_to_the_output_model() {
    let mut run = Started::new(|_| {}).await;
    let content = tasks(&mut run.edge0, &[("a", TaskKind::Initialize, 0)]).await;
    let sent = training(&content);
    assert_eq!((sent.run, &sent.aggregator.pin), (1, run.key.pin()));
    assert_eq!(sent.aggregator.url, format!("https://127.0.0.1:{}", run.port));
    assert_eq!(
        (&*sent.container.program.image, &*sent.container.program.env["LR"]),
        ("train:1", "0.1")
    );
    assert!(
        run.edge0.replica.objects().contains_key(&"default/datasets/digits-a".parse().unwrap())
    );
    tasks(&mut run.edge1, &[]).await;
    let request = run.files().request().unwrap();
    let keys = [("edge0".parse().unwrap(), pin("a")), ("edge1".parse().unwrap(), pin("b"))];
    assert_eq!(request.nodes, keys.into());
    assert_eq!((request.settings.rounds, request.settings.min_workers), (2, None));

    let deployment = run.harness.deployment().await;
    let name = deployment.name_any();
    let pod = deployment.spec.unwrap().template.spec.unwrap();
    assert_eq!(pod.containers[0].command.as_deref(), Some(&["neptune-aggregator".to_owned()][..]));
    assert_eq!(pod.security_context.unwrap().run_as_non_root, Some(true));
    let services = run.harness.api::<Service>();
    let service = eventually_some("the Service of the aggregator", async || {
        services.get_opt(&name).await.unwrap()
    })
    .await;
    assert_eq!(service.spec.unwrap().type_.as_deref(), Some("NodePort"));
    let volumes = run.harness.api::<PersistentVolumeClaim>();
    let volume = eventually_some("the volume of the aggregator", async || {
        volumes.get_opt(&name).await.unwrap()
    })
    .await;
    let size = &volume.spec.unwrap().resources.unwrap().requests.unwrap()["storage"];
    // 2 GiB x (2 workers + 3 kept + 4) + 256 MiB.
    assert_eq!(size.0, format!("{}Mi", 9 * 2048 + 256));

    run.files().initialized();
    run.has_round(1).await;
    let running = status(&run.harness, "round 1", |s| s.round == Some(1)).await;
    assert_eq!(running.phase, Some(TrainingPhase::Running));
    assert_eq!(running.progress.as_deref(), Some("1/2"));
    assert_eq!(running.participants.as_deref(), Some("0/2"));
    run.finish("0.943").await;
    let ended =
        status(&run.harness, "the end", |s| s.phase == Some(TrainingPhase::Succeeded)).await;
    let best = run.files().status().best.unwrap().weights.sha256;
    let model = run.harness.api::<Model>().get("digits-small").await.unwrap();
    let url = format!("http://127.0.0.1:{}/v1/content/{best}/weights.npz", run.port);
    assert_eq!((model.spec.model_url, model.spec.sha256sum), (url, Some(best.clone())));
    assert!(model.metadata.owner_references.is_none(), "it stays");
    let is_measured = |model: &Model| {
        let status = model.status.as_ref();
        status.is_some_and(|status| {
            let source = status.reported_by.as_ref();
            let data = source.and_then(|source| source.dataset.as_ref());
            status.metrics.first().is_some_and(|metric| metric.value == "0.943")
                && source.is_some_and(|source| source.object == "trainingmodels/digits")
                // No agent counted it.
                && data.is_some_and(|data| data.name == "digits-a" && data.identity().is_none())
        })
    };
    run.harness.until::<Model>("digits-small", "its metrics", is_measured).await;
    assert_eq!(ended.metrics[0].value, "0.943");
    assert_eq!(ended.history.len(), 2);
    let output = ended.output.clone().unwrap();
    assert_eq!((output.published, output.kept), (true, vec![best.clone()]));
    assert_eq!(condition(&ended, "Ready").0, "True Succeeded");
    assert_eq!(degraded(&ended), "False Succeeded");
    let last = ended.last_run.unwrap();
    assert_eq!((last.run, &*last.result, last.metric.as_deref()), (1, "Succeeded", Some("0.943")));
    for reason in ["RunStarted", "AggregatorCreated", "ModelPublished", "RunSucceeded"] {
        run.harness.event(reason).await;
    }
    let gone = |replica: &neptune_wire::Replica| !replica.objects().contains_key(&key());
    run.edge0.until("the tasks to be removed", gone).await;
    eventually_some("the weights to be kept", async || {
        run.files().request().filter(|request| request.keep == [best.clone()])
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_key_waits_until_it_is_trusted() {
    let flags = ["--namespace", "default", "--require-known-keys"];
    let mut harness = Harness::without_controller().await;
    harness.start_controller_with(&flags);
    for (node, instance) in [("edge0", "a"), ("edge1", "b")] {
        harness.neptune(&["trust", node, "--pin", &pin(instance).0]);
    }
    let mut run = Started::on(harness, |_| {}).await;
    run.files().initialized();
    run.has_round(1).await;
    let key_of = |run: &Started| {
        run.files().request().unwrap().nodes.get(&"edge0".parse().unwrap()).cloned()
    };
    assert_eq!(key_of(&run), Some(pin("a")));

    // A new data directory.
    run.edge0 = Agent::connect(&run.harness, "edge0", "c", 1).await;
    let is_waiting = |s: &TrainingModelStatus| degraded(s) == "True NodeKeyChanged";
    let waiting = status(&run.harness, "the changed key", is_waiting).await;
    let message = condition(&waiting, "Degraded").1;
    assert!(message.ends_with("is trusted: kubectl neptune trust edge0"), "{message}");
    run.harness.event("NodeKeyChanged").await;

    // The record survives the controller. The other node has the record of its first key.
    run.harness.kill_controller();
    run.edge1 = Agent::connect(&run.harness, "edge1", "d", 1).await;
    run.harness.start_controller_with(&flags);
    let both = |s: &TrainingModelStatus| {
        let reasons = s.workers.iter().filter_map(|row| row.reason.as_deref());
        reasons.filter(|reason| *reason == "NodeKeyChanged").count() == 2
    };
    status(&run.harness, "both changed keys", both).await;
    assert_eq!(key_of(&run), Some(pin("a")));

    run.harness.neptune(&["trust", "edge0"]);
    run.harness.neptune(&["trust", "edge1", "--pin", &pin("d").0]);
    status(&run.harness, "trusted keys", |s| degraded(s).starts_with("False")).await;
    eventually_some("the new keys at the aggregator", async || {
        let nodes = run.files().request().unwrap().nodes;
        nodes.values().eq(&[pin("c"), pin("d")]).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worse_weights_are_not_published_and_the_next_run_has_the_new_spec() {
    let mut run = Started::opened().await;
    patch(&run.harness, json!({"aggregation": {"seed": 7}})).await;
    let text = "the running run keeps its settings; the next run takes the new ones";
    status(&run.harness, "the note", |s| condition(s, "Progressing").1.contains(text)).await;
    run.finish("0.943").await;
    status(&run.harness, "run 2", |s| s.run == Some(2)).await;
    tasks(&mut run.edge0, &[("a", TaskKind::Initialize, 0)]).await;
    let request = run.files().request().unwrap();
    let model = run.harness.api::<Model>().get("digits-small").await.unwrap();
    let present = request.settings.evaluation.as_ref().unwrap().present.clone();
    assert_eq!((request.run, request.settings.seed), (2, 7));
    assert_eq!(present, model.spec.sha256sum);
    assert_eq!(request.keep, [present.unwrap()]);

    run.files().initialized();
    run.files().measured_present("0.943");
    run.has_round(1).await;
    run.finish("0.941").await;
    let ended =
        status(&run.harness, "the end", |s| s.last_run.as_ref().is_some_and(|last| last.run == 2))
            .await;
    let last = ended.last_run.clone().unwrap();
    assert_eq!(last.result, "NotBetter");
    assert_eq!(
        last.message.as_deref(),
        Some(
            "accuracy 0.941 does not beat 0.943 of the present model by 0.005: digits-small is left as it is"
        )
    );
    let after = run.harness.api::<Model>().get("digits-small").await.unwrap();
    // Its status has the metrics of the present weights.
    assert_eq!(after.metadata.generation, model.metadata.generation);
    assert_eq!(after.spec, model.spec);
    assert_eq!(condition(&ended, "Ready").0, "True NotBetter");
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_controller_takes_no_task_away_and_continues() {
    let mut run = Started::opened().await;
    status(&run.harness, "round 1", |s| s.round == Some(1)).await;
    run.harness.kill_controller();
    let (files, before) = (run.files().clone(), run.edge1.changes.len());
    // Without its aggregator the controller knows no task.
    run.aggregator.stop().await;
    run.harness.start_controller();
    let away = status(&run.harness, "the aggregator to be away", |s| {
        condition(s, "Degraded").1.contains("the Pod of the aggregator is not ready")
            || degraded(s) == "True AggregatorUnreachable"
    })
    .await;
    assert_eq!((away.run, away.round), (Some(1), Some(1)));
    run.restart_aggregator(files).await;
    run.finish("0.9").await;
    status(&run.harness, "the end", |s| s.phase == Some(TrainingPhase::Succeeded)).await;
    let removed = run.edge1.changes[before..]
        .iter()
        .filter(|change| matches!(change, ReplicaChange::Removed(_)))
        .count();
    assert_eq!(removed, 0, "{:?}", &run.edge1.changes[before..]);
    assert_eq!(run.files().status().run, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_task_is_given_up_with_the_reason_of_the_node() {
    let mut run = Started::opened().await;
    let content = tasks(&mut run.edge1, &[("b", TaskKind::Train, 1)]).await;
    let task = &training(&content).tasks[0];
    let message = "script ended with exit code 1 after 4 s: ModuleNotFoundError";
    run.edge1.report_training(
        &content,
        &key(),
        &json!([{"worker": "b", "id": task.id, "round": 1, "state": "Failed",
            "reason": "ScriptFailed", "message": message, "failures": 4}]),
    );
    let failed = status(&run.harness, "the failure", |s| degraded(s) == "True ScriptFailed").await;
    assert_eq!(condition(&failed, "Degraded").1, format!("worker \"b\" on node edge1: {message}"));
    assert_eq!(failed.workers[0].name, "b", "problems come first");
    let result = eventually_some("the aggregator to give up the task", async || {
        let result = run.files().status().workers.remove("b").unwrap();
        (result.state == ResultState::Failed).then_some(result)
    })
    .await;
    assert_eq!((result.reason.as_deref(), &*result.message), (Some("ScriptFailed"), message));
    run.harness.event("ScriptFailed").await;
    tasks(&mut run.edge1, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_training_leaves_the_nodes_and_its_model_stays() {
    let mut run = Started::opened().await;
    run.finish("0.9").await;
    status(&run.harness, "the end", |s| s.phase == Some(TrainingPhase::Succeeded)).await;
    patch(&run.harness, json!({"aggregation": {"seed": 2}})).await;
    tasks(&mut run.edge0, &[("a", TaskKind::Initialize, 0)]).await;
    let api = run.harness.api::<TrainingModel>();
    api.delete(NAME, &DeleteParams::background()).await.unwrap();
    let gone = |replica: &neptune_wire::Replica| !replica.objects().contains_key(&key());
    run.edge0.until("the tasks to be removed", gone).await;
    let name = run.harness.api::<Deployment>().list(&ListParams::default()).await.unwrap();
    for deployment in name.items {
        run.harness.until_gone::<Deployment>(&deployment.name_any()).await;
    }
    assert!(run.harness.api::<Model>().get_opt("digits-small").await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_volume_gets_another_key_and_starts_the_next_run() {
    let mut run = Started::opened().await;
    status(&run.harness, "round 1", |s| s.round == Some(1)).await;
    let (former, files) = (run.key.clone(), run.files().clone());
    run.aggregator.stop().await;
    files.lose();
    run.key = TlsKey::generate();
    assert_eq!(start_pod(&run.harness, &run.key).await, run.controller);
    run.restart_aggregator(files).await;
    run.harness.event("RoundRepeated").await;
    run.harness.event("AggregatorKeyChanged").await;
    let next = status(&run.harness, "run 2", |s| s.run == Some(2)).await;
    let reported = next.aggregator.unwrap().pin;
    assert_eq!(reported.as_ref(), Some(&run.key.pin().0));
    assert_ne!(former.pin(), run.key.pin());
    let content = tasks(&mut run.edge0, &[("a", TaskKind::Initialize, 0)]).await;
    let sent = training(&content);
    assert_eq!((sent.run, &sent.aggregator.pin), (2, run.key.pin()));
    assert_eq!(run.files().status().run, 2, "run 1 is not repeated under its number");
}

#[tokio::test(flavor = "multi_thread")]
async fn stranger_at_the_address_of_the_aggregator_gets_no_run() {
    let harness = Harness::start().await;
    nodes_and_datasets(&harness).await;
    let port = free_port();
    apply(&harness, spec(port)).await;
    let mut edge0 = Agent::connect(&harness, "edge0", "a", 1).await;
    let _edge1 = Agent::connect(&harness, "edge1", "b", 1).await;
    let (key, stranger) = (TlsKey::generate(), TlsKey::generate());
    // It answers before the Pod has reported its key, and obeys the same controller.
    let files = AggregatorFiles::default();
    let controller = obeyed_controller(&harness).await;
    let mut foreign = Aggregator::start(stranger, controller.clone(), port, files.clone()).await;
    start_pod(&harness, &key).await;
    let name = harness.deployment().await.name_any();
    harness.deployment_available(&name).await;
    let is_refused = |s: &TrainingModelStatus| degraded(s) == "True AggregatorUnreachable";
    let (_, message) = condition(&status(&harness, "the refusal", is_refused).await, "Degraded");
    assert!(message.contains(&format!("not the pinned {}", key.pin().0)), "{message}");
    assert_eq!(files.request(), None, "nothing was sent to the stranger");
    foreign.stop().await;
    let _own = Aggregator::start(key.clone(), controller, port, files).await;
    let content = tasks(&mut edge0, &[("a", TaskKind::Initialize, 0)]).await;
    assert_eq!(&training(&content).aggregator.pin, key.pin());
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_aggregator_is_reported_with_its_address() {
    let mut run = Started::opened().await;
    let name = run.harness.deployment().await.name_any();
    run.harness.deployment_available(&name).await;
    let files = run.files().clone();
    run.aggregator.stop().await;
    let away = status(&run.harness, "the report", |s| degraded(s) == "True AggregatorUnreachable");
    let (_, message) = condition(&away.await, "Degraded");
    assert!(message.contains(&format!("https://127.0.0.1:{}", run.port)), "{message}");
    assert!(message.contains("spec.aggregation.service.address"), "{message}");
    run.restart_aggregator(files).await;
    status(&run.harness, "the recovery", |s| degraded(s) == "False Training").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_the_key_of_the_controller() {
    let run = Started::opened().await;
    let secrets: Api<Secret> = Api::namespaced(run.harness.client.clone(), "neptune-system");
    let pem = async || {
        let secret = secrets.get("neptune-controller-key").await.unwrap();
        String::from_utf8(secret.data.unwrap()["tls.key"].0.clone()).unwrap()
    };
    let before = pem().await;
    assert_eq!(*TlsKey::from_pem(&before, "the Secret").unwrap().pin(), run.controller);
    let mut run = run;
    run.harness.kill_controller();
    run.harness.start_controller();
    run.finish("0.9").await;
    status(&run.harness, "the end", |s| s.phase == Some(TrainingPhase::Succeeded)).await;
    assert_eq!(pem().await, before);
    let own = run.harness.api::<Secret>().list(&ListParams::default()).await.unwrap();
    assert_eq!(own.items.len(), 0, "no Secret is in the namespace of the training");
    let pods = run.harness.deployment().await.metadata.generation;
    assert_eq!(pods, Some(1), "the aggregator was not replaced");
}

/// The rows of a closed round, as JSON.
fn rows(rows: Value) -> Vec<RoundWorker> {
    serde_json::from_value(rows).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn export_prints_a_row_per_worker_of_each_closed_round() {
    let mut run = Started::opened().await;
    let export = |run: &Started, object: &str| {
        run.harness.try_neptune(&["training", "export", object, "-o", "csv", "-n", "default"])
    };
    let (table, notes, is_done) = export(&run, "tm/digits");
    assert_eq!(table, "round,worker,samples,loss,norm,weight,state,reason,run\n");
    assert!(
        is_done && notes.starts_with("TrainingModel digits: no round is closed yet"),
        "{notes}"
    );

    // Worker b is refused in the first round and silent in the second.
    let accepted = |loss: f64| {
        json!({"name": "a", "state": "Accepted", "samples": 600, "loss": loss, "norm": 1.5,
            "weight": 1.0, "metrics": [{"key": "accuracy", "value": "0.9"}]})
    };
    let refused = json!({"name": "b", "state": "Refused", "samples": 40, "reason": "NotFinite"});
    let first = rows(json!([accepted(0.25), refused]));
    run.files().finish_round("0.5");
    run.files().change(|it| it.history.last_mut().unwrap().workers = first);
    run.has_round(2).await;
    let second = rows(json!([accepted(0.125), {"name": "b", "state": "Pending"}]));
    run.files().change(|it| it.history[0].omitted_workers = 7);
    run.files().finish_round("0.943");
    run.files().change(|it| it.history.last_mut().unwrap().workers = second);
    let has_rows = |s: &TrainingModelStatus| {
        s.history.len() == 2 && s.history.iter().all(|round| round.workers.len() == 2)
    };
    status(&run.harness, "the rows of both rounds", has_rows).await;
    let (table, notes, is_done) = export(&run, "digits");
    let expected = "\
round,worker,samples,loss,metric_accuracy,norm,weight,state,reason,run
1,a,600,0.25,0.9,1.5,1,Accepted,,1
1,b,40,,,,,Refused,NotFinite,1
2,a,600,0.125,0.9,1.5,1,Accepted,,1
2,b,,,,,,Absent,,1
";
    assert_eq!((&*table, is_done), (expected, true));
    let note = "TrainingModel digits: round 1 of run 1 is truncated: 7 more workers have no row\n";
    assert_eq!(notes, note);

    let (table, error, is_done) = export(&run, "tm/unknown");
    assert_eq!((&*table, is_done), ("", false));
    assert!(error.contains("get TrainingModel default/unknown: "), "{error}");
}

/// Grants the controller, a `ServiceAccount`, these resources of these groups.
async fn grant(harness: &Harness, name: &str, groups: Value, resources: Value) {
    let metadata = json!({ "name": name });
    let rules = json!([{"apiGroups": groups, "resources": resources, "verbs": ["*"]}]);
    let role: ClusterRole =
        serde_json::from_value(json!({"metadata": metadata, "rules": rules})).unwrap();
    let binding: ClusterRoleBinding = serde_json::from_value(json!({"metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "cloud", "namespace": "neptune-system"}]}))
    .unwrap();
    let params = PostParams::default();
    Api::all(harness.client.clone()).create(&params, &role).await.unwrap();
    Api::all(harness.client.clone()).create(&params, &binding).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_stop_no_aggregator_and_are_noticed_once_granted() {
    let mut run = Started::opened().await;
    status(&run.harness, "round 1", |s| s.round == Some(1)).await;
    run.harness.kill_controller();
    let own = json!(["neptune.io", "sedna.io", "edgeai.io", "apps", "events.k8s.io"]);
    grant(&run.harness, "own", own, json!(["*"])).await;
    let core = json!(["nodes", "pods", "services", "endpoints", "configmaps", "secrets"]);
    grant(&run.harness, "core", json!([""]), core).await;
    run.harness.act_as("system:serviceaccount:neptune-system:cloud");
    let before = run.edge1.changes.len();
    run.harness.start_controller_with(&["--service-account", "cloud"]);
    let missing = |s: &TrainingModelStatus| degraded(s) == "True RoleBindingMissing";
    let (_, message) = condition(&status(&run.harness, "the finding", missing).await, "Degraded");
    assert!(
        message.ends_with(
            "kubectl -n default create rolebinding neptune-training --clusterrole=neptune-training --serviceaccount=neptune-system:cloud"
        ),
        "{message}"
    );
    assert_eq!(run.harness.deployment().await.metadata.generation, Some(1), "it stays");
    grant(&run.harness, "volumes", json!([""]), json!(["persistentvolumeclaims"])).await;
    run.finish("0.9").await;
    status(&run.harness, "the end", |s| s.phase == Some(TrainingPhase::Succeeded)).await;
    let removed = |change: &&ReplicaChange| matches!(change, ReplicaChange::Removed(_));
    assert_eq!(run.edge1.changes[before..].iter().filter(removed).count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_dataset_and_taken_output_are_findings_until_corrected() {
    let harness = Harness::start().await;
    harness.node("edge1", json!({"node-role.kubernetes.io/edge": ""})).await;
    dataset(&harness, "digits-a", "edge0").await;
    apply(&harness, spec(free_port())).await;
    let missing = status(&harness, "the finding", |s| degraded(s) == "True DatasetNotFound").await;
    let (_, message) = condition(&missing, "Degraded");
    let text = "Dataset digits-b does not exist; create it, or the run starts without it at ";
    assert!(message.starts_with(text), "{message}");
    assert_eq!((missing.phase, missing.run), (Some(TrainingPhase::Pending), None));
    let model = json!({"apiVersion": "edgeai.io/v1alpha1", "kind": "Model",
        "metadata": {"name": "digits-small", "annotations": {"neptune.io/trainingmodel": "other"}},
        "spec": {}});
    let model: Model = serde_json::from_value(model).unwrap();
    harness.api().create(&PostParams::default(), &model).await.unwrap();
    dataset(&harness, "digits-b", "edge1").await;
    let taken = status(&harness, "the conflict", |s| degraded(s) == "True OutputConflict").await;
    let text = "Model \"digits-small\" belongs to TrainingModel \"other\"; name another output";
    let (_, message) = condition(&taken, "Degraded");
    assert!(message.starts_with(text), "{message}");
    patch(&harness, json!({"output": {"model": {"name": "digits-other"}}})).await;
    status(&harness, "the run", |s| s.run == Some(1)).await;
}
