//! The same, on nodes of `KubeEdge`'s: no broker in the cloud, and a way that loses, delays and reorders.

use std::time::Duration;

use neptune_api::{ConditionType, JointInferenceServiceStatus};
use neptune_e2e::{Fleet, Truth, is_running, totals};

use crate::{
    digits::{NAME, models, models_manifest, service_manifest},
    helmet::{overheard, runs_and_counts},
    power::each_is_killed,
    serving::infer_jointly,
    trouble::{change_and_delete, says},
};

#[tokio::test]
async fn on_kubeedge_the_documents_sample_runs_counts_and_is_seen_by_kubectl_and_mosquitto_sub() {
    let fleet = Fleet::start_on_kubeedge().await;
    runs_and_counts(&fleet).await;
    let heard = overheard(&fleet, &format!("{}/user/neptune/upstream", fleet.namespace), 5);
    let topic = format!("neptune/{}/upstream/", fleet.edge);
    assert!(
        heard.iter().any(|line| line.contains(&topic) && line.contains("\"inferenceNumber\":")),
        "{heard:?}"
    );
}

#[tokio::test]
async fn on_kubeedge_totals_never_go_backward_and_end_exact_whatever_is_killed_or_cut() {
    let mut fleet = Fleet::start_on_kubeedge().await;
    let _cuts = fleet.kubeedge().flicker(&fleet.edge);
    each_is_killed(&mut fleet, 6).await;
    let [down, up] = fleet.kubeedge().lost(&fleet.edge).await;
    assert!(up > 0, "the way has to be a bad one: {down} were lost downward and {up} upward");
}

#[tokio::test]
async fn on_kubeedge_a_change_reaches_the_edge_and_a_deletion_cleans_up_both_sides() {
    change_and_delete(&Fleet::start_on_kubeedge().await).await;
}

#[tokio::test]
async fn on_kubeedge_two_models_and_an_app_that_decides_infer_jointly() {
    infer_jointly(&Fleet::start_on_kubeedge().await).await;
}

#[tokio::test]
async fn a_node_that_kubeedge_lost_counts_on_and_catches_up_when_it_is_back() {
    let models = models().await;
    let fleet = Fleet::start_on_kubeedge().await;
    let (kubeedge, edge) = (fleet.kubeedge(), &fleet.edge);
    let truth = Truth::listen(&fleet.broker.url(), "edge");
    fleet.apply(&models_manifest(&fleet, &models));
    fleet.apply(&service_manifest(&fleet, 50, 0));
    let counts = |status: &JointInferenceServiceStatus| {
        is_running(status) && totals(status).inference > 0 && truth.runs() > 0
    };
    let before = fleet.until(NAME, "counting", counts).await;
    let container = fleet.container(edge);

    // In silence nobody is told; what is changed meanwhile gets a 200 and is lost.
    kubeedge.make(&format!("partition/{edge}")).await;
    let away = |s: &JointInferenceServiceStatus| says(s, ConditionType::Pending, "NodeOffline");
    fleet.until(NAME, "Pending for want of its node", away).await;
    fleet.apply(&service_manifest(&fleet, 200, 0));
    let counted = truth.total().inference;
    while truth.total().inference < counted + 100 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(fleet.container(edge), container, "nobody could tell it");

    kubeedge.make(&format!("heal/{edge}")).await;
    let back = |s: &JointInferenceServiceStatus| {
        is_running(s)
            && s.observed_generation > before.observed_generation
            && totals(s).inference > counted + 400
    };
    fleet.until(NAME, "counting on, faster", back).await;
    assert_ne!(fleet.container(edge), container, "the worker has its new parameters");

    // Cloudcore and edgecore start again, and a deletion goes the same way.
    kubeedge.make("restart-cloudcore").await;
    fleet.kubectl(&["delete", "jis", NAME]);
    kubeedge.make(&format!("restart-edgecore/{edge}")).await;
    fleet.no_containers().await;
}
