//! A `TrainingModel` whose aggregator runs on a node: the built controller with an API server and a
//! broker; the test is the agents, and the aggregator behind one of them.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use harness::{Agent, Harness, aggregator::AggregatorFiles};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Secret};
use kube::api::{DeleteParams, ListParams, PostParams};
use neptune_api::{Dataset, Model, TrainingModel, TrainingModelStatus, TrainingPhase};
use neptune_wire::{AggregatorContent, ObjectContent, ObjectKey, TaskKind};
use serde_json::json;

const NAME: &str = "digits";
const ADDRESS: &str = "192.0.2.9:8500";

fn key() -> ObjectKey {
    format!("default/trainingmodels/{NAME}").parse().unwrap()
}

async fn status(
    harness: &Harness,
    what: &str,
    expected: impl Fn(&TrainingModelStatus) -> bool + Send + Sync,
) -> TrainingModelStatus {
    let is = |model: &TrainingModel| model.status.as_ref().is_some_and(&expected);
    harness.until(NAME, what, is).await.status.unwrap()
}

/// The message of `Degraded`, if it has this status and reason.
fn degraded(status: &TrainingModelStatus, expected: &str) -> Option<String> {
    let condition = status.conditions.iter().find(|condition| condition.type_ == "Degraded")?;
    (format!("{} {}", condition.status, condition.reason) == expected)
        .then(|| condition.message.clone())
}

/// Two workers on two nodes, two rounds; the aggregator is on the first node.
struct Started {
    harness: Harness,
    edge0: Agent,
    edge1: Agent,
    files: AggregatorFiles,
    pin: String,
}

impl Started {
    async fn new() -> Self {
        let harness = Harness::start().await;
        harness.node("edge1", json!({"node-role.kubernetes.io/edge": ""})).await;
        for (name, node) in [("digits-a", "edge0"), ("digits-b", "edge1")] {
            let dataset = json!({"apiVersion": "edgeai.io/v1alpha1", "kind": "Dataset",
                "metadata": {"name": name},
                "spec": {"dataUrl": format!("/data/{name}"), "format": "csv", "nodeName": node}});
            let dataset: Dataset = serde_json::from_value(dataset).unwrap();
            harness.api().create(&PostParams::default(), &dataset).await.unwrap();
        }
        let model = json!({"apiVersion": "sedna.io/v1alpha1", "kind": "TrainingModel",
        "metadata": {"name": NAME}, "spec": {
            "workerSpec": {"image": "train:1"},
            "trainingWorkers": [
                {"name": "a", "nodeName": "edge0", "dataset": {"name": "digits-a"}},
                {"name": "b", "nodeName": "edge1", "dataset": {"name": "digits-b"}},
            ],
            "aggregation": {"rounds": 2, "nodeName": "edge0", "service": {"address": ADDRESS}},
            "output": {"model": {"name": "digits-small"}},
        }});
        let model: TrainingModel = serde_json::from_value(model).unwrap();
        harness.api().create(&PostParams::default(), &model).await.unwrap();
        let edge0 = Agent::connect(&harness, "edge0", "a", 1).await;
        let edge1 = Agent::connect(&harness, "edge1", "b", 1).await;
        let (files, pin) = (AggregatorFiles::default(), format!("sha256:{}", "0".repeat(64)));
        Self { harness, edge0, edge1, files, pin }
    }

    /// Waits until the node has an aggregator that matches.
    async fn aggregator(
        &mut self,
        what: &str,
        matches: impl Fn(&AggregatorContent) -> bool,
    ) -> (ObjectContent, AggregatorContent) {
        let is = |content: &ObjectContent| content.aggregator.as_deref().is_some_and(&matches);
        let content = self.edge0.has(&key(), what, is).await;
        let aggregator = *content.aggregator.clone().unwrap();
        (content, aggregator)
    }

    /// Sends this run to the aggregator, as the agent does.
    async fn begin(&mut self, run: u32) {
        let is = |it: &AggregatorContent| {
            it.may_start && it.request.as_ref().is_some_and(|request| request.run == run)
        };
        let (content, aggregator) = self.aggregator(&format!("run {run}"), is).await;
        self.files.receive(&aggregator.request.unwrap());
        self.report(&content);
    }

    fn report(&mut self, content: &ObjectContent) {
        let report = json!({"pin": self.pin, "state": self.files.status()});
        self.edge0.report_aggregator(content, &key(), &report);
    }

    /// Reports the state, and waits until the nodes have the tasks of this round.
    async fn opens(&mut self, content: &ObjectContent, round: u32) {
        self.report(content);
        for (agent, worker) in [(&mut self.edge0, "a"), (&mut self.edge1, "b")] {
            let is = |content: &ObjectContent| {
                content.training.as_deref().is_some_and(|training| {
                    let mut tasks = training.tasks.iter();
                    tasks.any(|task| (task.round, &*task.worker) == (round, worker))
                })
            };
            let content = agent.has(&key(), &format!("round {round}"), is).await;
            let training = content.training.unwrap();
            assert_eq!(training.aggregator.url, format!("https://{ADDRESS}"));
            assert_eq!(training.aggregator.pin.0, self.pin);
        }
    }

    async fn opened() -> (Self, ObjectContent) {
        let mut started = Self::new().await;
        started.begin(1).await;
        let is = |content: &ObjectContent| {
            let tasks = content.training.as_deref().map(|training| &training.tasks);
            tasks.is_some_and(|tasks| tasks.iter().any(|task| task.kind == TaskKind::Initialize))
        };
        let content = started.edge0.has(&key(), "the first weights to be made", is).await;
        started.files.initialized();
        started.opens(&content, 1).await;
        (started, content)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn run_on_a_node_goes_from_apply_to_the_output_model() {
    let (mut run, content) = Started::opened().await;
    let (_, aggregator) = run.aggregator("the acceptance", |it| !it.may_start).await;
    assert_eq!((aggregator.port, aggregator.request.unwrap().nodes.len()), (8500, 2));
    run.files.finish_round("0.5");
    run.opens(&content, 2).await;
    run.files.finish_round("0.9");
    run.report(&content);
    let ended = status(&run.harness, "the end", |s| s.phase == Some(TrainingPhase::Succeeded));
    let aggregator = ended.await.aggregator.unwrap();
    assert_eq!(aggregator.node.as_deref(), Some("edge0"));
    assert_eq!(aggregator.pin.as_ref(), Some(&run.pin));
    let model = run.harness.api::<Model>().get("digits-small").await.unwrap();
    let url = model.spec.model_url;
    assert!(url.starts_with(&format!("http://{ADDRESS}/v1/content/")), "{url}");
    let all = ListParams::default();
    assert!(run.harness.api::<Deployment>().list(&all).await.unwrap().items.is_empty());
    assert!(run.harness.api::<Secret>().list(&all).await.unwrap().items.is_empty());
    let (_, kept) = run
        .aggregator("the published weights to be kept", |it| {
            it.request.as_ref().is_some_and(|request| !request.keep.is_empty())
        })
        .await;
    assert!(!kept.may_start, "the run is over");

    let api = run.harness.api::<TrainingModel>();
    api.delete(NAME, &DeleteParams::background()).await.unwrap();
    let gone = |replica: &neptune_wire::Replica| !replica.objects().contains_key(&key());
    run.edge0.until("the aggregator to be removed", gone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_directory_of_the_node_starts_the_next_run() {
    let (mut run, content) = Started::opened().await;
    status(&run.harness, "round 1", |s| s.round == Some(1)).await;
    run.files.lose();
    run.pin = format!("sha256:{}", "1".repeat(64));
    run.report(&content);
    run.harness.event("RoundRepeated").await;
    run.begin(2).await;
    status(&run.harness, "run 2", |s| s.run == Some(2)).await;
    let is = |content: &ObjectContent| {
        content.training.as_deref().is_some_and(|it| it.run == 2 && it.aggregator.pin.0 == run.pin)
    };
    run.edge0.has(&key(), "the tasks of run 2", is).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn problem_of_the_node_is_a_condition_until_it_is_corrected() {
    let (mut run, content) = Started::opened().await;
    let problem =
        json!({"reason": "ContainerRefused", "detail": "the container ended with exit code 1"});
    let report = json!({"pin": run.pin, "state": run.files.status(), "problem": problem});
    run.edge0.report_aggregator(&content, &key(), &report);
    let is = |s: &TrainingModelStatus| degraded(s, "True ContainerRefused").is_some();
    let failed = status(&run.harness, "the problem", is).await;
    assert_eq!(
        degraded(&failed, "True ContainerRefused").unwrap(),
        "aggregator on node edge0: the container ended with exit code 1"
    );
    run.report(&content);
    status(&run.harness, "the recovery", |s| degraded(s, "False Training").is_some()).await;
}
