//! Tests of messages from the cloud to the node.

use std::time::{Duration, Instant};

use eventbus_emulator::{Emulator, Options};
use futures::future::join_all;
use neptune_harness::{Broker, MqttClient, eventually};
use rumqttc::QoS;

use crate::harness::{Harness, NODE, down_rule, endpoints};

const DELIVERED: (u16, &str) = (200, "message delivered");

fn is(answer: &(u16, String)) -> (u16, &str) {
    (answer.0, &answer.1)
}

#[tokio::test(flavor = "multi_thread")]
async fn post_arrives_on_the_nodes_broker_with_qos_1_and_not_retained() {
    let mut harness = Harness::start(1.0).await;
    let started = Instant::now();
    let answer = harness.post("/neptune/document/a/b", "body").await;
    let took = started.elapsed();
    assert_eq!(is(&answer), DELIVERED);
    assert!(took >= Duration::from_millis(3) && took < Duration::from_secs(1), "{took:?}");
    let arrived = harness.client.next().await;
    assert_eq!(arrived.topic, "neptune/document/a/b");
    assert_eq!(&arrived.payload[..], b"body");
    assert_eq!((arrived.qos, arrived.retain), (QoS::AtLeastOnce, false));
    // A late subscriber would receive a retained message.
    let mut late = MqttClient::connect(harness.broker.port(), &["#"]).await;
    late.publish("mark", "").await;
    assert_eq!(late.next().await.topic, "mark");
}

#[tokio::test(flavor = "multi_thread")]
async fn query_is_part_of_the_topic_and_longer_paths_match() {
    let mut harness = Harness::start(0.1).await;
    for (path, topic) in [
        ("/neptune/a?b=c", "neptune/a?b=c"),
        ("/neptunefoo", "neptune/foo"),
        ("/neptunefoo/a", "neptune/foo/a"),
        ("/neptune", "neptune"),
    ] {
        assert_eq!(is(&harness.post(path, "body").await), DELIVERED, "{path}");
        assert_eq!(harness.client.next().await.topic, topic, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_rule_serves_all_nodes() {
    let (one, two) = tokio::join!(Broker::start(), Broker::start());
    let (mut at_one, mut at_two) = tokio::join!(
        MqttClient::connect(one.port(), &["#"]),
        MqttClient::connect(two.port(), &["#"])
    );
    let options = Options { scale: 0.1, ..Options::new() };
    let options = options.node("edge0", &one.url()).unwrap().node("edge1", &two.url()).unwrap();
    let emulator = Emulator::start(options).await.unwrap();
    for object in endpoints().into_iter().chain([down_rule()]) {
        emulator.apply(object).unwrap();
    }
    for node in ["edge0", "edge1"] {
        emulator.connected(node).await.unwrap();
        let url = format!("{}/{node}/neptune-system/neptune/a", emulator.router_url());
        reqwest::Client::new().post(url).body(node).send().await.unwrap();
    }
    assert_eq!(&at_one.next().await.payload[..], b"edge0");
    assert_eq!(&at_two.next().await.payload[..], b"edge1");
    assert!(at_one.received().is_empty() && at_two.received().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_node_is_a_500_after_two_seconds() {
    let harness = Harness::start(0.2).await;
    let started = Instant::now();
    assert_eq!(harness.post_to("edge9", "/neptune/a", "body").await.0, 500);
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(400) && took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn node_without_session_is_a_500_and_nothing_is_queued() {
    let mut harness = Harness::start(0.05).await;
    harness.emulator.cut(NODE).unwrap();
    let started = Instant::now();
    assert_eq!(harness.post("/neptune/a", "while offline").await.0, 500);
    assert!(started.elapsed() >= Duration::from_millis(100));
    harness.emulator.heal(NODE).unwrap();
    assert_eq!(is(&harness.post("/neptune/a", "now").await), DELIVERED);
    assert_eq!(&harness.client.next().await.payload[..], b"now");
    assert!(harness.client.received().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn session_that_starts_within_three_retries_gets_the_message() {
    let mut harness = Harness::start(0.5).await;
    harness.emulator.cut(NODE).unwrap();
    let heal = async {
        tokio::time::sleep(Duration::from_millis(600)).await;
        harness.emulator.heal(NODE).unwrap();
    };
    let (answer, ()) = tokio::join!(harness.post("/neptune/a", "body"), heal);
    assert_eq!(is(&answer), DELIVERED);
    assert_eq!(&harness.client.next().await.payload[..], b"body");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_rule_is_a_404_and_a_body_over_12_mib_a_400() {
    let harness = Harness::start(0.1).await;
    assert_eq!(harness.post("/other/a", "body").await.0, 404);
    assert_eq!(harness.post("/neptune/a", vec![b'a'; (12 << 20) + 1]).await.0, 400);
    assert_eq!(is(&harness.post("/neptune/a", vec![b'a'; 12 << 20]).await), DELIVERED);
    let passed = || harness.emulator.traffic(NODE).unwrap().down.passed == 1;
    eventually("12 MiB to pass", passed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sequential_posts_arrive_in_order() {
    let mut harness = Harness::start(0.1).await;
    for n in 0..300 {
        assert_eq!(is(&harness.post("/neptune/a", n.to_string()).await), DELIVERED);
    }
    for n in 0..300 {
        assert_eq!(harness.client.next().await.payload, n.to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn posts_over_twenty_connections_all_arrive_while_connected() {
    // In real time: on a busy machine the messages would be later than a compressed session allows.
    let mut harness = Harness::start(1.0).await;
    let posts = (0..20).map(|connection| {
        let harness = &harness;
        async move {
            for n in 0..40 {
                let answer = harness.post("/neptune/a", format!("{connection}/{n}")).await;
                assert_eq!(is(&answer), DELIVERED);
            }
        }
    });
    join_all(posts).await;
    let mut arrived = std::collections::HashSet::new();
    for _ in 0..800 {
        arrived.insert(harness.client.next().await.payload);
    }
    assert_eq!(arrived.len(), 800);
}

#[tokio::test(flavor = "multi_thread")]
async fn router_answers_once_a_rule_with_a_path_exists() {
    let broker = Broker::start().await;
    let options = Options::new().node(NODE, &broker.url()).unwrap();
    let emulator = Emulator::start(options).await.unwrap();
    let get = || reqwest::get(format!("{}/edge0/neptune-system/other", emulator.router_url()));
    assert!(get().await.is_err());
    for object in endpoints().into_iter().chain([down_rule()]) {
        emulator.apply(object).unwrap();
    }
    assert_eq!(get().await.unwrap().status(), 404);
    // It keeps answering when the rule is deleted.
    emulator.delete(down_rule()).unwrap();
    assert_eq!(get().await.unwrap().status(), 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_not_utf8_arrive_as_replacement_characters() {
    let mut harness = Harness::start(0.1).await;
    harness.post("/neptune/a", b"a\xff\xfeb".to_vec()).await;
    assert_eq!(harness.client.next().await.payload, "a\u{fffd}\u{fffd}b");
}
