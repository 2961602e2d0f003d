//! Device, edge and cloud: `examples/three-tiers`, with a goal for the whole chain, cut links and
//! loops.

use std::{fs, time::Duration};

use digits::samples::held_out;
use neptune_api::{JisConditionType, JointInferenceService, JointInferenceServiceStatus};
use neptune_e2e::{Fleet, GATEWAY_IMAGE, ModelServer, Transport, is_running, totals};
use neptune_harness::{
    docker::{docker, node_filter, require_image, try_docker},
    eventually_async, eventually_some, free_port,
    workspace::root,
};
use three_resources::client::Client;
use tokio::{sync::watch, task::JoinHandle};

use crate::serving::{IMAGE, apply_frameworks};

over_each_transport!(three_tiers_keep_the_total_ratio_through_cuts_and_refuse_loops);

/// The `totalUploadRatio` of the example.
const GOAL: f64 = 0.1;
/// Passes over the 600 samples.
const PASSES: usize = 5;

/// Serves the models and applies the example with free ports. The middle tier is on the cloud's node.
async fn apply_example(fleet: &Fleet) -> ModelServer {
    require_image(IMAGE, "hack/build-model-server-image.sh");
    require_image(GATEWAY_IMAGE, "hack/build-gateway-image.sh");
    let dir = fleet.dir().join("models");
    fs::create_dir(&dir).unwrap();
    for path in ["digits/models/small.json", "digits/models/big.json", "three-tiers/medium.json"] {
        let from = root().join("examples").join(path);
        fs::copy(&from, dir.join(from.file_name().unwrap())).unwrap();
    }
    let models = ModelServer::start(&dir).await;
    let url = format!("{}/", models.url());
    let namespace = format!("namespace: {}", fleet.namespace);
    apply_frameworks(fleet, "watch");
    fleet.apply(&fleet.manifest(
        "examples/three-tiers/models.yaml",
        &[
            ("${MODEL_SERVER}/digits/models/", &url),
            ("${MODEL_SERVER}/three-tiers/", &url),
            ("namespace: default", &namespace),
        ],
    ));
    let ports = [free_port(), free_port()].map(|port| format!("port: {port}"));
    fleet.apply(&fleet.manifest(
        "examples/three-tiers/services.yaml",
        &[
            ("namespace: default", &namespace),
            ("port: 8080", &ports[0]),
            ("port: 8081", &ports[1]),
            ("box0", &fleet.cloud),
        ],
    ));
    models
}

fn url(status: &JointInferenceServiceStatus) -> Option<&str> {
    status.gateway.as_ref()?.url.as_deref()
}

/// Waits until the services run, and returns the URL of the gateway of the device.
async fn running(fleet: &Fleet) -> String {
    let has_url =
        |status: &JointInferenceServiceStatus| is_running(status) && url(status).is_some();
    fleet.until("box", "running with an address", has_url).await;
    let status = fleet.until("cam", "running with an address", has_url).await;
    url(&status).unwrap().to_owned()
}

/// Requests of one sample without a pause, until it ends. Returns their number and the failures.
struct Load {
    stop: watch::Receiver<u64>,
    task: JoinHandle<(u64, Vec<String>)>,
}

impl Load {
    fn on(client: Client) -> Self {
        let (count, stop) = watch::channel(0);
        let task = tokio::spawn(async move {
            let (samples, mut failures) = (held_out(), Vec::new());
            let mut sent = 0;
            for sample in samples.iter().cycle() {
                if count.is_closed() {
                    break;
                }
                sent += 1;
                if let Err(error) = client.infer(std::slice::from_ref(&sample.pixels)).await {
                    failures.push(error.to_string());
                }
                count.send_replace(sent);
            }
            (sent, failures)
        });
        Self { stop, task }
    }

    /// Waits for so many more answers.
    async fn answers(&mut self, more: u64) {
        let until = *self.stop.borrow() + more;
        self.stop.wait_for(|count| *count >= until).await.unwrap();
    }

    async fn end(self) -> (u64, Vec<String>) {
        drop(self.stop);
        self.task.await.unwrap()
    }
}

/// The running container of a node whose image or name has this text.
fn container(node: &str, text: &str) -> String {
    let filter = node_filter(node);
    let rows = docker(&["ps", "--filter", &filter, "--format", "{{.ID}} {{.Image}} {{.Names}}"]);
    let matching = rows.lines().find(|row| row.contains(text));
    let row = matching.unwrap_or_else(|| panic!("{node} has no container with {text}:\n{rows}"));
    row.split(' ').next().unwrap().to_owned()
}

/// A paused container, which neither answers nor closes its connections.
struct Paused(String);

impl Paused {
    fn new(id: String) -> Self {
        docker(&["pause", &id]);
        Self(id)
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        // The agent may have replaced it.
        let _ = try_docker(&["unpause", &self.0]);
    }
}

fn answered(status: &JointInferenceServiceStatus) -> Vec<u64> {
    status.tiers.iter().map(|tier| tier.answered).collect()
}

/// The shares of the status as whole numbers.
fn shares(status: &JointInferenceServiceStatus) -> Vec<u64> {
    let parse = |share: &str| share.replace('.', "").parse::<u64>().unwrap();
    status.tiers.iter().map(|tier| parse(&tier.share)).collect()
}

async fn three_tiers_keep_the_total_ratio_through_cuts_and_refuse_loops(transport: Transport) {
    let fleet = Fleet::start(transport).await;
    let _models = apply_example(&fleet).await;
    let base = running(&fleet).await;
    let client = || Client::new(&base, "digits-small").unwrap();
    let device = client();
    let samples = held_out();
    // The containers run before the gateways listen.
    eventually_some("the first answer of the gateway", async || {
        device.infer(&[samples[0].pixels]).await.ok()
    })
    .await;
    let status =
        fleet.until("box", "what it sends up", |status| status.total_upload.is_some()).await;
    let total = status.total_upload.unwrap();
    assert_eq!((total.goal.as_str(), total.upload_ratio.as_str()), ("0.1", "0.25"));

    let (mut sent, mut right) = (1, 0);
    for _ in 0..PASSES {
        for sample in &samples {
            let answer = device.infer(std::slice::from_ref(&sample.pixels)).await.unwrap();
            right += u64::from(answer.classifications[0].label == sample.label);
            sent += 1;
        }
    }
    let is_counted = |status: &JointInferenceServiceStatus| totals(status).inference == sent;
    let status = fleet.until("cam", &format!("exactly {sent} samples"), is_counted).await;
    let tiers = answered(&status);
    let [_, _, of_cloud] = tiers[..] else { panic!("{:?}", status.tiers) };
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    let (total, accuracy) = (of_cloud as f64 / sent as f64, right as f64 / (sent - 1) as f64);
    println!("R_total {total:.4}, accuracy {accuracy:.4}, tiers {:?}", status.tiers);
    let names: Vec<_> = status.tiers.iter().map(|tier| tier.service.as_str()).collect();
    assert_eq!(names, ["cam", "box", "box/cloud"]);
    assert!((total - GOAL).abs() <= 0.01, "{tiers:?}");
    assert_eq!((tiers.iter().sum::<u64>(), shares(&status).iter().sum::<u64>()), (sent, 10_000));
    assert!(accuracy >= 0.96, "{accuracy}");
    assert_eq!(totals(&status).fallback, 0);

    sent += survive_cuts(&fleet, client()).await;
    let is_counted = |status: &JointInferenceServiceStatus| totals(status).inference == sent;
    let status = fleet.until("cam", &format!("exactly {sent} samples"), is_counted).await;
    println!("after the cuts: fallbacks {}, tiers {:?}", totals(&status).fallback, status.tiers);
    assert_eq!(answered(&status).iter().sum::<u64>(), sent);
    assert_eq!(shares(&status).iter().sum::<u64>(), 10_000);

    refused_at_run_time(&fleet, &base).await;
    refused_by_the_controller(&fleet).await;
}

/// Cuts the links one after another under load. Returns the number of requests; none fails.
async fn survive_cuts(fleet: &Fleet, client: Client) -> u64 {
    let mut load = Load::on(client);
    load.answers(50).await;
    let cut = Duration::from_secs(4);
    for (what, id) in [
        ("device to edge", container(&fleet.cloud, "gateway")),
        ("edge to cloud", container(&fleet.cloud, "box-cloud")),
    ] {
        let paused = Paused::new(id);
        // Requests wait for the deadline of a call, until the breaker opens.
        tokio::time::sleep(cut).await;
        load.answers(5).await;
        drop(paused);
        load.answers(50).await;
        println!("cut {what}");
    }
    fleet.isolate_edge().await;
    load.answers(200).await;
    fleet.rejoin_edge().await;
    load.answers(50).await;
    let (sent, failures) = load.end().await;
    println!("{sent} requests through 3 cuts, {} failed", failures.len());
    assert_eq!(failures, Vec::<String>::new());
    sent
}

/// A request that came here before gets 508, and the service an Event.
async fn refused_at_run_time(fleet: &Fleet, base: &str) {
    let service: JointInferenceService = fleet.services().get("cam").await.unwrap();
    let uid = service.metadata.uid.unwrap();
    let id: String = uid.chars().filter(char::is_ascii_alphanumeric).take(12).collect();
    let refused = reqwest::Client::new()
        .post(format!("{base}/v2/models/digits-small/infer"))
        .header("x-neptune-via", format!("other,{id}"))
        .body("{}")
        .send();
    let refused = refused.await.unwrap();
    assert_eq!(refused.status().as_u16(), 508);
    println!("{}", refused.text().await.unwrap());
    eventually_async("the Event of the loop", async || {
        fleet.kubectl(&["get", "events"]).contains("RequestLoop")
    })
    .await;
}

/// Three services that name each other in a circle.
async fn refused_by_the_controller(fleet: &Fleet) {
    for (name, next) in [("a", "b"), ("b", "c"), ("c", "a")] {
        let port = free_port();
        fleet.apply(&format!(
            r"
apiVersion: neptune.io/v1alpha1
kind: JointInferenceService
metadata: {{name: {name}}}
spec:
  gateway: {{port: {port}, expose: true}}
  edgeWorker:
    name: edge
    nodeName: {edge}
    model: {{name: digits-small}}
    server: {{frameworkType: digits}}
    hardExampleAlgorithm: {{name: CrossEntropy}}
  cloudWorker: {{name: cloud, service: {{name: {next}}}}}
",
            edge = fleet.edge
        ));
    }
    let text =
        "jointinferenceservices a -> b -> c -> a: this is a loop; point one of them elsewhere";
    let is_refused = |status: &JointInferenceServiceStatus| {
        status.conditions.last().is_some_and(|last| {
            last.type_ == JisConditionType::Failed
                && last.reason.as_deref() == Some("ServiceCycle")
                && last.message.as_deref().is_some_and(|message| message.contains(text))
        })
    };
    fleet.until("a", "refused as a loop", is_refused).await;
    fleet.kubectl(&["delete", "jis", "a", "b", "c"]);
}
