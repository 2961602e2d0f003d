//! The example `federated`: three nodes train one model, and a service takes it over while it runs.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use neptune_api::{
    Model, ModelNode, ModelNodeState, ModelStatus, TrainingModel, TrainingModelStatus,
    TrainingPhase,
};
use neptune_e2e::{AggregatorProcess, Fleet, ModelServer, Transport, is_running, totals};
use neptune_harness::{
    docker::{docker, require_image},
    eventually, free_port,
    workspace::{root, run},
};

use crate::digits::{self, NAME};

over_each_transport!(three_nodes_train_one_model_that_a_service_takes_over,);

/// The image of the program.
pub const IMAGE: &str = "neptune/numpy:dev";
const SMALL: &str = "digits-small";
/// Rounds of the example, and its epochs per round.
const ROUNDS: u32 = 10;
const EPOCHS: u32 = 5;

/// The example with a running aggregator.
pub struct Federated {
    pub aggregator: AggregatorProcess,
    pub port: u16,
    _scripts: ModelServer,
}

impl Federated {
    /// Applies the example and runs its aggregator. Its output is the Model of this name.
    pub async fn start(fleet: &Fleet, output: &str, replace: &[(&str, &str)]) -> Self {
        let port = free_port();
        let aggregation = format!("service: {{address: \"127.0.0.1:{port}\"}}");
        let scripts = apply_example(fleet, output, replace, &aggregation).await;
        let aggregator = AggregatorProcess::start(fleet, NAME, port).await;
        Self { aggregator, port, _scripts: scripts }
    }
}

/// Shares the digits among the nodes, unless they are already, and applies datasets and training
/// with this aggregation. Returns the server of its program.
pub async fn apply_example(
    fleet: &Fleet,
    output: &str,
    replace: &[(&str, &str)],
    aggregation: &str,
) -> ModelServer {
    require_image(IMAGE, "hack/build-python-image.sh --numpy");
    if !fleet.data_dir().join("a.csv").exists() {
        share_digits(&fleet.data_dir(), &[]);
    }
    let scripts = ModelServer::start(&example()).await;
    fleet.apply(&fleet.manifest(
        "examples/federated/datasets.yaml",
        &[
            ("/code/data/federated", fleet.data_dir().to_str().unwrap()),
            ("edge1", fleet.other(0)),
            ("edge2", fleet.other(1)),
        ],
    ));
    let digest = run(Command::new("sha256sum").arg(example().join("train.py")));
    let aggregation = format!("rounds: {ROUNDS}\n    {aggregation}");
    let url = scripts.url();
    let mut all = vec![
        ("${SCRIPT_SERVER}", &*url),
        ("${SCRIPT_SHA256}", digest.split_whitespace().next().unwrap()),
        ("edge1", fleet.other(0)),
        ("edge2", fleet.other(1)),
        ("digits-federated", output),
    ];
    all.extend(replace);
    all.push(("rounds: 10", &aggregation));
    fleet.apply(&fleet.manifest("examples/federated/training.yaml", &all));
    scripts
}

/// Waits until the run has succeeded. Each round may take the usual time.
pub async fn until_succeeded(fleet: &Fleet) -> TrainingModelStatus {
    let ended = |status: &TrainingModelStatus| {
        matches!(status.phase, Some(TrainingPhase::Succeeded | TrainingPhase::Failed))
    };
    let mut round = 0;
    loop {
        let what = format!("round {round} of the training to end");
        let is_next = |status: &TrainingModelStatus| {
            ended(status) || status.round.is_some_and(|now| now > round)
        };
        let status = fleet.until_status::<TrainingModel>(NAME, &what, is_next).await;
        if ended(&status) {
            assert_eq!(status.phase, Some(TrainingPhase::Succeeded), "{status:#?}");
            return status;
        }
        round = status.round.expect("it was compared");
    }
}

fn example() -> PathBuf {
    root().join("examples/federated")
}

fn share_digits(directory: &Path, arguments: &[&str]) {
    run(Command::new("python3").arg(example().join("split.py")).arg(directory).args(arguments));
    fs::copy(root().join("examples/digits/data/test.csv"), directory.join("test.csv")).unwrap();
}

/// The accuracy of the last measured weights.
fn accuracy(status: &TrainingModelStatus) -> f64 {
    let reported = status.metrics.iter().find(|metric| metric.key == "accuracy");
    reported.map_or(0.0, |metric| metric.value.parse().unwrap())
}

/// Does one task of the program as a user would without Neptune, in its image.
pub fn task(folder: &Path, task: &str, variables: &BTreeMap<&str, String>) -> serde_json::Value {
    let mount = format!("{}:/task", folder.display());
    let program = format!("{}:/program:ro", example().display());
    let mut command = vec!["run", "--rm", "--network", "none", "-v", &mount, "-v", &program];
    let mut variables: Vec<String> =
        variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    variables.extend([format!("TASK={task}"), "OUTPUT_DIR=/task".to_owned()]);
    command.extend(variables.iter().flat_map(|variable| ["-e", variable]));
    command.extend([IMAGE, "python3", "/program/train.py"]);
    docker(&command);
    serde_json::from_slice(&fs::read(folder.join("result.json")).unwrap()).unwrap()
}

/// The accuracy that one node reaches alone, with as many epochs as all rounds have.
fn alone(fleet: &Fleet, name: &str, samples: &str) -> f64 {
    let folder = fleet.dir().join(format!("alone-{name}"));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("train.csv"), samples).unwrap();
    fs::copy(fleet.data_dir().join("test.csv"), folder.join("test.csv")).unwrap();
    let mut variables: BTreeMap<_, _> = [
        ("SEED", "1".to_owned()),
        ("EPOCHS", (ROUNDS * EPOCHS).to_string()),
        ("WEIGHTS_URL", "/task/weights.npz".to_owned()),
        ("DATASET_URL", "/task/train.csv".to_owned()),
    ]
    .into();
    task(&folder, "initialize", &variables);
    task(&folder, "train", &variables);
    variables.insert("DATASET_URL", "/task/test.csv".to_owned());
    task(&folder, "evaluate", &variables)["metrics"]["accuracy"].as_f64().unwrap()
}

async fn three_nodes_train_one_model_that_a_service_takes_over(transport: Transport) {
    let fleet = Fleet::with_more_nodes(transport, 2).await;
    let models = digits::models().await;
    fleet.apply(&digits::models_manifest(&fleet, &models));
    // It infers until the test ends.
    let service = digits::service_manifest(&fleet, 50, 0);
    let image = "image: \"neptune/digits:dev\"";
    fleet.apply(&service.replacen(image, &format!("{image}\n      modelUpdate: Reload"), 1));
    let before = totals(&fleet.until(NAME, "counters", |s| totals(s).inference > 0).await);
    let container = fleet.container(&fleet.edge);

    let training = Federated::start(&fleet, SMALL, &[]).await;
    let status = until_succeeded(&fleet).await;
    assert_eq!((status.run, status.round), (Some(1), Some(10)), "{status:#?}");
    let global = accuracy(&status);
    assert!(global >= 0.95, "{status:#?}");

    let samples =
        |name: &str| fs::read_to_string(fleet.data_dir().join(format!("{name}.csv"))).unwrap();
    let all: String = ["a", "b", "c"].map(samples).concat();
    let central = alone(&fleet, "central", &all);
    let best = ["a", "b", "c"].map(|name| alone(&fleet, name, &samples(name)));
    let best = best.into_iter().fold(0.0, f64::max);
    println!("{transport:?}: global {global:.4}, best alone {best:.4}, central {central:.4}");
    assert!(global >= best + 0.03, "global {global}, best alone {best}");
    assert!(central <= global + 0.03, "global {global}, central {central}");

    // The service takes the weights over: same container, no lost count.
    let published = fleet
        .until_status::<Model>(SMALL, "the new weights and their metrics", |status| {
            let accuracy = status.metrics.iter().find(|metric| metric.key == "accuracy");
            let is_there = |node: &ModelNode| {
                let source = status.reported_by.as_ref();
                node.state == ModelNodeState::Present
                    && node.sha256sum.is_some()
                    && source.is_some_and(|source| source.sha256sum == node.sha256sum)
            };
            accuracy.is_some_and(|metric| metric.value.parse::<f64>().unwrap() >= 0.95)
                && !status.nodes.is_empty()
                && status.nodes.iter().all(is_there)
        })
        .await;
    let source = published.reported_by.unwrap();
    // The data did not change in the run, so that it is known.
    let data = source.dataset.clone().expect("a training measured it");
    assert!(source.object.starts_with("trainingmodels/"), "{source:?}");
    assert!(data.state.is_some() && data.sha256.is_none(), "{data:?}");
    let url = source.model_url;
    assert!(url.starts_with(&format!("http://127.0.0.1:{}/v1/content/", training.port)), "{url}");
    let logs = format!("docker logs {container} 2>&1");
    let has_loaded = || {
        let logs = run(Command::new("sh").args(["-c", &logs]));
        logs.contains("loaded another version of the model: ")
    };
    eventually("the worker to load the new weights", has_loaded).await;
    let loaded = totals(&fleet.services().get(NAME).await.unwrap().status.unwrap());
    let more = |s: &_| totals(s).inference > loaded.inference.max(before.inference);
    let after = fleet.until(NAME, "samples of the new weights", more).await;
    assert!(is_running(&after), "{after:#?}");
    assert_eq!(totals(&after).fallback, 0, "the cloud answered all hard samples");
    let containers = fleet.containers();
    assert!(containers.contains(&container[..12]), "it was not replaced:\n{containers}");
}

/// The limit of averaging that the example states: no node has ever seen a digit of another one.
#[tokio::test(flavor = "multi_thread")]
async fn disjoint_digits_make_a_model_that_is_worse() {
    let fleet = Fleet::with_more_nodes(Transport::Mqtt, 2).await;
    share_digits(&fleet.data_dir(), &["--disjoint"]);
    let _training = Federated::start(&fleet, SMALL, &[]).await;
    let accuracy = accuracy(&until_succeeded(&fleet).await);
    println!("disjoint digits: {accuracy:.4}");
    assert!((0.80..0.93).contains(&accuracy), "{accuracy}");
}

/// Two of five nodes have nearly all samples. With the defaults every update counts in every round.
#[tokio::test(flavor = "multi_thread")]
async fn unequal_shares_count_in_full_by_default() {
    const SHARES: [(&str, usize); 5] = [("a", 590), ("b", 589), ("c", 6), ("d", 6), ("e", 6)];
    let fleet = Fleet::with_more_nodes(Transport::Mqtt, 4).await;
    let digits = root().join("examples/digits/data");
    let all = fs::read_to_string(digits.join("train.csv")).unwrap();
    let mut lines = all.split_inclusive('\n');
    for (name, samples) in SHARES {
        let share: String = lines.by_ref().take(samples).collect();
        fs::write(fleet.data_dir().join(format!("{name}.csv")), share).unwrap();
    }
    assert_eq!(lines.next(), None, "all samples are shared");
    fs::copy(digits.join("test.csv"), fleet.data_dir().join("test.csv")).unwrap();
    let mut workers = vec![r#"dataset: {name: "digits-c"}}"#.to_owned()];
    for (name, node) in [("d", fleet.other(2)), ("e", fleet.other(3))] {
        fleet.apply(&more_digits(&fleet, name, node));
        let dataset = format!("dataset: {{name: digits-{name}}}");
        workers.push(format!("- {{name: {name}, nodeName: {node}, {dataset}}}"));
    }
    let workers = workers.join("\n    ");
    let replace = [(r#"dataset: {name: "digits-c"}}"#, &*workers)];
    let _training = Federated::start(&fleet, SMALL, &replace).await;
    let status = until_succeeded(&fleet).await;
    let rounds: Vec<_> = status.history.iter().map(|it| (it.participants, it.samples)).collect();
    assert_eq!(rounds, [(5, 1197); ROUNDS as usize], "{status:#?}");
    for round in &status.history {
        let rows = round.workers.iter().map(|it| (&*it.name, it.samples, it.metrics.len()));
        let expected = SHARES.map(|(name, samples)| (name, i64::try_from(samples).ok(), 1));
        assert_eq!(rows.collect::<Vec<_>>(), expected, "{round:#?}");
        assert!(
            round.workers.iter().all(|it| it.loss.is_some() && it.norm.is_some()),
            "{round:#?}"
        );
    }
    let (global, central) = (accuracy(&status), alone(&fleet, "central", &all));
    println!("shares {SHARES:?}: global {global:.4}, central {central:.4}");
    assert!(global >= central - 0.03, "global {global}, central {central}");
    let is_published = |status: &ModelStatus| !status.metrics.is_empty();
    fleet.until_status::<Model>(SMALL, "the weights to be published", is_published).await;
}

/// The Dataset of one more share of the digits.
fn more_digits(fleet: &Fleet, name: &str, node: &str) -> String {
    serde_json::json!({
        "apiVersion": "edgeai.io/v1alpha1", "kind": "Dataset",
        "metadata": {"name": format!("digits-{name}")},
        "spec": {
            "dataUrl": fleet.data_dir().join(format!("{name}.csv")), "format": "csv",
            "nodeName": node, "header": false, "labelColumn": "64",
        },
    })
    .to_string()
}
