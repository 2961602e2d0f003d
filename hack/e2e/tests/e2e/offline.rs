//! A disconnected node keeps working, and both sides catch up on reconnect.

use std::time::Duration;

use neptune_api::JointInferenceServiceStatus;
use neptune_e2e::{Fleet, KillTarget, Transport, WorkerObserver, is_running, totals};

use crate::digits::{NAME, models, models_manifest, service_manifest};

over_each_transport!(offline_node_keeps_counting_and_catches_up);
on_rumqttd!(offline_node_keeps_counting_and_catches_up);

async fn offline_node_keeps_counting_and_catches_up(transport: Transport) {
    let models = models().await;
    let mut fleet = Fleet::start(transport).await;
    let observer = WorkerObserver::start(&fleet.broker.url(), "edge");
    fleet.apply(&models_manifest(&fleet, &models));
    fleet.apply(&service_manifest(&fleet, 50, 0));
    let counts = |status: &JointInferenceServiceStatus| {
        is_running(status) && totals(status).inference > 0 && observer.runs() > 0
    };
    let before = fleet.until(NAME, "counting", counts).await;
    let container = fleet.container(&fleet.edge);

    // With KubeEdge neither side notices; messages of the meantime are answered with 200 and lost.
    fleet.isolate_edge().await;
    fleet.until(NAME, "Running as far as is known", is_offline).await;
    fleet.apply(&service_manifest(&fleet, 200, 0));
    let counted = observer.total().inference;
    while observer.total().inference < counted + 100 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(fleet.container(&fleet.edge), container, "the node did not receive the change");

    fleet.rejoin_edge().await;
    let back = |s: &JointInferenceServiceStatus| {
        is_running(s)
            && s.observed_generation > before.observed_generation
            && totals(s).inference > counted + 400
    };
    fleet.until(NAME, "more counters, faster", back).await;
    // The new parameters need a new container. Counters of the first one may arrive before.
    fleet.replaced(&fleet.edge, &container).await;

    // A deletion while the transport restarts.
    match fleet.kubeedge() {
        Some(kubeedge) => kubeedge.control("restart-cloudcore").await,
        None if matches!(transport, Transport::KubeEdge(_)) => {
            fleet.kill(KillTarget::Cloudcore).await;
        }
        None => fleet.kill(KillTarget::Broker).await,
    }
    fleet.kubectl(&["delete", "jis", NAME]);
    match fleet.kubeedge() {
        Some(kubeedge) => kubeedge.control(&format!("restart-edgecore/{}", fleet.edge)).await,
        // Nothing without `KubeEdge`.
        None => fleet.kill(KillTarget::Edgecore).await,
    }
    fleet.no_containers().await;
}

/// Whether the last state stays because a node is offline.
fn is_offline(status: &JointInferenceServiceStatus) -> bool {
    status.conditions.last().is_some_and(|last| {
        last.status == "Unknown" && last.reason.as_deref() == Some("NodeOffline")
    })
}

/// Waits until the service has processed all samples; its worker reports nothing more.
async fn completed(fleet: &Fleet) {
    let done = |s: &JointInferenceServiceStatus| is_running(s) && totals(s).inference == 600;
    fleet.until(NAME, "Running, with all samples counted", done).await;
}

#[tokio::test]
async fn dead_node_is_offline_also_for_the_next_controller() {
    let models = models().await;
    let mut fleet = Fleet::start(Transport::Mqtt).await;
    fleet.apply(&models_manifest(&fleet, &models));
    fleet.apply(&service_manifest(&fleet, 300, 1));
    completed(&fleet).await;

    fleet.stop_agent();
    let seen = fleet.until(NAME, "Completed as far as is known", is_offline).await;
    fleet.kill(KillTarget::Controller).await;
    // Distinguishes the status of the next controller.
    fleet.apply(&service_manifest(&fleet, 200, 1));
    let still = |s: &JointInferenceServiceStatus| {
        s.observed_generation > seen.observed_generation && is_offline(s)
    };
    let status = fleet.until(NAME, "the same of the next controller", still).await;
    assert_eq!(totals(&status).inference, 600);

    fleet.start_agent();
    let again = |s: &JointInferenceServiceStatus| is_running(s) && totals(s).inference == 1200;
    fleet.until(NAME, "Running, with the samples of both runs", again).await;
}

#[tokio::test]
async fn new_controller_reports_a_completed_service() {
    let models = models().await;
    let mut fleet = Fleet::start(Transport::Mqtt).await;
    fleet.apply(&models_manifest(&fleet, &models));
    fleet.apply(&service_manifest(&fleet, 300, 1));
    completed(&fleet).await;

    fleet.kill(KillTarget::Controller).await;
    // This publishes nothing to the nodes.
    let patch = r#"{"metadata": {"annotations": {"seen": "by the next controller"}}}"#;
    fleet.kubectl(&["patch", "jis", NAME, "--type=merge", "-p", patch]);
    fleet.kubectl(&[
        "patch",
        "jis",
        NAME,
        "--subresource=status",
        "--type=merge",
        "-p",
        r#"{"status": {"active": null}}"#,
    ]);
    // The edge worker reports completed, so only the cloud worker is active.
    let is_restored = |s: &JointInferenceServiceStatus| is_running(s) && s.active == Some(1);
    let status = fleet.until(NAME, "Completed, by the next controller", is_restored).await;
    assert_eq!(totals(&status).inference, 600);
}
