//! Missing, invalid, changed and deleted objects: reported in the status, and recovered from.

use neptune_api::{JisConditionType, JointInferenceServiceStatus};
use neptune_e2e::{Fleet, Transport, is_running, totals};

use crate::digits::{NAME, models, models_manifest, service_manifest};

over_each_transport!(
    service_without_models_is_pending_and_runs_once_they_exist,
    change_reaches_the_edge_and_deletion_cleans_up,
    missing_image_is_named_and_another_service_keeps_running,
);
on_rumqttd!(change_reaches_the_edge_and_deletion_cleans_up);

/// Whether the newest condition has this type and reason.
pub fn has_condition(
    status: &JointInferenceServiceStatus,
    state: JisConditionType,
    reason: &str,
) -> bool {
    status
        .conditions
        .last()
        .is_some_and(|last| last.type_ == state && last.reason.as_deref() == Some(reason))
}

fn message(status: &JointInferenceServiceStatus) -> &str {
    status.conditions.last().and_then(|last| last.message.as_deref()).unwrap_or_default()
}

async fn service_without_models_is_pending_and_runs_once_they_exist(transport: Transport) {
    let models = models().await;
    let fleet = Fleet::start(transport).await;
    fleet.apply(&service_manifest(&fleet, 50, 0));
    let missing = |s: &JointInferenceServiceStatus| {
        has_condition(s, JisConditionType::Pending, "ModelNotFound")
    };
    let status = fleet.until(NAME, "Pending without its models", missing).await;
    assert!(message(&status).contains("digits-small"), "{}", message(&status));
    fleet.apply(&models_manifest(&fleet, &models));
    let status = fleet.until(NAME, "Running", is_running).await;
    assert_eq!((status.active, status.failed), (Some(2), Some(0)));
}

async fn change_reaches_the_edge_and_deletion_cleans_up(transport: Transport) {
    let models = models().await;
    let fleet = Fleet::start(transport).await;
    fleet.apply(&models_manifest(&fleet, &models));
    fleet.apply(&service_manifest(&fleet, 50, 0));
    let counts = |s: &JointInferenceServiceStatus| is_running(s) && totals(s).inference > 0;
    let before = fleet.until(NAME, "counting", counts).await;
    let container = fleet.container(&fleet.edge);

    fleet.apply(&service_manifest(&fleet, 200, 0));
    let more = |s: &JointInferenceServiceStatus| {
        is_running(s)
            && s.observed_generation > before.observed_generation
            && totals(s).inference > totals(&before).inference + 400
    };
    fleet.until(NAME, "more counters, faster", more).await;
    // The new parameters need a new container.
    fleet.replaced(&fleet.edge, &container).await;

    fleet.kubectl(&["delete", "jis", NAME]);
    fleet.no_containers().await;
    fleet.nothing_retained(NAME).await;
}

async fn missing_image_is_named_and_another_service_keeps_running(transport: Transport) {
    let models = models().await;
    let fleet = Fleet::start(transport).await;
    fleet.apply(&models_manifest(&fleet, &models));
    fleet.apply(&service_manifest(&fleet, 50, 0));
    let broken = service_manifest(&fleet, 50, 0)
        .replace("name: digits\n", "name: broken\n")
        .replace("neptune/digits:dev", "neptune.invalid/none:1");
    fleet.apply(&broken);
    let named = |s: &JointInferenceServiceStatus| {
        s.conditions.last().is_some_and(|last| last.reason.as_deref() == Some("ImageMissing"))
            && message(s).contains("neptune.invalid/none:1")
    };
    fleet.until("broken", "a status that names the missing image", named).await;
    let status = fleet.until(NAME, "Running", is_running).await;
    let counted = totals(&status).inference;
    let more = |s: &JointInferenceServiceStatus| is_running(s) && totals(s).inference > counted;
    fleet.until(NAME, "more counters", more).await;
    let events = fleet.kubectl(&["get", "events"]);
    assert!(events.contains("ImageMissing"), "{events}");
}
