//! A node works on with no word from the cloud, and both sides catch up when it is back.

use std::time::Duration;

use neptune_api::{ConditionType, JointInferenceServiceStatus};
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
    let away = |s: &JointInferenceServiceStatus| says(s, ConditionType::Pending, "NodeOffline");
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
    assert_ne!(fleet.container(&fleet.edge), container, "the worker has its new parameters");

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
