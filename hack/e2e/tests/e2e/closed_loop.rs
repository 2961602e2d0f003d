//! The example `closed-loop`: new digits appear, accuracy falls, the hard samples are recorded, a
//! training starts by itself, and its model replaces the one that did not know them.
//!
//! `hack/closed-loop.sh` prints the table of this test and draws it.

use std::{collections::BTreeMap, fs, process::Command};

use digits::samples::{Sample, held_out, training};
use neptune_api::TrainingModel;
use neptune_e2e::{AggregatorProcess, Fleet, GATEWAY_IMAGE, ModelServer, Transport, is_running};
use neptune_harness::{
    docker::require_image,
    free_port,
    workspace::{root, run},
};
use serde_json::json;
use three_resources::{client::Client, source::Source};

use crate::{
    federated::{IMAGE, task},
    serving::{self, apply_frameworks},
};

const NAME: &str = "digits-loop";
/// Requests between two lines of the table.
const WINDOW: usize = 500;
/// Windows before the new digits appear.
const BEFORE: usize = 3;
/// The most windows until the accuracy has recovered, and those after that.
const MAX_WINDOWS: usize = 240;
const AFTER: usize = 4;
/// The share of uploads that is the goal of the example. Comparisons are uploads too: this share of
/// the samples that the cloud does not answer, by default.
const GOAL: f64 = 0.2;
const SHADOWS: f64 = 0.02;
/// The digits of the first model.
const KNOWN: usize = 7;

/// A line of the table.
#[derive(Debug)]
struct Window {
    /// Accuracy of the edge's model alone, for held-out images of the digits that appear.
    edge_accuracy: f64,
    /// Accuracy of the answers that the client got.
    joint_accuracy: f64,
    uploaded: f64,
    version: String,
    failed: usize,
}

/// What the client sees, and the edge's model server behind the gateway.
struct Clients {
    gateway: Client,
    edge: Client,
}

#[tokio::test(flavor = "multi_thread")]
async fn model_repairs_itself_after_new_digits_appear() {
    require_image(serving::IMAGE, "hack/build-model-server-image.sh");
    require_image(GATEWAY_IMAGE, "hack/build-gateway-image.sh");
    require_image(IMAGE, "hack/build-python-image.sh --numpy");
    let fleet = Fleet::start(Transport::Mqtt).await;
    let files = files(&fleet).await;
    let port = free_port();
    apply(&fleet, &files, port);
    let clients = clients(&fleet).await;
    let _aggregator = AggregatorProcess::start(&fleet, NAME, port).await;

    let mut windows = Vec::new();
    println!("window  digits  edge model    edge accuracy  joint accuracy  uploaded  failed");
    let mut recovered = None;
    while windows.len() < MAX_WINDOWS && recovered.is_none_or(|at| windows.len() < at + AFTER) {
        let classes = if windows.len() < BEFORE { KNOWN } else { 10 };
        let window = clients.window(classes, windows.len() * WINDOW).await;
        println!(
            "{:6}  {:6}  {:12}  {:13.3}  {:14.3}  {:8.3}  {:6}",
            windows.len(),
            if classes == KNOWN { "0 to 6" } else { "0 to 9" },
            window.version,
            window.edge_accuracy,
            window.joint_accuracy,
            window.uploaded,
            window.failed
        );
        println!(
            "plot {}",
            json!({"edge": window.edge_accuracy, "joint": window.joint_accuracy, "uploaded": window.uploaded})
        );
        if windows.len() >= BEFORE && window.edge_accuracy >= 0.85 && recovered.is_none() {
            recovered = Some(windows.len());
        }
        windows.push(window);
    }
    // Nobody asked for it: the Dataset grew.
    let status = fleet.until_status::<TrainingModel>(NAME, "a run", |s| s.run.is_some()).await;
    let recovered = recovered.unwrap_or_else(|| panic!("{status:#?}\n{windows:#?}"));
    println!("{}", fleet.kubectl(&["get", "trainingmodels,models,datasets"]));

    assert_eq!(windows.iter().map(|window| window.failed).sum::<usize>(), 0);
    assert!(windows[..BEFORE].iter().all(|it| it.edge_accuracy >= 0.95), "{windows:#?}");
    assert!(windows[BEFORE].edge_accuracy < 0.75, "{windows:#?}");
    assert!(recovered > BEFORE + 1, "{windows:#?}");
    assert_ne!(windows[recovered].version, windows[0].version);
    let last = &windows[windows.len() - AFTER + 1..];
    for window in last {
        assert!((with_shadows(window.uploaded) - GOAL).abs() <= 0.03, "{window:?}");
        assert!(window.edge_accuracy >= 0.85 && window.joint_accuracy >= 0.9, "{window:?}");
    }
    let uploaded: f64 = last.iter().map(|window| window.uploaded).sum();
    let uploaded = with_shadows(uploaded / number(last.len()));
    assert!((uploaded - GOAL).abs() <= 0.02, "{last:#?}");
}

/// The share of uploads, if the client sees that the cloud answered this share.
fn with_shadows(answered: f64) -> f64 {
    answered + SHADOWS * (1.0 - answered)
}

impl Clients {
    /// Sends samples of the first digits, and measures the edge's model with held-out ones.
    async fn window(&self, classes: usize, from: usize) -> Window {
        let appearing = |samples: Vec<Sample>| -> Vec<Sample> {
            samples.into_iter().filter(|sample| sample.label < classes).collect()
        };
        let (samples, tests) = (appearing(training()), appearing(held_out()));
        let (mut right, mut uploaded, mut failed) = (0, 0, 0);
        for sample in samples.iter().cycle().skip(from % samples.len()).take(WINDOW) {
            match self.gateway.infer(std::slice::from_ref(&sample.pixels)).await {
                Ok(answer) => {
                    right += usize::from(answer.classifications[0].label == sample.label);
                    let sources = answer.sources.expect("a gateway names who answered");
                    uploaded += usize::from(sources == [Source::Cloud]);
                }
                Err(error) => {
                    println!("{error}");
                    failed += 1;
                }
            }
        }
        let pixels: Vec<_> = tests.iter().map(|test| test.pixels).collect();
        let answer = self.edge.infer(&pixels).await.unwrap();
        let labels = answer.classifications.iter().zip(&tests);
        let edge = labels.filter(|(answered, test)| answered.label == test.label).count();
        let share = |part, whole| number(part) / number(whole);
        Window {
            edge_accuracy: share(edge, tests.len()),
            joint_accuracy: share(right, WINDOW),
            uploaded: share(uploaded, WINDOW),
            version: answer.version.unwrap_or_default(),
            failed,
        }
    }
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}

/// The files over HTTP: the program, the big model, and a first model of the known digits.
async fn files(fleet: &Fleet) -> ModelServer {
    let folder = fleet.dir().join("files");
    fs::create_dir(&folder).unwrap();
    let known = |line: &&str| {
        let label = line.rsplit_once(',').and_then(|(_, label)| label.parse::<usize>().ok());
        label.is_some_and(|label| label < KNOWN)
    };
    let all = fs::read_to_string(root().join("examples/digits/data/train.csv")).unwrap();
    let lines: Vec<_> = all.lines().filter(known).collect();
    fs::write(folder.join("train.csv"), lines.join("\n")).unwrap();
    let variables: BTreeMap<_, _> = [
        ("SEED", "1".to_owned()),
        ("EPOCHS", "20".to_owned()),
        ("WEIGHTS_URL", "/task/weights.npz".to_owned()),
        ("DATASET_URL", "/task/train.csv".to_owned()),
    ]
    .into();
    task(&folder, "initialize", &variables);
    task(&folder, "train", &variables);
    fs::copy(root().join("examples/federated/train.py"), folder.join("train.py")).unwrap();
    fs::copy(root().join("examples/digits/models/big.json"), folder.join("big.json")).unwrap();
    ModelServer::start(&folder).await
}

fn digest(fleet: &Fleet, file: &str) -> String {
    let output = run(Command::new("sha256sum").arg(fleet.dir().join("files").join(file)));
    output.split_whitespace().next().unwrap().to_owned()
}

fn apply(fleet: &Fleet, files: &ModelServer, port: u16) {
    apply_frameworks(fleet, "watch");
    let model = |name: &str, file: &str| {
        format!(
            "apiVersion: edgeai.io/v1alpha1\nkind: Model\nmetadata: {{name: {name}}}\nspec: \
             {{modelUrl: \"{}/{file}\", sha256sum: {}}}\n---\n",
            files.url(),
            digest(fleet, file)
        )
    };
    fleet.apply(&(model(NAME, "weights.npz") + &model("digits-big", "big.json")));
    let data = fleet.data_dir();
    fs::copy(root().join("examples/digits/data/test.csv"), data.join("test.csv")).unwrap();
    let gateway = format!("gateway:\n    port: {}", free_port());
    fleet.apply(&fleet.manifest(
        "examples/closed-loop/service.yaml",
        &[
            ("gateway:", &gateway),
            ("/var/lib/neptune-capture", data.to_str().unwrap()),
            ("/code/data/digits", data.to_str().unwrap()),
        ],
    ));
    let rounds = format!("rounds: 5\n    service: {{address: \"127.0.0.1:{port}\"}}");
    fleet.apply(&fleet.manifest(
        "examples/closed-loop/training.yaml",
        &[
            ("${SCRIPT_SERVER}", &files.url()),
            ("${SCRIPT_SHA256}", &digest(fleet, "train.py")),
            ("rounds: 5", &rounds),
        ],
    ));
}

/// Waits until the service and the edge's model server answer.
async fn clients(fleet: &Fleet) -> Clients {
    let url = |status: &neptune_api::JointInferenceServiceStatus| {
        status.gateway.as_ref().and_then(|gateway| gateway.url.clone())
    };
    let status = fleet
        .until(NAME, "running with an address", |it| is_running(it) && url(it).is_some())
        .await;
    let edge = format!("{NAME}-edge");
    let server = fleet
        .until_model(&edge, "serving", |it| it.serving_version.is_some() && it.url.is_some())
        .await;
    Clients {
        gateway: Client::new(&url(&status).unwrap(), NAME).unwrap(),
        edge: serving::client(&server, NAME),
    }
}
