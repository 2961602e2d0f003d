//! Joint inference without code: gateways in front of real model servers, with each kind of cloud
//! that Neptune runs itself.

use std::process::Command;

use digits::{
    model::{Model, label},
    model_file,
    samples::{Sample, held_out},
};
use neptune_api::{JisConditionType, JointInferenceServiceStatus};
use neptune_e2e::{Fleet, GATEWAY_IMAGE, Transport, is_running, totals};
use neptune_harness::{
    docker::require_image,
    eventually_async, eventually_some, free_port, within,
    workspace::{root, run},
};
use neptune_wire::Counters;
use serde_json::Value;
use three_resources::{
    client::{Answer, Client},
    evaluate::{Targets, evaluate},
    protocol::{InferRequest, Wanted},
    source::Source,
};
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    digits::models_manifest,
    serving::{CLOUD, EDGE, IMAGE, apply, apply_frameworks, client, models, serves, switch},
};

over_each_transport!(
    two_inference_models_infer_jointly_without_code,
    servers_at_edge_and_in_cloud_keep_the_upload_ratio,
    chain_of_gateways_counts_exactly_in_each_service,
);

fn require_images() {
    require_image(IMAGE, "hack/build-model-server-image.sh");
    require_image(GATEWAY_IMAGE, "hack/build-gateway-image.sh");
}

/// A manifest of a service, with a port for its gateway.
pub fn service_manifest(fleet: &Fleet, path: &str) -> String {
    let namespace = format!("namespace: {}", fleet.namespace);
    let gateway = format!("spec:\n  gateway: {{port: {}}}\n", free_port());
    fleet.manifest(path, &[("namespace: default", &namespace), ("spec:\n", &gateway)])
}

/// Samples that a gateway answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Answers {
    pub all: u64,
    /// Samples that the cloud answered.
    pub cloud: u64,
}

impl Answers {
    fn count(&mut self, answer: &Answer) {
        let sources = answer.sources.as_deref().expect("a gateway names who answered");
        let is_cloud = |source: &&Source| **source == Source::Cloud;
        self.all += u64::try_from(sources.len()).unwrap();
        self.cloud += u64::try_from(sources.iter().filter(is_cloud).count()).unwrap();
    }
}

impl std::ops::AddAssign for Answers {
    fn add_assign(&mut self, other: Self) {
        self.all += other.all;
        self.cloud += other.cloud;
    }
}

/// Waits until the service runs and its gateway answers. Returns a client of the gateway, and its
/// first answer.
pub async fn running(fleet: &Fleet, name: &str, model: &str) -> (Client, Answers) {
    let has_url =
        |status: &JointInferenceServiceStatus| is_running(status) && url(status).is_some();
    let status = fleet.until(name, "running with an address", has_url).await;
    let client = Client::new(url(&status).unwrap(), model).unwrap();
    // The container runs before the gateway listens.
    let first = eventually_some("the first answer of the gateway", async || {
        client.infer(&[held_out()[0].pixels]).await.ok()
    })
    .await;
    let mut answers = Answers::default();
    answers.count(&first);
    (client, answers)
}

fn url(status: &JointInferenceServiceStatus) -> Option<&str> {
    status.gateway.as_ref()?.url.as_deref()
}

/// Waits until the status counts exactly these answers, and returns the totals.
async fn counted(fleet: &Fleet, name: &str, answers: Answers) -> Counters {
    let is_exact = |status: &JointInferenceServiceStatus| {
        let Counters { inference, hard, .. } = totals(status);
        is_running(status) && Answers { all: inference, cloud: hard } == answers
    };
    let status = fleet.until(name, &format!("exactly {answers:?}"), is_exact).await;
    totals(&status)
}

/// A client of the server of an `InferenceModel`, once it serves this version.
async fn server(fleet: &Fleet, name: &str, version: &str, model: &str) -> Client {
    let status = fleet.until_model(name, &format!("serving {version}"), serves(version)).await;
    client(&status, model)
}

/// Requests of one sample without a pause, until it ends.
pub struct Load {
    edge_versions: watch::Receiver<Vec<String>>,
    task: JoinHandle<(Answers, Vec<String>)>,
}

impl Load {
    pub fn on(client: Client) -> Self {
        let (seen, edge_versions) = watch::channel(Vec::<String>::new());
        let task = tokio::spawn(async move {
            let (mut answers, mut failures) = (Answers::default(), Vec::new());
            let samples = held_out();
            for sample in samples.iter().cycle() {
                if seen.is_closed() {
                    break;
                }
                match client.infer(std::slice::from_ref(&sample.pixels)).await {
                    Ok(answer) => {
                        answers.count(&answer);
                        let is_edge = answer.sources.as_deref() == Some(&[Source::Edge]);
                        seen.send_if_modified(|versions| {
                            let version =
                                answer.version.filter(|it| is_edge && versions.last() != Some(it));
                            let is_new = version.is_some();
                            versions.extend(version);
                            is_new
                        });
                    }
                    Err(error) => failures.push(error.to_string()),
                }
            }
            (answers, failures)
        });
        Self { edge_versions, task }
    }

    /// Waits until exactly these versions of the edge's model have answered, in this order.
    async fn answered(&mut self, wanted: &[&str]) {
        let waiting = self.edge_versions.wait_for(|versions| versions == wanted);
        drop(within(&format!("answers of {wanted:?}"), waiting).await.unwrap());
    }

    /// The answers, and the errors of requests without one.
    pub async fn end(self) -> (Answers, Vec<String>) {
        drop(self.edge_versions);
        self.task.await.unwrap()
    }
}

/// The request of the README of the example: three images, of which the gateway sends the second to
/// the cloud. It asks for the output with the scores, which the client does not want.
async fn ask_for_labels_only(gateway: &Client) -> Answers {
    let samples = &held_out()[20..23];
    let images: Vec<_> = samples.iter().map(|sample| sample.pixels).collect();
    let mut request = InferRequest::new(&images);
    request.outputs = vec![Wanted { name: "label".to_owned() }];
    let answer = reqwest::Client::new()
        .post(gateway.url())
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&request).unwrap())
        .send();
    let answer = answer.await.unwrap();
    assert_eq!(answer.headers()["x-neptune-answered-by"], "edge,cloud,edge");
    let body: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    let labels: Vec<usize> = samples.iter().map(|sample| sample.label).collect();
    let [output] = &body["outputs"].as_array().unwrap()[..] else { panic!("{body}") };
    assert_eq!((&output["name"], &output["data"]), (&"label".into(), &labels.into()));
    Answers { all: 3, cloud: 1 }
}

async fn two_inference_models_infer_jointly_without_code(transport: Transport) {
    const NAME: &str = "digits-joint";
    require_images();
    let fleet = Fleet::start(transport).await;
    let models = models(&fleet).await;
    apply(&fleet, &models, "3", "watch");
    fleet.apply(&service_manifest(&fleet, "examples/three-resources/service.yaml"));
    let edge = server(&fleet, EDGE, "3", "digits").await;
    let cloud = server(&fleet, CLOUD, "1", "digits").await;
    let (gateway, mut asked) = running(&fleet, NAME, "digits").await;

    asked += ask_for_labels_only(&gateway).await;

    // As the README of the example measures it.
    let base = |client: &Client| client.url().replace("/v2/models/digits/infer", "");
    let output = run(Command::new("docker")
        .args(["run", "--rm", "--network", "host", "--entrypoint", "/digits-client", IMAGE])
        .args(["--passes", "2", "--gateway-url", &base(&gateway)])
        .args(["--edge-url", &base(&edge), "--cloud-url", &base(&cloud)]));
    println!("{output}");
    let line: Value = serde_json::from_str(&output).unwrap();
    let [all, hard] = ["inferenceNumber", "hardExampleNumber"].map(|key| line[key].as_u64());
    asked += Answers { all: all.unwrap(), cloud: hard.unwrap() };
    let share = |key: &str| line[key].as_f64().unwrap();
    assert_eq!(asked.all, 1204);
    assert!(share("joint") > share("random") + 0.02, "{line}");
    assert!(share("random") > share("edgeOnly") && share("cloudOnly") > share("joint"), "{line}");
    let totals = counted(&fleet, NAME, asked).await;
    println!("{}", fleet.kubectl(&["get", "jis,im", "-o", "wide"]));
    assert_eq!((totals.fallback, totals.unjudged, totals.over_budget), (0, 0, 0), "{totals:?}");
    // Shadows are a part of the ratio.
    let uploads = asked.cloud + totals.shadow;
    assert!(totals.shadow > 0 && uploads.abs_diff(asked.all / 5) <= 20, "{totals:?}");

    // Another version of the edge's model, while requests continue.
    let mut load = Load::on(gateway);
    load.answered(&["3"]).await;
    switch(&fleet, EDGE, "4");
    fleet.until_model(EDGE, "serving 4", serves("4")).await;
    load.answered(&["3", "4"]).await;
    let (answers, failures) = load.end().await;
    assert_eq!(failures, [""; 0]);
    asked += answers;
    counted(&fleet, NAME, asked).await;

    fleet.kubectl(&["delete", "jis", NAME]);
    fleet.kubectl(&["delete", "im", EDGE, CLOUD]);
    fleet.no_containers().await;
    fleet.nothing_retained(NAME).await;
}

async fn servers_at_edge_and_in_cloud_keep_the_upload_ratio(transport: Transport) {
    const NAME: &str = "digits-gateway";
    const PASSES: usize = 5;
    require_images();
    let fleet = Fleet::start(transport).await;
    let models = models(&fleet).await;
    apply_frameworks(&fleet, "watch");
    fleet.apply(&models_manifest(&fleet, &models));
    fleet.apply(&service_manifest(&fleet, "examples/digits/gateway.yaml"));
    let edge = server(&fleet, "digits-gateway-edge", "1", "digits-small").await;
    let cloud = server(&fleet, "digits-gateway-cloud", "1", "digits-big").await;
    let (gateway, mut asked) = running(&fleet, NAME, "digits-small").await;

    let targets = Targets { gateway, edge: Some(edge), cloud: Some(cloud) };
    let summary = evaluate(&targets, PASSES).await.unwrap();
    println!("{summary:?}");
    asked += Answers {
        all: u64::try_from(summary.inference_number).unwrap(),
        cloud: u64::try_from(summary.hard_example_number).unwrap(),
    };
    // A fifth, within the bound of the budget for any order of samples.
    assert!(asked.cloud.abs_diff(asked.all / 5) <= 13, "{summary:?}");
    assert!(summary.joint >= 0.950, "{summary:?}");
    let random = summary.random.unwrap();
    assert!((random - 0.911).abs() < 0.005, "{summary:?}");
    let before = counted(&fleet, NAME, asked).await;
    assert_eq!((before.fallback, before.shadow), (0, 0), "{before:?}");
}

/// The confidence of the gateway's rule `CrossEntropy`.
fn confidence(probabilities: &[f64]) -> f64 {
    let entropy = |p: &f64| if *p > 0.0 { -p * p.ln() } else { 0.0 };
    1.0 - probabilities.iter().map(entropy).sum::<f64>() / 10_f64.ln()
}

/// Two services: the gateway of `device` asks the gateway of `near`, which asks the cloud.
fn chain(fleet: &Fleet, models: &str) -> String {
    let ports = [free_port(), free_port(), free_port()];
    let Fleet { edge, cloud, .. } = fleet;
    format!(
        r#"
apiVersion: sedna.io/v1alpha1
kind: InferenceModel
metadata: {{name: digits-near}}
spec:
  modelName: digits-near
  deployToLayer: edge
  nodeName: {cloud}
  frameworkType: digits
  manifest: [{{version: '1', downloadURL: "{models}/small.json"}}]
  targetVersion: '1'
  servingPort: {port}
---
apiVersion: neptune.io/v1alpha1
kind: JointInferenceService
metadata: {{name: near}}
spec:
  gateway: {{port: {near}, expose: true}}
  edgeWorker:
    name: edge
    nodeName: {cloud}
    inferenceModel: {{name: digits-near}}
    hardExampleAlgorithm: {{name: CrossEntropy, parameters: [{{key: threshold, value: "{NEAR}"}}]}}
  cloudWorker: {{name: cloud, inferenceModel: {{name: {CLOUD}}}}}
---
apiVersion: neptune.io/v1alpha1
kind: JointInferenceService
metadata: {{name: device}}
spec:
  gateway: {{port: {device}}}
  edgeWorker:
    name: edge
    nodeName: {edge}
    inferenceModel: {{name: {EDGE}}}
    hardExampleAlgorithm: {{name: CrossEntropy, parameters: [{{key: threshold, value: "{DEVICE}"}}]}}
  cloudWorker: {{name: cloud, service: {{name: near}}}}
"#,
        port = ports[0],
        near = ports[1],
        device = ports[2],
    )
}

/// The thresholds of the two services of a chain.
const DEVICE: f64 = 0.75;
const NEAR: f64 = 0.6;

/// What the models of the examples answer to the samples.
struct Expected {
    samples: Vec<Sample>,
    labels: Vec<usize>,
    /// Samples that the device asks `near` about.
    near: u64,
    /// Samples that `near` asks the cloud about.
    cloud: u64,
}

impl Expected {
    fn new() -> Self {
        let folder = root().join("examples/digits/models");
        let [small, big] = ["small.json", "big.json"].map(|name| -> Model {
            model_file::read(folder.join(name).to_str().unwrap()).unwrap()
        });
        let samples = held_out();
        let mut expected = Self { labels: Vec::new(), near: 0, cloud: 0, samples };
        for sample in &expected.samples {
            let probabilities = small.infer(&sample.pixels);
            let confidence = confidence(&probabilities);
            expected.near += u64::from(confidence < DEVICE);
            expected.cloud += u64::from(confidence < NEAR);
            let of_cloud = big.infer(&sample.pixels);
            let answer = if confidence < NEAR { &of_cloud } else { &probabilities };
            expected.labels.push(label(answer));
        }
        expected
    }
}

async fn chain_of_gateways_counts_exactly_in_each_service(transport: Transport) {
    require_images();
    let expected = Expected::new();
    assert!(expected.cloud > 20 && expected.near > expected.cloud + 20, "the test needs both");
    let fleet = Fleet::start(transport).await;
    let models = models(&fleet).await;
    apply(&fleet, &models, "3", "watch");
    fleet.apply(&chain(&fleet, &models.url()));
    for (name, version) in [(EDGE, "3"), ("digits-near", "1"), (CLOUD, "1")] {
        fleet.until_model(name, &format!("serving {version}"), serves(version)).await;
    }
    let (near, first_of_near) = running(&fleet, "near", "digits-near").await;
    let (device, first) = running(&fleet, "device", "digits").await;
    assert_eq!((first.cloud, first_of_near.cloud), (0, 0), "the first sample is easy");

    let (mut asked, mut labels) = (first, Vec::new());
    // Batches, whose hard rows are gathered and put back by both gateways.
    for batch in expected.samples.chunks(50) {
        let images: Vec<_> = batch.iter().map(|sample| sample.pixels).collect();
        let answer = device.infer(&images).await.unwrap();
        asked.count(&answer);
        labels.extend(answer.classifications.iter().map(|it| it.label));
    }
    assert_eq!(labels, expected.labels);
    assert_eq!(asked.cloud, expected.near);
    counted(&fleet, "device", asked).await;
    let of_near = Answers { all: first_of_near.all + expected.near, cloud: expected.cloud };
    counted(&fleet, "near", of_near).await;

    // Without the service that it names, the device continues alone.
    fleet.kubectl(&["delete", "jis", "near"]);
    let is_named = |status: &JointInferenceServiceStatus| {
        status.conditions.last().is_some_and(|last| {
            last.type_ == JisConditionType::Pending
                && last.message.as_deref().is_some_and(|message| message.contains("\"near\""))
        })
    };
    fleet.until("device", "Pending without the other service", is_named).await;
    eventually_async("the other gateway to stop", async || {
        near.infer(&[expected.samples[0].pixels]).await.is_err()
    })
    .await;
    let mut alone = Answers::default();
    for sample in expected.samples.iter().take(50) {
        let answer = device.infer(std::slice::from_ref(&sample.pixels)).await.unwrap();
        alone.count(&answer);
    }
    assert_eq!(alone, Answers { all: 50, cloud: 0 });
}
