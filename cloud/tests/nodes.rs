//! Nodes: an `EdgeNode` is a node, with or without a Node of its name; the controller keeps its keys
//! and what its agent reports; a person revokes it.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use harness::{Agent, Harness, agent::pin, sample};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use neptune_api::{EdgeNode, EdgeNodeStatus};
use neptune_harness::eventually_async;
use serde_json::json;

const REVOKED: &str = "neptune_controller_upstream_rejected_total{reason=\"revoked\"}";

fn status(object: &EdgeNode) -> EdgeNodeStatus {
    object.status.clone().unwrap_or_default()
}

async fn revoked(harness: &Harness, is_revoked: bool) {
    let patch = Patch::Merge(json!({"spec": {"revoked": is_revoked}}));
    harness.edge_nodes().patch("edge0", &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn edge_node_alone_is_a_node_that_its_labels_select() {
    let harness = Harness::start().await;
    harness.models().await;
    harness.edge_node("shop-7", json!({"site": "west"}), json!({})).await;
    let mut service = sample();
    service.spec.edge_worker.node_name = None;
    service.spec.edge_worker.node_selector = [("site".to_owned(), "west".to_owned())].into();
    harness.apply(service).await;
    let mut agent = Agent::connect(&harness, "shop-7", "a", 1).await;
    let task = agent.task().await;
    agent.report_running(&task, Some((10, 1)));
    harness.status("counters of the EdgeNode", |s| s.inference == 10).await;

    harness.edge_nodes().delete("shop-7", &DeleteParams::default()).await.unwrap();
    harness.status("NodeNotFound", |s| s.reason == "NodeNotFound").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_whose_agent_connects_gets_an_edge_node_with_its_key() {
    let harness = Harness::start().await;
    let _agent = Agent::connect(&harness, "edge0", "a", 1).await;
    let is_recorded = |it: &EdgeNode| status(it).trusted_key == Some(pin("a").0);
    let object = harness.until_edge_node("edge0", "the first key", is_recorded).await;
    assert!(object.spec.requires_node);
    assert_eq!((object.spec.trusted_key.as_ref(), status(&object).reported_key), (None, None));
    assert_eq!(status(&object).online, Some(true));
    let conditions = status(&object).conditions;
    let reasons: Vec<_> =
        conditions.iter().map(|it| format!("{} {}", it.type_, it.reason)).collect();
    assert_eq!(reasons, ["Ready AgentConnected", "KeyTrusted KeyInUse"]);

    let _other = Agent::connect(&harness, "edge0", "b", 1).await;
    let is_replaced = |it: &EdgeNode| status(it).trusted_key == Some(pin("b").0);
    harness.until_edge_node("edge0", "the new key", is_replaced).await;
    harness.event("NodeKeyChanged").await;

    let nodes: Api<Node> = Api::all(harness.client.clone());
    nodes.delete("edge0", &DeleteParams::default()).await.unwrap();
    harness.models().await;
    harness.apply_sample().await;
    harness.status("no such node", |s| s.reason == "NodeNotFound").await;
    let kept = harness.edge_nodes().get("edge0").await.unwrap();
    assert_eq!(status(&kept).trusted_key, Some(pin("b").0), "its key stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn command_shows_nodes_and_what_runs_on_one() {
    let harness = Harness::start().await;
    let (_agent, _) = harness.counting_agent().await;
    let is_seen = |it: &EdgeNode| status(it).agent_version.is_some();
    harness.until_edge_node("edge0", "its version", is_seen).await;
    let (text, error, ok) = harness.try_neptune(&["nodes"]);
    assert!(ok, "{error}");
    let line = text.lines().find(|line| line.starts_with("edge0 ")).unwrap();
    let cells: Vec<_> = line.split_whitespace().collect();
    assert_eq!(cells, ["edge0", "True", "test", "-", "-", "1", "KeyInUse"], "{text}");
    let (text, error, ok) = harness.try_neptune(&["nodes", "edge0"]);
    assert!(ok, "{error}");
    assert!(text.contains("Ready      True (AgentConnected) for "), "{text}");
    let object = format!("default     jis/{}   edge ", harness::SERVICE);
    assert!(text.contains(&object), "{text}");
    let (_, error, ok) = harness.try_neptune(&["nodes", "edge7"]);
    assert!(!ok && error.contains("no agent of node edge7 has connected"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_revoked_node_are_dropped_until_it_is_restored() {
    let harness = Harness::start().await;
    let (mut agent, task) = harness.counting_agent().await;
    assert_eq!(harness.metric(REVOKED).await, 0);

    harness.neptune(&["revoke", "edge0"]);
    let named = harness.status("NodeNotFound", |s| s.reason == "NodeNotFound").await;
    assert!(
        named.message.starts_with("node \"edge0\" is revoked; name another"),
        "{}",
        named.message
    );
    agent.report_running(&task, Some((20, 2)));
    eventually_async("the refusal", async || harness.metric(REVOKED).await > 0).await;
    let refused = harness.metric(REVOKED).await;
    agent.sync();
    eventually_async("its refusal", async || harness.metric(REVOKED).await > refused).await;
    harness.status("unchanged counters", |s| s.inference == 10).await;

    revoked(&harness, false).await;
    harness.status("the counters of the meantime", |s| s.inference == 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_an_earlier_version_are_migrated_once() {
    let mut harness = Harness::without_controller().await;
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "neptune-node-keys"},
        "data": {"edge0": pin("a").0, "gone": pin("b").0, "solar-corona-cloud": "x"}});
    let object: ConfigMap = serde_json::from_value(object).unwrap();
    harness.api::<ConfigMap>().create(&PostParams::default(), &object).await.unwrap();
    harness.start_controller_with(&["--namespace", "default"]);
    let is_migrated = |it: &EdgeNode| status(it).trusted_key == Some(pin("a").0);
    let object = harness.until_edge_node("edge0", "the migrated key", is_migrated).await;
    assert!(object.spec.requires_node);
    harness.event("NodeKeysNotMigrated").await;
    eventually_async("the annotation", async || {
        let object = harness.api::<ConfigMap>().get("neptune-node-keys").await.unwrap();
        object.metadata.annotations.is_some_and(|it| it.contains_key("neptune.io/migrated"))
    })
    .await;
    for absent in ["gone", "solar-corona-cloud"] {
        assert!(harness.edge_nodes().get_opt(absent).await.unwrap().is_none(), "{absent}");
    }

    let _agent = Agent::connect(&harness, "edge0", "c", 1).await;
    let is_replaced = |it: &EdgeNode| status(it).trusted_key == Some(pin("c").0);
    harness.until_edge_node("edge0", "the new key", is_replaced).await;
    harness.event("NodeKeyChanged").await;
}
