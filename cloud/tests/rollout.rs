//! Rollouts of the built controller over a fleet of simulated agents.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use harness::{Harness, SERVICE, fleet::SimulatedFleet, sample};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::ListParams;
use neptune_api::{JointInferenceService, Placement, Rollout, RolloutState, RolloutStatus};
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

    fleet.stop(NODES - usize::try_from(ONLINE).unwrap());
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
