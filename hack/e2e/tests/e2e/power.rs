//! The totals survive whatever loses its power.

use neptune_api::JointInferenceServiceStatus;
use neptune_e2e::{Fleet, KillTarget, Truth, is_running, totals};
use neptune_wire::Counters;

use crate::digits::{NAME, models, models_manifest, service_manifest};

#[tokio::test]
async fn totals_never_go_backward_and_end_exact_whatever_is_killed() {
    let mut fleet = Fleet::start().await;
    each_is_killed(&mut fleet, 3).await;
}

/// The first run has to last until each was killed: so many passes over 600 samples, 6 s each.
pub async fn each_is_killed(fleet: &mut Fleet, passes: u32) {
    let models = models().await;
    let truth = Truth::listen(&fleet.broker.url(), "edge");
    fleet.apply(&models_manifest(fleet, &models));
    fleet.apply(&service_manifest(fleet, 100, passes));

    let mut before = Counters::default();
    for target in
        [KillTarget::Agent, KillTarget::Controller, KillTarget::Broker, KillTarget::Worker]
    {
        let what = format!("counting before the {target:?} is killed");
        // The listener beside the agent has to be back too, or it would miss the last words of a
        // worker that is killed.
        let counts = |status: &JointInferenceServiceStatus| {
            let counted = totals(status).inference;
            counted > before.inference && truth.total().inference >= counted
        };
        let now = totals(&fleet.until(NAME, &what, counts).await);
        assert!(now.hard >= before.hard, "{target:?}: {now:?} after {before:?}");
        before = now;
        fleet.kill(target).await;
    }

    // The second run, after the worker was killed, goes to its end and has no more to say.
    let exact = |status: &JointInferenceServiceStatus| {
        is_running(status) && truth.completed() == 1 && totals(status) == truth.total()
    };
    let end = totals(&fleet.until(NAME, "exactly what the workers said", exact).await);
    assert_eq!(truth.runs(), 2);
    assert!(
        end.inference > 600 * u64::from(passes),
        "{passes} passes over 600 samples, and what the first run counted: {end:?}"
    );
}
