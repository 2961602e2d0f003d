//! Totals survive the kill of every part.

use neptune_api::JointInferenceServiceStatus;
use neptune_e2e::{Fleet, KillTarget, Transport, WorkerObserver, is_running, totals};
use neptune_wire::Counters;

use crate::digits::{NAME, models, models_manifest, service_manifest};

over_each_transport!(totals_never_decrease_and_end_exact_after_kills);
on_rumqttd!(totals_never_decrease_and_end_exact_after_kills);

/// What is killed, and the number of passes over 600 samples, 6 s each, which last until everything
/// was killed.
fn victims(transport: Transport) -> (&'static [KillTarget], u32) {
    use KillTarget::{Agent, Broker, Controller, KubeEdge, Worker};
    match transport {
        Transport::Mqtt | Transport::Rumqttd => (&[Agent, Controller, Broker, Worker], 3),
        Transport::EventBus => (&[KubeEdge, Agent, Controller, Broker, Worker], 7),
    }
}

async fn totals_never_decrease_and_end_exact_after_kills(transport: Transport) {
    let models = models().await;
    let mut fleet = Fleet::start(transport).await;
    let _cuts = fleet.kubeedge().map(|kubeedge| kubeedge.cut_repeatedly(&fleet.edge));
    let (targets, passes) = victims(transport);
    let observer = WorkerObserver::start(&fleet.broker.url(), "edge");
    fleet.apply(&models_manifest(&fleet, &models));
    fleet.apply(&service_manifest(&fleet, 100, passes));

    let mut before = Counters::default();
    for target in targets {
        let what = format!("counting before the {target:?} is killed");
        // The observer must have reconnected, too, or it would miss the last report of a killed
        // worker.
        let counts = |status: &JointInferenceServiceStatus| {
            let counted = totals(status).inference;
            counted > before.inference && observer.total().inference >= counted
        };
        let now = totals(&fleet.until(NAME, &what, counts).await);
        assert!(now.hard >= before.hard, "{target:?}: {now:?} after {before:?}");
        before = now;
        fleet.kill(*target).await;
    }

    // The second run, after the kill of the worker, completes and reports nothing more.
    let exact = |status: &JointInferenceServiceStatus| {
        is_running(status) && observer.completed() == 1 && totals(status) == observer.total()
    };
    let end = totals(&fleet.until(NAME, "exactly the counters of the workers", exact).await);
    assert_eq!(observer.runs(), 2);
    assert!(
        end.inference > 600 * u64::from(passes),
        "{passes} passes over 600 samples, and what the first run counted: {end:?}"
    );
    if let Some(kubeedge) = fleet.kubeedge() {
        let [down, up] = kubeedge.lost(&fleet.edge).await;
        assert!(up > 0, "messages must have been lost: {down} downstream and {up} upstream");
    }
}
