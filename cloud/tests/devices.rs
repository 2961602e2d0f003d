//! Workers that request devices, with agents that offer them.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use harness::{Agent, Harness, sample};
use neptune_wire::{AgentFeature, OfferedDevice};
use serde_json::json;

fn camera(total: u32, free: u32) -> Vec<OfferedDevice> {
    let resource = "neptune.io/camera".to_owned();
    vec![OfferedDevice { resource, total, free, missing: 0 }]
}

/// Applies the sample with a request for one camera.
async fn apply(harness: &Harness) {
    let mut service = sample();
    let program = service.spec.edge_worker.worker_spec.as_mut().unwrap();
    let resources = json!({"limits": {"neptune.io/camera": 1}});
    program.resources = serde_json::from_value(resources).unwrap();
    harness.apply(service).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_with_a_device_starts_when_the_agent_supports_and_offers_it() {
    let harness = Harness::start().await;
    harness.models().await;
    // An agent of an earlier version.
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    apply(&harness).await;
    let text = "the agent of node edge0 does not support devices; upgrade it";
    harness.status("AgentTooOld", |s| s.reason == "AgentTooOld" && s.message.contains(text)).await;
    agent.report_offer(vec![AgentFeature::Devices], Vec::new());
    let text = "node edge0 offers no neptune.io/camera; it offers no device;";
    harness
        .status("DeviceUnknown", |s| s.reason == "DeviceUnknown" && s.message.contains(text))
        .await;
    agent.report_offer(vec![AgentFeature::Devices], camera(1, 1));
    let task = agent.task().await;
    assert_eq!(task.workers[0].program.devices, [("neptune.io/camera".to_owned(), 1)].into());
    agent.report_running(&task, Some((10, 1)));
    harness.status("counters", |s| s.inference == 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_keeps_its_worker_when_a_change_requests_more_than_it_offers() {
    let mut harness = Harness::start().await;
    harness.models().await;
    let mut agent = Agent::offering(&harness, "edge0", camera(1, 1)).await;
    apply(&harness).await;
    let task = agent.task().await;
    agent.report_running(&task, Some((10, 1)));
    harness.status("counters", |s| s.inference == 10).await;
    let two =
        json!({"edgeWorker": {"workerSpec": {"resources": {"limits": {"neptune.io/camera": 2}}}}});
    harness.patch(two).await;
    let text = "node edge0 offers 1 neptune.io/camera, and 2 are requested";
    harness
        .status("DeviceUnknown", |s| s.reason == "DeviceUnknown" && s.message.contains(text))
        .await;
    agent.report_running(&task, Some((20, 2)));
    harness.status("its counters go on", |s| s.inference == 20).await;
    assert_eq!(agent.task().await, task, "the node has what it had");

    // A controller that starts does not know what the node offers, and withdraws nothing.
    harness.kill_controller();
    harness.start_controller();
    let one =
        json!({"edgeWorker": {"workerSpec": {"resources": {"limits": {"neptune.io/camera": 1}}}}});
    harness.patch(one).await;
    // The Pod of the cloud worker never starts here.
    harness.status("no obstacle", |s| s.reason == "CloudWorkerStarting").await;
    assert_eq!(agent.task().await, task, "nothing was withdrawn");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_is_chosen_among_those_that_offer_the_device() {
    let harness = Harness::start().await;
    harness.models().await;
    let mut agents = Vec::new();
    for (node, devices) in
        [("shop-1", Vec::new()), ("shop-2", camera(1, 0)), ("shop-3", camera(1, 1))]
    {
        harness.edge_node(node, json!({"site": "west"}), json!({})).await;
        agents.push(Agent::offering(&harness, node, devices).await);
    }
    let has_devices = |it: &neptune_api::EdgeNode| {
        it.status.as_ref().is_some_and(|status| status.device_summary.is_some())
    };
    for node in ["shop-2", "shop-3"] {
        harness.until_edge_node(node, "its devices", has_devices).await;
    }
    let mut service = sample();
    let edge = &mut service.spec.edge_worker;
    edge.node_name = None;
    edge.node_selector = [("site".to_owned(), "west".to_owned())].into();
    let resources = json!({"limits": {"neptune.io/camera": 1}});
    edge.worker_spec.as_mut().unwrap().resources = serde_json::from_value(resources).unwrap();
    harness.apply(service).await;
    let task = agents[2].task().await;
    assert_eq!(task.workers.len(), 1);
}
