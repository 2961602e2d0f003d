//! A training whose rounds a server of its own decides, with strategy `Worker`: two nodes, and a
//! server in plain Python. The server's container is killed once.

use std::{fs, net::UdpSocket, process::Command};

use neptune_api::{TrainingModel, TrainingModelStatus, TrainingPhase};
use neptune_e2e::{AggregatorProcess, Fleet, ModelServer, Transport};
use neptune_harness::{
    docker::{self, docker, require_image},
    eventually, free_port,
    workspace::{root, run},
};

over_each_transport!(session_survives_a_kill_of_its_server,);

const NAME: &str = "session";
const IMAGE: &str = "neptune/python:dev";

/// The address of this machine for containers: that of its route to others. Nothing is sent.
pub fn host_of_containers() -> String {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("192.0.2.1:9").expect("a route");
    socket.local_addr().unwrap().ip().to_string()
}

/// Packs a folder, and serves the archive as `program.tar.gz`. Returns the server and the digest.
pub async fn pack(fleet: &Fleet, folder: &std::path::Path) -> (ModelServer, String) {
    let www = fleet.dir().join("www");
    fs::create_dir_all(&www).unwrap();
    let archive = www.join("program.tar.gz");
    run(Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(folder).arg("."));
    let digest = run(Command::new("sha256sum").arg(&archive))[..64].to_owned();
    (ModelServer::start(&www).await, digest)
}

/// Waits until the run has ended, and returns its status.
pub async fn until_ended(fleet: &Fleet, name: &str) -> TrainingModelStatus {
    let is_over = |status: &TrainingModelStatus| status.last_run.is_some();
    fleet.until_status::<TrainingModel>(name, "the end of the run", is_over).await
}

fn manifest(fleet: &Fleet, url: &str, digest: &str, port: u16, server: u16) -> String {
    let (edge0, edge1, host) = (&fleet.edge, fleet.other(0), host_of_containers());
    let data = fleet.data_dir();
    let dataset = |name: &str, node: &str| {
        format!(
            "apiVersion: edgeai.io/v1alpha1\nkind: Dataset\nmetadata: {{name: {name}}}\n\
             spec: {{dataUrl: {}/{name}.csv, format: csv, header: false, nodeName: {node}}}\n---\n",
            data.display()
        )
    };
    let datasets = [dataset("one", edge0), dataset("two", edge1)].concat();
    format!(
        r#"{datasets}apiVersion: sedna.io/v1alpha1
kind: TrainingModel
metadata: {{name: {NAME}}}
spec:
  script: {{url: "{url}/program.tar.gz", sha256sum: {digest}, bootFile: worker.py}}
  workerSpec:
    frameworkType: python
    image: {IMAGE}
    env: [{{name: PAUSE, value: "1"}}]
  trainingWorkers:
    - {{name: a, nodeName: {edge0}, dataset: {{name: one}}}}
    - {{name: b, nodeName: {edge1}, dataset: {{name: two}}}}
  aggregation:
    strategy: Worker
    rounds: 4
    maxUpdateBytes: 1Mi
    service: {{address: "{host}:{port}"}}
    worker:
      frameworkType: python
      image: {IMAGE}
      args: [/program/script/server.py]
      port: {server}
  output: {{model: {{name: mean}}}}
"#
    )
}

async fn session_survives_a_kill_of_its_server(transport: Transport) {
    require_image(IMAGE, "hack/build-python-image.sh");
    let fleet = Fleet::with_more_nodes(transport, 1).await;
    fs::write(fleet.data_dir().join("one.csv"), "1\n2\n3\n").unwrap();
    fs::write(fleet.data_dir().join("two.csv"), "4\n6\n").unwrap();
    let (scripts, digest) = pack(&fleet, &root().join("hack/e2e/session")).await;
    let (port, server) = (free_port(), free_port());
    fleet.apply(&manifest(&fleet, &scripts.url(), &digest, port, server));
    let aggregator = AggregatorProcess::start(&fleet, NAME, port).await;

    let has_round = |status: &TrainingModelStatus| status.round.is_some_and(|round| round >= 2);
    let status = fleet.until_status::<TrainingModel>(NAME, "round 2", has_round).await;
    assert_eq!((status.attempt, status.participants.as_deref()), (Some(1), Some("2/2")));
    assert_eq!(status.phase, Some(TrainingPhase::Running));
    aggregator.server().restart();
    let is_next = |status: &TrainingModelStatus| status.attempt == Some(2);
    let status = fleet.until_status::<TrainingModel>(NAME, "attempt 2", is_next).await;
    let degraded = status.conditions.iter().find(|condition| condition.type_ == "Degraded");
    let message = &degraded.expect("a condition").message;
    assert!(message.contains("attempt 1: the server ended with exit code 137"), "{message}");

    let status = until_ended(&fleet, NAME).await;
    let log = aggregator.server().log();
    assert_eq!(status.phase, Some(TrainingPhase::Succeeded), "{status:#?}\n{log}");
    assert_eq!((status.run, status.attempt), (Some(1), Some(2)), "{status:#?}");
    assert_eq!(status.progress.as_deref(), Some("4/4"));
    let rounds: Vec<_> =
        status.history.iter().map(|round| (round.round, round.participants)).collect();
    assert_eq!(rounds, [(1, 2), (2, 2), (3, 2), (4, 2)], "{status:#?}");
    // 3.5 per round: four of attempt 2, and two of attempt 1, whose weights it began with.
    let last = status.metrics.iter().find(|metric| metric.key == "w").expect("a metric");
    assert_eq!(last.value, "21", "{status:#?}");

    let output = status.output.expect("an output");
    let has_weights = |url: &str| url.contains(output.sha256sum.as_deref().unwrap());
    let model =
        fleet.kubectl(&["get", "models.edgeai.io", "mean", "-o", "jsonpath={.spec.modelUrl}"]);
    assert!(output.published && has_weights(&model), "{model}");
    assert!(model.ends_with("/weights.safetensors"), "{model}");
    eventually("the containers of the session to be removed", || {
        [&*fleet.edge, fleet.other(0)].iter().all(|node| {
            docker(&["ps", "-aq", "--filter", &docker::training_filter(node)]).is_empty()
        })
    })
    .await;
}
