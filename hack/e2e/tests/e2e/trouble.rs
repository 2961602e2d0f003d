//! What is missing, wrong, changed or deleted: said where the user looks, and healed.

use neptune_api::{JisConditionType, JointInferenceServiceStatus};
use neptune_e2e::{Fleet, Transport, is_running, totals};

use crate::digits::{NAME, models, models_manifest, service_manifest};

over_each_transport!(
    a_service_applied_before_its_models_says_what_it_awaits_and_runs_when_they_come,
    a_change_reaches_the_edge_and_a_deletion_cleans_up_both_sides,
    an_image_that_nobody_has_is_named_and_the_other_service_goes_on,
);

pub fn says(status: &JointInferenceServiceStatus, state: JisConditionType, reason: &str) -> bool {
    status
        .conditions
        .last()
        .is_some_and(|last| last.type_ == state && last.reason.as_deref() == Some(reason))
}

fn message(status: &JointInferenceServiceStatus) -> &str {
    status.conditions.last().and_then(|last| last.message.as_deref()).unwrap_or_default()
}

async fn a_service_applied_before_its_models_says_what_it_awaits_and_runs_when_they_come(
    transport: Transport,
) {
    let models = models().await;
    let fleet = Fleet::start(transport).await;
    fleet.apply(&service_manifest(&fleet, 50, 0));
    let missing =
        |s: &JointInferenceServiceStatus| says(s, JisConditionType::Pending, "ModelNotFound");
    let status = fleet.until(NAME, "Pending for want of its models", missing).await;
    assert!(message(&status).contains("digits-small"), "{}", message(&status));
    fleet.apply(&models_manifest(&fleet, &models));
    let status = fleet.until(NAME, "Running", is_running).await;
    assert_eq!((status.active, status.failed), (Some(2), Some(0)));
}

async fn a_change_reaches_the_edge_and_a_deletion_cleans_up_both_sides(transport: Transport) {
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
    fleet.until(NAME, "counting on, faster", more).await;
    // Its new parameters are another container's.
    fleet.replaced(&fleet.edge, &container).await;

    fleet.kubectl(&["delete", "jis", NAME]);
    fleet.no_containers().await;
    fleet.nothing_retained(NAME).await;
}

async fn an_image_that_nobody_has_is_named_and_the_other_service_goes_on(transport: Transport) {
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
    fleet.until("broken", "stuck for want of its image, by name", named).await;
    let status = fleet.until(NAME, "Running", is_running).await;
    let counted = totals(&status).inference;
    let more = |s: &JointInferenceServiceStatus| is_running(s) && totals(s).inference > counted;
    fleet.until(NAME, "counting on beside it", more).await;
    let events = fleet.kubectl(&["get", "events"]);
    assert!(events.contains("ImageMissing"), "{events}");
}
