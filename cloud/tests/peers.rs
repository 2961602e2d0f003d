//! The peers of a node: which agents get a roster, and when it changes.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use harness::{Agent, Harness, agent::pin};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use neptune_api::EdgeNode;
use neptune_wire::{ObjectContent, PeerEndpoint, PeerRoster, Replica};
use serde_json::{Value, json};

fn labels(zone: &str) -> Value {
    json!({"node-role.kubernetes.io/edge": "", "topology.kubernetes.io/zone": zone})
}

fn sharing(address: &str) -> PeerEndpoint {
    PeerEndpoint {
        addresses: vec![address.to_owned()],
        shares_models: true,
        allows_replicas: false,
    }
}

/// The peers in a roster: name, address and pin.
fn peers(content: &ObjectContent) -> Vec<(&str, &str, &str)> {
    let roster = content.peers.as_deref().unwrap();
    let shares = |it: &neptune_wire::RosterPeer| it.shares_models;
    assert!(roster.peers.iter().all(shares));
    let peers = roster.peers.iter();
    peers.map(|it| (it.node.as_str(), it.addresses[0].as_str(), it.pin.0.as_str())).collect()
}

async fn has_peers(agent: &mut Agent, what: &str, expected: &[(&str, &str, &str)]) {
    let key = PeerRoster::key(&agent.node);
    agent.has(&key, what, |content| peers(content) == expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn roster_follows_reports_labels_and_nodes_of_the_zone() {
    let mut harness = Harness::start().await;
    for node in ["edge0", "edge1", "edge2"] {
        harness.node(node, labels("west")).await;
    }
    let mut first = Agent::connect(&harness, "edge0", "a", 1).await;
    let second = Agent::connect(&harness, "edge1", "b", 1).await;
    let mut older = Agent::connect(&harness, "edge2", "c", 1).await;
    first.report_peers(sharing("10.0.0.1:8417"));
    has_peers(&mut first, "an empty roster", &[]).await;
    second.report_peers(sharing("10.0.0.2:8417"));
    let pin_b = pin("b");
    has_peers(&mut first, "the second node", &[("edge1", "10.0.0.2:8417", &pin_b.0)]).await;
    second.report_peers(sharing("10.0.0.9:8417"));
    let moved = [("edge1", "10.0.0.9:8417", pin_b.0.as_str())];
    has_peers(&mut first, "the new address", &moved).await;

    harness.node("edge1", labels("east")).await;
    has_peers(&mut first, "no node of another zone", &[]).await;
    harness.node("edge1", labels("west")).await;
    has_peers(&mut first, "the node again", &moved).await;

    harness.kill_controller();
    harness.start_controller();
    let is_planned = |replica: &Replica| replica.is_complete();
    first.until("the index of the new controller", is_planned).await;
    has_peers(&mut first, "the node after a restart of the controller", &moved).await;

    let nodes: Api<Node> = Api::all(harness.client.clone());
    nodes.delete("edge1", &DeleteParams::default()).await.unwrap();
    has_peers(&mut first, "no deleted node", &[]).await;

    older.until("an index", |replica| replica.index().revision.0 > 0).await;
    assert_eq!(older.replica.objects().len(), 0, "it reports no peers");
}

#[tokio::test(flavor = "multi_thread")]
async fn first_key_waits_until_it_is_trusted_if_known_keys_are_required() {
    let mut harness = Harness::without_controller().await;
    harness.node("edge0", labels("west")).await;
    harness.start_controller_with(&["--require-known-keys"]);
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    agent.report_peers(sharing("10.0.0.1:8417"));
    let keys = |object: &EdgeNode| {
        let status = object.status.clone().unwrap_or_default();
        (object.spec.trusted_key.clone(), status.trusted_key, status.reported_key)
    };
    let waits = (None, None, Some(pin("a").0));
    harness.until_edge_node("edge0", "the key that waits", |it| keys(it) == waits).await;
    harness.event("NodeKeyUnknown").await;

    let typed = pin("a").0.replace("sha256:", "SHA256:");
    let typed = Patch::Merge(json!({"spec": {"trustedKey": typed}}));
    let refused = harness.edge_nodes().patch("edge0", &PatchParams::default(), &typed).await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 422));

    harness.neptune(&["trust", "edge0"]);
    has_peers(&mut agent, "the roster of a known node", &[]).await;
    let trusted = (Some(pin("a").0), None, None);
    harness.until_edge_node("edge0", "no key that waits", |it| keys(it) == trusted).await;
}
