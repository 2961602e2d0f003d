//! The broker authenticates nodes, the API server registers them. Over MQTT, too, the reports of a
//! node count only while it is registered, and no earlier report is lost.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use harness::{Agent, Harness};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::DeleteParams};
use neptune_harness::eventually_async;
use serde_json::json;

const REFUSED: &str = "neptune_controller_upstream_rejected_total{reason=\"unknown_node\"}";
const ONLINE: &str = "neptune_fleet_nodes{state=\"online\"}";

async fn until_refused(harness: &Harness, times: u64) {
    eventually_async("the refusal", async || harness.metric(REFUSED).await >= times).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_of_an_unregistered_node_count_once_registered() {
    let harness = Harness::start().await;
    let (mut agent, task) = harness.counting_agent().await;
    assert_eq!(harness.metric(REFUSED).await, 0);

    let nodes: Api<Node> = Api::all(harness.client.clone());
    nodes.delete("edge0", &DeleteParams::default()).await.unwrap();
    harness.status("NodeNotFound", |s| s.reason == "NodeNotFound").await;
    agent.report_running(&task, Some((20, 2)));
    until_refused(&harness, 1).await;
    harness.status("unchanged counters", |s| s.inference == 10 && s.hard == 1).await;

    // Its agent publishes nothing more.
    harness.node("edge0", json!({"node-role.kubernetes.io/edge": ""})).await;
    harness.status("the counters of the meantime", |s| s.inference == 20 && s.hard == 2).await;
    agent.report_running(&task, Some((30, 3)));
    harness.status("more counters", |s| s.inference == 30).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn birth_before_controller_and_node_exist_is_not_lost() {
    let mut harness = Harness::without_controller().await;
    let agent = Agent::connect(&harness, "edge7", "a", 1).await;
    agent.flushed().await;
    harness.start_controller();
    until_refused(&harness, 1).await;
    for refused in 2..=10 {
        agent.sync();
        // A newer message on a topic replaces one that waits.
        until_refused(&harness, refused).await;
    }
    let logged = harness.log().lines().filter(|line| line.contains("Node edge7 not found")).count();
    assert_eq!(logged, 1, "logged once, counted always:\n{}", harness.log());
    assert_eq!(harness.metric(ONLINE).await, 0);

    harness.node("edge7", json!({"node-role.kubernetes.io/edge": ""})).await;
    harness.until_metric(ONLINE, 1).await;
}
