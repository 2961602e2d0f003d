//! A node works on with no word from the cloud, and both sides catch up when it is back.

use std::time::Duration;

use neptune_api::{JisConditionType, JointInferenceServiceStatus};
use neptune_e2e::{Fleet, KillTarget, Transport, Truth, is_running, totals};

use crate::{
    digits::{NAME, models, models_manifest, service_manifest},
    trouble::says,
};

over_each_transport!(a_node_that_is_away_counts_on_and_catches_up_when_it_is_back);

async fn a_node_that_is_away_counts_on_and_catches_up_when_it_is_back(transport: Transport) {
    let models = models().await;
    let mut fleet = Fleet::start(transport).await;
    let truth = Truth::listen(&fleet.broker.url(), "edge");
    fleet.apply(&models_manifest(&fleet, &models));
    fleet.apply(&service_manifest(&fleet, 50, 0));
    let counts = |status: &JointInferenceServiceStatus| {
        is_running(status) && totals(status).inference > 0 && truth.runs() > 0
    };
    let before = fleet.until(NAME, "counting", counts).await;
    let container = fleet.container(&fleet.edge);

    // Over KubeEdge nobody is told; what is changed meanwhile gets a 200 and is lost.
    fleet.isolate_edge().await;
    let away = |s: &JointInferenceServiceStatus| says(s, JisConditionType::Pending, "NodeOffline");
    fleet.until(NAME, "Pending for want of its node", away).await;
    fleet.apply(&service_manifest(&fleet, 200, 0));
    let counted = truth.total().inference;
    while truth.total().inference < counted + 100 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(fleet.container(&fleet.edge), container, "nobody could tell it");

    fleet.rejoin_edge().await;
    let back = |s: &JointInferenceServiceStatus| {
        is_running(s)
            && s.observed_generation > before.observed_generation
            && totals(s).inference > counted + 400
    };
    fleet.until(NAME, "counting on, faster", back).await;
    // Its new parameters are another container's: what the first one counted meanwhile may be told before.
    fleet.replaced(&fleet.edge, &container).await;

    // A deletion while what is between them starts again.
    match fleet.kubeedge() {
        Some(kubeedge) => kubeedge.make("restart-cloudcore").await,
        None => fleet.kill(KillTarget::Broker).await,
    }
    fleet.kubectl(&["delete", "jis", NAME]);
    if let Some(kubeedge) = fleet.kubeedge() {
        kubeedge.make(&format!("restart-edgecore/{}", fleet.edge)).await;
    }
    fleet.no_containers().await;
}

/// A service that ran to its end, and says nothing more.
async fn completed(fleet: &Fleet) {
    let done = |s: &JointInferenceServiceStatus| is_running(s) && totals(s).inference == 600;
    fleet.until(NAME, "Running, with all samples counted", done).await;
}

#[tokio::test]
async fn a_node_that_died_is_offline_to_the_controller_and_to_the_next_one() {
    let models = models().await;
    let mut fleet = Fleet::start(Transport::Mqtt).await;
    fleet.apply(&models_manifest(&fleet, &models));
    fleet.apply(&service_manifest(&fleet, 300, 1));
    completed(&fleet).await;

    fleet.stop_agent();
    let offline =
        |s: &JointInferenceServiceStatus| says(s, JisConditionType::Pending, "NodeOffline");
    let seen = fleet.until(NAME, "Pending for its node", offline).await;
    fleet.kill(KillTarget::Controller).await;
    // By which the next controller's own word is known.
    fleet.apply(&service_manifest(&fleet, 200, 1));
    let still = |s: &JointInferenceServiceStatus| {
        s.observed_generation > seen.observed_generation && offline(s)
    };
    let status = fleet.until(NAME, "Pending for its node, says the next controller", still).await;
    assert_eq!(totals(&status).inference, 600);

    fleet.start_agent();
    let again = |s: &JointInferenceServiceStatus| is_running(s) && totals(s).inference == 1200;
    fleet.until(NAME, "Running, with the samples of both runs", again).await;
}

#[tokio::test]
async fn a_controller_that_starts_beside_a_service_at_rest_says_that_it_runs() {
    let models = models().await;
    let mut fleet = Fleet::start(Transport::Mqtt).await;
    fleet.apply(&models_manifest(&fleet, &models));
    fleet.apply(&service_manifest(&fleet, 300, 1));
    completed(&fleet).await;

    fleet.kill(KillTarget::Controller).await;
    // The nodes are told nothing of this.
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
    let says_so = |s: &JointInferenceServiceStatus| is_running(s) && s.active == Some(2);
    let status = fleet.until(NAME, "Running, says the next controller", says_so).await;
    assert_eq!(totals(&status).inference, 600);
}
