//! The totals survive whatever loses its power.

use neptune_api::JointInferenceServiceStatus;
use neptune_e2e::{Fleet, KillTarget, Transport, Truth, is_running, totals};
use neptune_wire::Counters;

use crate::digits::{NAME, models, models_manifest, service_manifest};

over_each_transport!(totals_never_go_backward_and_end_exact_whatever_is_killed_or_cut);

/// What is killed, and the first run has to last until all were: so many passes over 600 samples, 6 s each.
fn victims(transport: Transport) -> (&'static [KillTarget], u32) {
    use KillTarget::{Agent, Broker, Controller, KubeEdge, Worker};
    match transport {
        Transport::Mqtt => (&[Agent, Controller, Broker, Worker], 3),
        Transport::EventBus => (&[KubeEdge, Agent, Controller, Broker, Worker], 7),
    }
}

async fn totals_never_go_backward_and_end_exact_whatever_is_killed_or_cut(transport: Transport) {
    let models = models().await;
    let mut fleet = Fleet::start(transport).await;
    let _cuts = fleet.kubeedge().map(|kubeedge| kubeedge.flicker(&fleet.edge));
    let (targets, passes) = victims(transport);
    let truth = Truth::listen(&fleet.broker.url(), "edge");
    fleet.apply(&models_manifest(&fleet, &models));
    fleet.apply(&service_manifest(&fleet, 100, passes));

    let mut before = Counters::default();
    for target in targets {
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
        fleet.kill(*target).await;
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
    if let Some(kubeedge) = fleet.kubeedge() {
        let [down, up] = kubeedge.lost(&fleet.edge).await;
        assert!(up > 0, "the way has to be a bad one: {down} were lost downward and {up} upward");
    }
}
