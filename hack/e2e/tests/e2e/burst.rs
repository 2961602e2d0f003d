//! Services that are created at once reach their node within a second, over a real `KubeEdge`, and
//! a cloudcore that has too little CPU gets fewer messages.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use futures::future::join_all;
use kube::api::PostParams;
use neptune_api::JointInferenceService;
use neptune_e2e::{Fleet, NodeBroker, Transport, idle};
use neptune_harness::{MqttClient, within};

/// Services that are created at once.
const BURST: usize = 50;
/// No registry has it, so that nodes start no containers.
const IMAGE: &str = "localhost:1/absent";

/// Waits until messages to the edge node contained all of these names.
async fn on_the_topic(broker: &mut MqttClient, mut names: BTreeSet<String>) {
    within("the services on the node's topic", async {
        while !names.is_empty() {
            let message = broker.next().await;
            if !message.topic.contains("upstream") {
                let text = String::from_utf8_lossy(&message.payload);
                names.retain(|name| !text.contains(&format!("\"{name}\"")));
            }
        }
    })
    .await;
}

mod kubeedge {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "needs cloudcore and edgecore: ./hack/real-kubeedge.sh"]
    async fn services_created_at_once_are_on_the_topic_within_a_second() {
        let fleet = Fleet::start(Transport::KubeEdge(NodeBroker::Mosquitto)).await;
        let services = fleet.services();
        let create = async |name: &str| {
            let service: JointInferenceService =
                serde_json::from_value(idle::service(&fleet, name, IMAGE)).unwrap();
            services.create(&PostParams::default(), &service).await.unwrap();
        };
        let mut broker = MqttClient::connect(fleet.broker.port(), &["#"]).await;
        fleet.apply(&idle::model(&fleet).to_string());
        // KubeEdge may take seconds for a new Rule.
        create("first").await;
        on_the_topic(&mut broker, BTreeSet::from(["first".to_owned()])).await;

        let mut best = Duration::MAX;
        // The best of five: other programs on this machine are not measured.
        for round in 1..=5 {
            let names: BTreeSet<_> =
                (0..BURST).map(|number| format!("burst-{round}-{number}")).collect();
            join_all(names.iter().map(|name| create(name))).await;
            let created = Instant::now();
            on_the_topic(&mut broker, names).await;
            let elapsed = created.elapsed();
            println!("{BURST} services are on the topic {elapsed:?} after the last was created");
            best = best.min(elapsed);
        }
        assert!(best < Duration::from_secs(1), "{best:?}");
    }
    /// An answer of the router takes at least one of these pauses.
    const PAUSE: Duration = Duration::from_millis(1200);

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "needs cloudcore and edgecore: ./hack/real-kubeedge.sh"]
    async fn slow_router_gets_fewer_batches_until_it_is_fast_again() {
        let fleet = Fleet::start(Transport::KubeEdge(NodeBroker::Mosquitto)).await;
        let services = fleet.services();
        let mut broker = MqttClient::connect(fleet.broker.port(), &["#"]).await;
        fleet.apply(&idle::model(&fleet).to_string());
        let kubeedge = fleet.real_kubeedge().unwrap();
        let began = Instant::now();
        // Creates a service if the controller has not logged this yet.
        let create_until = async |name: &str, logged: &str| {
            let log = fleet.controller_log();
            if log.contains(logged) {
                return false;
            }
            assert!(began.elapsed() < Duration::from_secs(240), "no '{logged}' in {log}");
            let service = serde_json::from_value(idle::service(&fleet, name, IMAGE)).unwrap();
            services.create(&PostParams::default(), &service).await.unwrap();
            true
        };
        let mut names = BTreeSet::new();
        loop {
            let name = format!("slow-{}", names.len());
            if !create_until(&name, "the router answers slowly").await {
                break;
            }
            names.insert(name);
            kubeedge.throttle_cloudcore(PAUSE).await;
        }
        println!("slowed down after {:?} and {} services", began.elapsed(), names.len());
        on_the_topic(&mut broker, names).await;
        // The rate is raised by a step per minute, with the next answer.
        for number in 0.. {
            let name = format!("fast-{number}");
            if !create_until(&name, "nodes send more batches per second").await {
                break;
            }
            on_the_topic(&mut broker, BTreeSet::from([name])).await;
            tokio::time::sleep(PAUSE).await;
        }
        println!("raised after {:?}", began.elapsed());
    }
}
