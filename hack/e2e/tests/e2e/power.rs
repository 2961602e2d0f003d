//! Totals survive the kill of every part.

use std::time::Instant;

use neptune_api::JointInferenceServiceStatus;
use neptune_e2e::{Fleet, KillTarget, NodeBroker, Transport, WorkerObserver, is_running, totals};
use neptune_wire::Counters;

use crate::digits::{NAME, models, models_manifest, service_manifest};

over_each_transport!(totals_never_decrease_and_end_exact_after_kills);
on_rumqttd!(totals_never_decrease_and_end_exact_after_kills);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs cloudcore and edgecore: ./hack/real-kubeedge.sh"]
async fn totals_end_exact_after_kills_with_the_broker_of_edgecore() {
    let transport = Transport::KubeEdge(NodeBroker::Edgecore);
    totals_never_decrease_and_end_exact_after_kills(transport).await;
}

/// What is killed, and the number of passes over 600 samples, 6 s each, which last until everything
/// was killed. A real `KubeEdge` needs up to 30 s for another session.
fn victims(transport: Transport) -> (&'static [KillTarget], u32) {
    use KillTarget::{Agent, Broker, Cloudcore, Controller, Edgecore, KubeEdge, Worker};
    match transport {
        Transport::Mqtt | Transport::Rumqttd => (&[Agent, Controller, Broker, Worker], 3),
        Transport::EventBus => (&[KubeEdge, Agent, Controller, Broker, Worker], 7),
        Transport::KubeEdge(NodeBroker::Mosquitto) => {
            (&[Worker, Cloudcore, Edgecore, Broker, Controller, Agent], 50)
        }
        Transport::KubeEdge(NodeBroker::Edgecore) => {
            (&[Worker, Cloudcore, Edgecore, Controller, Agent], 50)
        }
    }
}

/// Waits until the status has more than these samples, and the observer all of them.
async fn until_counted(
    fleet: &Fleet,
    observer: &WorkerObserver,
    before: u64,
    what: &str,
) -> Counters {
    let counts = |status: &JointInferenceServiceStatus| {
        let counted = totals(status).inference;
        // The observer must have reconnected, too, or it would miss the last report of a killed
        // worker.
        counted > before && observer.total().inference >= counted
    };
    totals(&fleet.until(NAME, what, counts).await)
}

async fn totals_never_decrease_and_end_exact_after_kills(transport: Transport) {
    let models = models().await;
    let mut fleet = Fleet::start(transport).await;
    let _cuts = fleet.kubeedge().map(|kubeedge| kubeedge.cut_repeatedly(&fleet.edge));
    let (targets, passes) = victims(transport);
    let observer = WorkerObserver::start(&fleet.local_broker(), "edge");
    fleet.apply(&models_manifest(&fleet, &models));
    fleet.apply(&service_manifest(&fleet, 100, passes));

    let mut before = until_counted(&fleet, &observer, 0, "counting").await;
    for target in targets {
        let began = Instant::now();
        fleet.kill(*target).await;
        // What was counted until now may be on its way.
        let counted = observer.total().inference;
        let what = format!("counting after the {target:?} was killed");
        let now = until_counted(&fleet, &observer, counted.max(before.inference), &what).await;
        println!(
            "{target:?} killed: {:.1} s until more was counted",
            began.elapsed().as_secs_f64()
        );
        assert!(now.hard >= before.hard, "{target:?}: {now:?} after {before:?}");
        before = now;
    }

    // The second run, after the kill of the worker, completes and reports nothing more.
    let exact = |status: &JointInferenceServiceStatus| {
        is_running(status) && observer.completed() == 1 && totals(status) == observer.total()
    };
    let mut end = before;
    let end = loop {
        let counted = end.inference + 1000;
        let has_more = |s: &_| exact(s) || totals(s).inference > counted;
        let status = fleet.until(NAME, "exactly the counters of the workers", has_more).await;
        end = totals(&status);
        if exact(&status) {
            break end;
        }
    };
    println!("status: {}, workers: {}", end.inference, observer.total().inference);
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
