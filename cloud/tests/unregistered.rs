//! A broker says who may speak as which node, the API server which nodes there are: over MQTT too, what a node says
//! counts only while it is registered, and nothing that it said before is lost.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one future and waits on its own.
#![allow(clippy::large_futures)]

mod bed;

use std::time::Duration;

use bed::{Agent, Bed, soon};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::DeleteParams};
use serde_json::json;

const REFUSED: &str = "neptune_controller_upstream_rejected_total{reason=\"UnknownNode\"}";
const ONLINE: &str = "neptune_controller_nodes{state=\"Online\"}";

async fn until_refused(bed: &Bed, times: u64) {
    soon("it is refused", async {
        while bed.metric(REFUSED).await < times {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_says_while_it_is_not_registered_counts_once_it_is_registered_again() {
    let bed = Bed::start().await;
    bed.models().await;
    bed.apply_sample().await;
    let mut agent = Agent::connect(&bed, "edge0", "a", 1).await;
    let task = agent.task().await;
    agent.report_running(&task, Some((10, 1)));
    bed.status("it counts", |s| s.inference == 10).await;
    assert_eq!(bed.metric(REFUSED).await, 0);

    let nodes: Api<Node> = Api::all(bed.client.clone());
    nodes.delete("edge0", &DeleteParams::default()).await.unwrap();
    bed.status("its node is gone", |s| s.reason == "NodeNotFound").await;
    agent.report_running(&task, Some((20, 2)));
    until_refused(&bed, 1).await;
    bed.status("nothing more counts", |s| s.inference == 10 && s.hard == 1).await;

    // Its agent has no more to say.
    bed.node("edge0", json!({"node-role.kubernetes.io/edge": ""})).await;
    bed.status("what it said meanwhile counts", |s| s.inference == 20 && s.hard == 2).await;
    agent.report_running(&task, Some((30, 3)));
    bed.status("it counts on", |s| s.inference == 30).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_spoke_before_there_was_a_controller_or_its_node_is_there_when_both_are() {
    let mut bed = Bed::without_controller().await;
    let agent = Agent::connect(&bed, "edge7", "a", 1).await;
    agent.flushed().await;
    bed.start_controller();
    until_refused(&bed, 1).await;
    for _ in 0..50 {
        agent.sync();
        agent.flushed().await;
    }
    until_refused(&bed, 51).await;
    let said = bed.log().lines().filter(|line| line.contains("there is no Node edge7")).count();
    assert_eq!(said, 1, "said once, counted always:\n{}", bed.log());
    assert_eq!(bed.metric(ONLINE).await, 0);

    bed.node("edge7", json!({"node-role.kubernetes.io/edge": ""})).await;
    bed.until_metric(ONLINE, 1).await;
}
