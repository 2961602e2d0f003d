//! The sample `helmet-detection-demo`, with Python scripts on the node.

use std::process::Command;

use neptune_api::JointInferenceServiceStatus;
use neptune_e2e::{Fleet, Transport, is_running, totals};
use neptune_harness::{
    docker::require_image,
    workspace::{root, run},
};

const NAME: &str = "helmet-detection-demo";

over_each_transport!(sample_service_counts_in_kubectl_and_mosquitto_sub);

async fn sample_service_counts_in_kubectl_and_mosquitto_sub(transport: Transport) {
    require_image("neptune/python:dev", "hack/build-python-image.sh");
    let fleet = Fleet::start(transport).await;
    let code = root().join("examples/helmet-detection");
    for (file, more) in [("models.yaml", None), ("service.yaml", Some("solar-corona-cloud"))] {
        let namespace = format!("namespace: {}", fleet.namespace);
        let mut replace =
            vec![("\"/code", format!("\"{}", code.display())), ("namespace: default", namespace)];
        replace.extend(more.map(|node| (node, fleet.cloud.clone())));
        let replace: Vec<_> = replace.iter().map(|(from, to)| (*from, to.as_str())).collect();
        fleet.apply(&fleet.manifest(&format!("examples/helmet-detection/{file}"), &replace));
    }

    let counts = |status: &JointInferenceServiceStatus| {
        is_running(status) && totals(status).inference >= 20 && totals(status).hard > 0
    };
    let first = fleet.until(NAME, "Running and counting hard frames", counts).await;
    assert_eq!((first.active, first.failed), (Some(2), Some(0)));
    let rises =
        |status: &JointInferenceServiceStatus| totals(status).inference > totals(&first).inference;
    fleet.until(NAME, "more counters", rises).await;

    let table = fleet.kubectl(&["get", "jis"]);
    let mut lines = table.lines();
    let headings: Vec<_> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(headings[..4], ["NAME", "STATUS", "ACTIVE", "FAILED"], "{table}");
    let row: Vec<_> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(row[..4], [NAME, "Running", "2", "0"], "{table}");

    let topic = match transport {
        Transport::Mqtt | Transport::Rumqttd => {
            format!("neptune/{}/upstream/+/jointinferenceservices/#", fleet.edge)
        }
        // In batches, some of which are only heartbeats.
        Transport::EventBus | Transport::KubeEdge(_) => {
            format!("{}/user/neptune/upstream", fleet.namespace)
        }
    };
    let output = observe(&fleet, &topic, 5);
    let upstream = format!("neptune/{}/upstream/", fleet.edge);
    let counts = |line: &str| line.contains(&upstream) && line.contains("\"inferenceNumber\":");
    assert!(output.lines().any(counts), "{output}");
}

/// The next messages on a topic of the edge node's broker, by `mosquitto_sub`.
fn observe(fleet: &Fleet, topic: &str, messages: usize) -> String {
    let (port, count) = (fleet.broker.port().to_string(), messages.to_string());
    let output = run(Command::new("mosquitto_sub")
        .args(["-p", &port, "-t", topic, "-v", "-C", &count, "-W", "20"]));
    assert_eq!(output.lines().count(), messages, "{output}");
    output
}
