//! Rollouts of the built controller over a fleet of simulated agents.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use harness::{
    Harness, SERVICE,
    fleet::{CANARIES, SimulatedFleet},
    sample,
};
use k8s_openapi::{
    api::apps::v1::ControllerRevision, apimachinery::pkg::util::intstr::IntOrString,
};
use kube::api::{ListParams, Patch, PatchParams};
use neptune_api::{JointInferenceService, Model, Placement, Rollout, RolloutState, RolloutStatus};
use serde_json::json;

/// Waits until the rollout of the sample matches.
async fn until(
    harness: &Harness,
    what: &str,
    matches: impl Fn(&RolloutStatus) -> bool + Send + Sync,
) -> RolloutStatus {
    let has = |service: &JointInferenceService| {
        let status = service.status.as_ref();
        let is_present = |status: &&neptune_api::JointInferenceServiceStatus| {
            status.observed_generation == service.metadata.generation
        };
        let rollout = status.filter(is_present).and_then(|status| status.rollout.as_deref());
        rollout.is_some_and(&matches)
    };
    let service = harness.until(SERVICE, what, has).await;
    *service.status.unwrap().rollout.unwrap()
}

/// The sample on the nodes of the fleet, with a rollout and this image.
fn service(image: &str) -> JointInferenceService {
    let mut service = sample();
    let edge = &mut service.spec.edge_worker;
    (edge.node_name, edge.placement) = (None, Some(Placement::All));
    edge.node_selector = [("area".to_owned(), "north".to_owned())].into();
    edge.worker_spec.as_mut().unwrap().image = Some(image.to_owned());
    service.spec.rollout =
        Some(Box::new(Rollout { min_ready_seconds: Some(0), ..Rollout::default() }));
    service
}

async fn set_image(harness: &Harness, image: &str) {
    harness.patch(json!({"edgeWorker": {"workerSpec": {"image": image}}})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_image_stops_at_one_node_and_a_correction_reaches_those_that_are_online() {
    const NODES: usize = 40;
    const ONLINE: i32 = 32;
    let mut harness = Harness::start().await;
    harness.models().await;
    let mut fleet = SimulatedFleet::start(&harness, NODES).await;
    harness.apply(service("edge:1")).await;
    let first = until(&harness, "the first placement", |it| it.summary == "40/40").await;
    assert_eq!((first.state, first.failed), (RolloutState::Complete, 0));
    assert_eq!(fleet.with_image("edge:1").len(), NODES);

    fleet.stop(NODES - usize::try_from(ONLINE).unwrap()).await;
    set_image(&harness, "edge:bad").await;
    let stopped = until(&harness, "the stop", |it| it.paused_time.is_some()).await;
    assert_eq!((stopped.state, stopped.failed, stopped.updated), (RolloutState::Paused, 1, 1));
    let bad = fleet.with_image("edge:bad");
    let message = format!(
        "rollout paused: 1 of 1 updated nodes failed ({}: CrashLoopBackOff); correct the spec, or run kubectl neptune rollout resume",
        bad[0]
    );
    assert_eq!((bad.len(), stopped.message), (1, Some(message)));
    harness.event("RolloutFailed").await;
    harness.event("NodesNotReady").await;

    harness.kill_controller();
    harness.start_controller();
    harness.neptune(&["rollout", "resume", &format!("jis/{SERVICE}"), "-n", "default"]);
    let stopped =
        until(&harness, "the second stop", |it| it.forgiven == 1 && it.paused_time.is_some()).await;
    assert_eq!((stopped.failed, fleet.with_image("edge:bad").len()), (2, 2));

    set_image(&harness, "edge:2").await;
    until(&harness, "a part of the nodes", |it| it.ready >= 4).await;
    harness.kill_controller();
    harness.start_controller();
    let done = until(&harness, "the correction", |it| it.state == RolloutState::Complete).await;
    assert_eq!((done.total, done.ready, done.failed), (40, ONLINE, 0), "{done:?}");
    assert_eq!(fleet.with_image("edge:2").len(), usize::try_from(ONLINE).unwrap());
    harness.event("RolloutComplete").await;

    let api = harness.api::<ControllerRevision>();
    neptune_harness::eventually_async("two recorded specs", async || {
        api.list(&ListParams::default()).await.unwrap().items.len() == 2
    })
    .await;
    harness.neptune(&["rollout", "undo", &format!("jis/{SERVICE}"), "-n", "default"]);
    let undone = until(&harness, "the undo", |it| {
        it.state == RolloutState::Complete && it.revision == first.revision
    })
    .await;
    assert_eq!((undone.ready, fleet.with_image("edge:2").len()), (ONLINE, 0), "{undone:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_rollout_reaches_no_node_until_it_is_resumed() {
    let harness = Harness::start().await;
    harness.models().await;
    let fleet = SimulatedFleet::start(&harness, 3).await;
    harness.apply(service("edge:1")).await;
    until(&harness, "the first placement", |it| it.summary == "3/3").await;
    harness.neptune(&["rollout", "pause", SERVICE, "-n", "default"]);
    set_image(&harness, "edge:2").await;
    let paused = until(&harness, "the pause", |it| it.state == RolloutState::Paused).await;
    assert_eq!((paused.updated, &*paused.summary), (0, "Paused"));
    assert_eq!(fleet.with_image("edge:1").len(), 3);
    let (status, ..) = harness.try_neptune(&["rollout", "status", SERVICE, "-n", "default"]);
    assert!(status.starts_with(&format!("jis/{SERVICE}: Paused, revision ")), "{status}");
    harness.neptune(&["rollout", "resume", SERVICE, "-n", "default"]);
    until(&harness, "the end", |it| it.state == RolloutState::Complete).await;
    assert_eq!(fleet.with_image("edge:2").len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_version_on_200_nodes_meets_one_or_the_canaries_and_a_good_one_all() {
    const NODES: usize = 200;
    const OFFLINE: usize = 40;
    let harness = Harness::start().await;
    harness.models().await;
    let mut fleet = SimulatedFleet::start(&harness, NODES).await;
    let mut object = service("edge:1");
    object.spec.rollout.as_mut().unwrap().max_unavailable = Some(IntOrString::Int(10));
    harness.apply(object).await;
    until(&harness, "the first placement", |it| it.summary == "200/200").await;

    set_image(&harness, "edge:bad").await;
    let stopped = until(&harness, "the stop", |it| it.paused_time.is_some()).await;
    assert_eq!((stopped.updated, stopped.failed), (1, 1), "{stopped:?}");
    assert_eq!(fleet.with_image("edge:bad").len(), 1);

    let worker = json!({"workerSpec": {"image": "other:bad"}});
    let canaries = json!({"canarySelector": {"ring": "canary"}});
    harness.patch(json!({"edgeWorker": worker, "rollout": canaries})).await;
    let stopped = until(&harness, "the stop at the canaries", |it| {
        it.revision != stopped.revision && it.paused_time.is_some()
    })
    .await;
    let bad = fleet.with_image("other:bad");
    assert!((1..=CANARIES).contains(&bad.len()), "{stopped:?}");
    assert!(bad.iter().all(|node| node.as_str() < "shop-010"), "{bad:?}");

    fleet.stop(OFFLINE).await;
    let worker = json!({"workerSpec": {"image": "edge:2"}});
    harness.patch(json!({"edgeWorker": worker, "rollout": {"maxUnavailable": 50}})).await;
    let done = until(&harness, "the correction", |it| it.state == RolloutState::Complete).await;
    assert_eq!((done.total, done.ready, done.failed), (200, 160, 0), "{done:?}");
    assert_eq!(fleet.with_image("edge:2").len(), NODES - OFFLINE);
    fleet.resume(&harness).await;
    let done = until(&harness, "the nodes that returned", |it| it.ready == 200).await;
    assert_eq!((done.state, done.failed), (RolloutState::Complete, 0), "{done:?}");
    assert_eq!(fleet.with_image("edge:2").len(), NODES);
}

/// The status, the reason and the message of the condition Ready of a Model.
async fn until_model_is(harness: &Harness, reason: &str) -> String {
    let ready = |model: &Model| {
        let mut conditions = model.status.clone().unwrap_or_default().conditions.into_iter();
        conditions.find(|it| it.type_ == "Ready")
    };
    let has_reason = |model: &Model| {
        let is_present = model.status.as_ref().and_then(|it| it.observed_generation)
            == model.metadata.generation;
        is_present && ready(model).is_some_and(|it| it.reason == reason)
    };
    ready(&harness.until("small-model", reason, has_reason).await).unwrap().message
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_model_waits_for_the_slowest_service_that_uses_it() {
    const NODES: usize = 6;
    let mut harness = Harness::start().await;
    harness.models().await;
    let placement = json!({"spec": {"placement": {"nodeSelector": {"area": "north"}}}});
    let models = harness.api::<Model>();
    models.patch("small-model", &PatchParams::default(), &Patch::Merge(placement)).await.unwrap();
    let fleet = SimulatedFleet::start(&harness, NODES).await;
    harness.apply(service("edge:1")).await;
    let mut slow = service("edge:1");
    slow.metadata.name = Some("slow".to_owned());
    slow.spec.edge_worker.name = "slow-edge".to_owned();
    harness.apply(slow).await;
    until(&harness, "the first placement", |it| it.summary == "6/6").await;
    let done = |service: &JointInferenceService| {
        let rollout = service.status.as_ref().and_then(|it| it.rollout.as_deref());
        rollout.is_some_and(|it| (it.state, it.ready) == (RolloutState::Complete, 6))
    };
    harness.until("slow", "the first placement of the other service", done).await;
    until_model_is(&harness, "ModelPresent").await;

    harness.neptune(&["rollout", "pause", "slow", "-n", "default"]);
    let change = Patch::Merge(json!({"spec": {"modelUrl": "/model/next.pb"}}));
    models.patch("small-model", &PatchParams::default(), &change).await.unwrap();
    let message = until_model_is(&harness, "AwaitingRollout").await;
    assert!(message.starts_with("0 of 6 nodes have the model; shop-000: keeps"), "{message}");
    let delayed =
        "0 of 6 nodes are updated, 0 are ready; 6 wait for another rollout of their Model";
    until(&harness, "all nodes to wait", |it| it.message.as_deref() == Some(delayed)).await;
    harness.kill_controller();
    harness.start_controller();
    until(&harness, "all nodes to wait again", |it| it.message.as_deref() == Some(delayed)).await;
    assert_eq!(
        (fleet.with_model("/model/small.pb").len(), fleet.with_model("/model/next.pb").len()),
        (NODES, 0)
    );

    harness.neptune(&["rollout", "resume", "slow", "-n", "default"]);
    let complete = |it: &RolloutStatus| (it.state, it.ready) == (RolloutState::Complete, 6);
    until(&harness, "the end", complete).await;
    harness.until("slow", "the end of the other rollout", done).await;
    assert_eq!(fleet.with_model("/model/next.pb").len(), NODES);
    until_model_is(&harness, "ModelPresent").await;
}
