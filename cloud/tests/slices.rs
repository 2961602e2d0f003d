//! A service on many nodes: its counters are in `NodeReportSlices`, and exact over kills, restarts
//! and deleted slices.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use std::collections::BTreeMap;

use harness::{Agent, Harness, SERVICE, sample};
use kube::{
    ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use neptune_api::{
    JointInferenceService, JointInferenceServiceStatus, NodeReportSlice, NodeSlices, Placement,
};
use neptune_harness::eventually_async;
use serde_json::json;

/// The sample on all nodes with the label `area=north`.
fn on_all_nodes() -> JointInferenceService {
    let mut service = sample();
    let edge = &mut service.spec.edge_worker;
    (edge.node_name, edge.placement) = (None, Some(Placement::All));
    edge.node_selector = [("area".to_owned(), "north".to_owned())].into();
    service
}

/// Applies the sample on this many nodes, whose agents are connected.
async fn service_on_nodes(harness: &Harness, count: usize) -> Vec<Agent> {
    harness.models().await;
    let mut agents = Vec::new();
    for at in 0..count {
        let name = format!("shop-{at:02}");
        harness.edge_node(&name, json!({"area": "north"}), json!({})).await;
        agents.push(Agent::connect(harness, &name, &format!("i{at}"), 1).await);
    }
    harness.apply(on_all_nodes()).await;
    agents
}

/// Waits until the status matches.
async fn until(
    harness: &Harness,
    what: &str,
    matches: impl Fn(&JointInferenceServiceStatus) -> bool + Send + Sync,
) -> JointInferenceServiceStatus {
    let is = |service: &JointInferenceService| service.status.as_ref().is_some_and(&matches);
    harness.until(SERVICE, what, is).await.status.unwrap()
}

fn total(status: &JointInferenceServiceStatus) -> u64 {
    status.totals.as_ref().map_or(0, |totals| totals.inference_number)
}

async fn slices(harness: &Harness) -> Vec<NodeReportSlice> {
    harness.api::<NodeReportSlice>().list(&ListParams::default()).await.unwrap().items
}

/// The sum of the inferences in all slices.
async fn stored(harness: &Harness) -> u64 {
    let slices = slices(harness).await;
    let rows = slices.iter().flat_map(|slice| &slice.rows);
    let counters = rows.filter_map(|row| row.counters.as_ref());
    let folded = slices.iter().filter_map(|slice| slice.folded.as_ref());
    counters.chain(folded).map(|counters| counters.inference_number).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn service_on_forty_nodes_counts_exactly_over_kills_and_restarts() {
    let mut harness = Harness::start().await;
    let mut agents = service_on_nodes(&harness, 40).await;
    for agent in &mut agents {
        let task = agent.task().await;
        agent.report_running(&task, Some((100, 10)));
    }
    let status = until(&harness, "all counters", |status| total(status) == 4000).await;
    assert_eq!(status.slices, Some(NodeSlices { count: 1, nodes: 40 }));
    assert!(status.reports.is_empty());
    assert_eq!(status.nodes.len(), 40, "a controller without slices leaves the worker on them");
    let ready = |status: &JointInferenceServiceStatus| {
        status.node_counts.as_ref().is_some_and(|counts| counts.summary == "40/40")
    };
    let status = until(&harness, "all nodes", ready).await;
    assert_eq!(status.edge_workers.len(), 40, "the same while the spec is invalid");
    assert!(status.edge_workers.iter().all(|row| row.state == "Running" && row.reason.is_none()));
    let metric = status.metrics.iter().find(|metric| metric.key == "inferenceNumber");
    assert_eq!(metric.unwrap().value, "4000");
    let slice = slices(&harness).await.remove(0);
    assert_eq!(slice.labels()[NodeReportSlice::OWNER_LABEL], SERVICE);
    assert_eq!(slice.owner_references()[0].name, SERVICE);

    // A controller without slices computes the same total from what all nodes report, and lists it.
    let report = json!({"node": "shop-00", "instance": "i0", "epoch": 1, "seq": 1,
        "inferenceNumber": 4000, "hardExampleNumber": 0});
    let patch = kube::api::Patch::Merge(json!({"status": {"reports": [report]}}));
    let services = harness.api::<JointInferenceService>();
    let refused = services.patch_status(SERVICE, &kube::api::PatchParams::default(), &patch).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("the counters of this service are in NodeReportSlices"), "{refused}");

    // The counters were reported less than 30 s ago: no slice has all of them. The broker has.
    harness.kill_controller();
    harness.start_controller();
    let task = agents[0].task().await;
    agents[0].report_running(&task, Some((150, 10)));
    until(&harness, "one more report", |status| total(status) == 4050).await;

    // A controller that is stopped writes all slices.
    harness.stop_controller().await;
    assert_eq!(stored(&harness).await, 4050);
    harness.start_controller();

    // A slice that a person deletes is created again.
    let name = slice.name_any();
    let api = harness.api::<NodeReportSlice>();
    // Its next status shows that it has read the slices.
    let task = agents[0].task().await;
    agents[0].report_running(&task, Some((160, 10)));
    until(&harness, "the restart", |status| total(status) == 4060 && ready(status)).await;
    let version = api.get(&name).await.unwrap().resource_version();
    api.delete(&name, &DeleteParams::default()).await.unwrap();
    let is_new = |slice: &NodeReportSlice| slice.resource_version() != version;
    harness.until(&name, "the deleted slice", is_new).await;
    assert_eq!(stored(&harness).await, 4060);

    // A node with a new data directory counts on.
    let node = agents[1].node.to_string();
    let mut wiped = Agent::connect(&harness, &node, "wiped", 1).await;
    let task = wiped.task().await;
    wiped.report_running(&task, Some((7, 0)));
    until(&harness, "both agents of the node", |status| total(status) == 4067).await;
    harness.stop_controller().await;
    assert_eq!(stored(&harness).await, 4067);
}

#[tokio::test(flavor = "multi_thread")]
async fn node_that_leaves_a_service_with_slices_counts_and_returns() {
    let mut harness = Harness::without_controller().await;
    harness.start_controller_with(&["--nodes-in-status", "1"]);
    let mut agents = service_on_nodes(&harness, 3).await;
    for agent in &mut agents {
        let task = agent.task().await;
        agent.report_running(&task, Some((10, 1)));
    }
    until(&harness, "the counters", |status| total(status) == 30).await;
    let label = |area: &str| {
        let nodes = harness.edge_nodes();
        let patch = kube::api::Patch::Merge(json!({"metadata": {"labels": {"area": area}}}));
        async move {
            let params = kube::api::PatchParams::default();
            nodes.patch("shop-00", &params, &patch).await.unwrap();
        }
    };
    label("south").await;
    let first = &mut agents[0];
    let task = first.task().await;
    first.until("the task to leave", |replica| replica.objects().is_empty()).await;
    first.report_running(&task, Some((15, 1)));
    let counts = |status: &JointInferenceServiceStatus, desired| {
        status.node_counts.as_ref().is_some_and(|counts| counts.desired == desired)
    };
    until(&harness, "its last report", |status| total(status) == 35 && counts(status, 2)).await;
    harness.stop_controller().await;
    let states: BTreeMap<String, Option<String>> = slices(&harness)
        .await
        .into_iter()
        .flat_map(|slice| slice.rows)
        .map(|row| (row.node, row.state))
        .collect();
    let running = Some("Running".to_owned());
    assert_eq!(states.into_values().collect::<Vec<_>>(), [None, running.clone(), running]);
    harness.start_controller_with(&["--nodes-in-status", "1"]);
    let nodes = harness.edge_nodes();
    let patch = kube::api::Patch::Merge(json!({"metadata": {"labels": {"area": "north"}}}));
    nodes.patch("shop-00", &kube::api::PatchParams::default(), &patch).await.unwrap();
    let first = &mut agents[0];
    let task = first.task().await;
    first.report_running(&task, Some((20, 2)));
    until(&harness, "the returned node", |status| total(status) == 40 && counts(status, 3)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_slice_is_reported_and_the_total_stays() {
    let mut harness = Harness::without_controller().await;
    harness.start_controller_with(&["--nodes-in-status", "1"]);
    let mut agents = service_on_nodes(&harness, 2).await;
    for agent in &mut agents {
        let task = agent.task().await;
        agent.report_running(&task, Some((10, 1)));
    }
    until(&harness, "the counters", |status| total(status) == 20).await;
    let node = agents[0].node.to_string();
    agents.remove(0);
    let mut wiped = Agent::connect(&harness, &node, "wiped", 1).await;
    let task = wiped.task().await;
    wiped.report_running(&task, Some((4, 0)));
    until(&harness, "the new agent", |status| total(status) == 24).await;
    harness.stop_controller().await;
    let api = harness.api::<NodeReportSlice>();
    for slice in slices(&harness).await {
        api.delete(&slice.name_any(), &DeleteParams::default()).await.unwrap();
    }
    harness.start_controller_with(&["--nodes-in-status", "1"]);
    harness.event("CountsIncomplete").await;
    eventually_async("the slice to be created again", async || {
        let slices = slices(&harness).await;
        slices.iter().flat_map(|slice| &slice.rows).count() == 2
    })
    .await;
    until(&harness, "the total of before", |status| total(status) == 24).await;
    // What the remaining agents count is more than what was lost.
    let task = agents[0].task().await;
    agents[0].report_running(&task, Some((10, 1)));
    wiped.report_running(&task, Some((30, 0)));
    until(&harness, "the new counts", |status| total(status) == 40).await;
}

/// Stores a slice of the service, as a controller does.
async fn store_slice(harness: &Harness, service: &JointInferenceService, index: usize) {
    let row = |at: usize| {
        let node = format!("shop-{index:02}{at:02}");
        let (state, reason) =
            if at == 0 { ("Failed", json!("CrashLoopBackOff")) } else { ("Running", json!(null)) };
        json!({"node": node, "instance": "a", "epoch": 1, "seq": 2, "state": state,
            "reason": reason, "inferenceNumber": 100 + index, "hardExampleNumber": 10})
    };
    let uid = service.uid().unwrap();
    let slice = json!({
        "apiVersion": "neptune.io/v1alpha1", "kind": "NodeReportSlice",
        "metadata": {
            "name": format!("{SERVICE}-{index:03}"),
            "labels": {(NodeReportSlice::OWNER_LABEL): SERVICE},
            "ownerReferences": [{"apiVersion": "neptune.io/v1alpha1", "name": SERVICE, "uid": uid,
                "kind": "JointInferenceService", "controller": true}],
        },
        "rows": (0..100).map(row).collect::<Vec<_>>(),
    });
    let slice: NodeReportSlice = serde_json::from_value(slice).unwrap();
    harness.api().create(&PostParams::default(), &slice).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn status_prints_the_nodes_of_slices_page_by_page() {
    const SLICES: usize = 60;
    let harness = Harness::without_controller().await;
    let service = harness.apply(on_all_nodes()).await;
    for index in 0..SLICES {
        store_slice(&harness, &service, index).await;
    }
    let counts = json!({"summary": "5940/6000", "desired": 6000, "ready": 5940, "pending": 0,
        "failed": 60, "completed": 0, "offline": 0, "unknown": 0});
    let status = json!({"status": {
        "metrics": [{"key": "inferenceNumber", "value": "0"}],
        "totals": {"inferenceNumber": 0, "hardExampleNumber": 0},
        "slices": {"count": SLICES, "nodes": 6000}, "nodeCounts": counts,
        "edgeWorkers": [{"node": "shop-0000", "state": "Failed", "reason": "OutOfMemory",
            "message": "more memory"}],
    }});
    let patch = kube::api::Patch::Merge(status);
    let api = harness.api::<JointInferenceService>();
    api.patch_status(SERVICE, &kube::api::PatchParams::default(), &patch).await.unwrap();

    let status = async |more: &[&str]| {
        let output = harness.command(&[&["status", SERVICE][..], more].concat()).await;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let (_, text, error) = status(&["--nodes"]).await;
    assert_eq!((text.lines().count(), error.as_str()), (6001, ""), "{}", &text[..500]);
    let (_, text, _) = status(&["--nodes=Failed"]).await;
    assert_eq!(text.lines().count(), 61, "{text}");
    assert!(text.contains("shop-5900   Failed (CrashLoopBackOff)"), "{text}");
    assert!(text.contains("more memory"), "the status has the message: {text}");
    let (_, text, error) = status(&["--nodes=Pending"]).await;
    assert_eq!(text, "");
    assert!(error.contains("no such nodes"), "{error}");
    let (_, text, _) = status(&["--nodes", "-o", "json"]).await;
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (json["name"].as_str(), json["nodes"].as_array().unwrap().len()),
        (Some(SERVICE), 6000)
    );
    let (_, text, _) = status(&["--node", "shop-5901"]).await;
    assert!(text.contains("159 inferences, 10 hard examples") && text.contains("-059"), "{text}");
    let (is_found, text, error) = status(&["--node", "elsewhere"]).await;
    assert!(!is_found && text.is_empty());
    assert!(error.contains("node elsewhere is not one of its 6000 nodes"), "{error}");
    let (_, text, _) = status(&[]).await;
    assert!(text.contains("5940 of 6000 ready, 60 failed"), "{text}");
}
