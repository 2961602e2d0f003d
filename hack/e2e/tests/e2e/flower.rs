//! The example `flower`: a Flower app trains on two nodes. Its `SuperLink` is killed once.

use std::{fs, process::Command, time::Duration};

use neptune_api::{TrainingModel, TrainingModelStatus, TrainingPhase};
use neptune_e2e::{AggregatorProcess, Fleet, Transport};
use neptune_harness::{
    docker::require_image,
    free_port,
    workspace::{root, run},
};

use crate::{
    digits::NAME,
    session::{host_of_containers, pack},
};

/// The longest time from one step of Flower to the next one.
const STEPS: u32 = 6;

/// Waits as long as Flower may need for a step: several times the usual time.
async fn until(
    fleet: &Fleet,
    what: &str,
    is_reached: impl Fn(&TrainingModelStatus) -> bool,
) -> TrainingModelStatus {
    for _ in 1..STEPS {
        let status = fleet.kubectl(&["get", "tm", NAME, "-o", "jsonpath={.status}"]);
        let status: TrainingModelStatus = serde_json::from_str(&status).unwrap_or_default();
        let begun = (status.round, status.attempt);
        if is_reached(&status) {
            return status;
        }
        let is_next = |status: &TrainingModelStatus| {
            (status.round, status.attempt) != begun || is_reached(status)
        };
        let status = fleet.until_status::<TrainingModel>(NAME, what, is_next).await;
        if is_reached(&status) {
            return status;
        }
    }
    fleet.until_status::<TrainingModel>(NAME, what, is_reached).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the image neptune/flower:dev: run hack/test-flower.sh"]
async fn flower_app_survives_a_kill_of_its_superlink() {
    require_image("neptune/flower:dev", "hack/build-flower-image.sh");
    let fleet = Fleet::with_more_nodes(Transport::Mqtt, 1).await;
    let example = root().join("examples");
    let data = fleet.data_dir();
    run(Command::new("python3").arg(example.join("federated/split.py")).arg(&data));
    for (name, node) in [("a", &*fleet.edge), ("b", fleet.other(0))] {
        fleet.apply(&format!(
            "apiVersion: edgeai.io/v1alpha1\nkind: Dataset\nmetadata: {{name: digits-{name}}}\n\
             spec: {{dataUrl: {}/{name}.csv, format: csv, header: false, nodeName: {node}}}\n",
            data.display()
        ));
    }
    let table = fs::read_to_string(example.join("flower/frameworks.yaml")).unwrap();
    fleet.apply(&table.replace("  namespace: neptune-system\n", ""));
    let (scripts, digest) = pack(&fleet, &example.join("flower/app")).await;
    let (port, server) = (free_port(), free_port());
    let service = format!("service: {{address: \"{}:{port}\"}}", host_of_containers());
    fleet.apply(&fleet.manifest(
        "examples/flower/training.yaml",
        &[
            ("${SCRIPT_SERVER}", &*scripts.url()),
            ("${SCRIPT_SHA256}", &digest),
            ("edge1", fleet.other(0)),
            ("port: 8000", &format!("port: {server}")),
            ("maxUpdateBytes: \"1Mi\"", &format!("maxUpdateBytes: \"1Mi\"\n    {service}")),
        ],
    ));
    let begin = std::time::Instant::now();
    let aggregator = AggregatorProcess::start(&fleet, NAME, port).await;
    let status = until(&fleet, "round 1", |status| status.round >= Some(1)).await;
    assert_eq!(status.attempt, Some(1), "{status:#?}\n{}", aggregator.server().log());
    let first: Duration = begin.elapsed();
    assert!(aggregator.server().kill("/opt/flower/bin/flower-superlink"), "no SuperLink runs");
    until(&fleet, "attempt 2", |status| status.attempt == Some(2)).await;
    let status = until(&fleet, "the end of the run", |status| status.last_run.is_some()).await;
    let log = aggregator.server().log();
    assert_eq!(status.phase, Some(TrainingPhase::Succeeded), "{status:#?}\n{log}");
    assert_eq!((status.run, status.attempt), (Some(1), Some(2)), "{status:#?}");
    assert_eq!(status.progress.as_deref(), Some("3/3"), "{status:#?}");
    let rounds: Vec<_> =
        status.history.iter().map(|round| (round.round, round.participants)).collect();
    assert_eq!(rounds, [(1, 2), (2, 2), (3, 2)], "{status:#?}");
    let accuracy = status.metrics.iter().find(|metric| metric.key == "accuracy").unwrap();
    assert!(accuracy.value.parse::<f64>().unwrap() > 0.9, "{status:#?}");
    let output = status.output.expect("an output");
    assert!(output.published && output.format.as_deref() == Some("npz"), "{output:#?}");
    println!(
        "attempt 2 succeeded: accuracy {}, round 1 after {first:.0?}, all after {:.0?}",
        accuracy.value,
        begin.elapsed()
    );
}
