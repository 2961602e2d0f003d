//! Tests of messages from the node to the cloud.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use eventbus_emulator::{Emulator, Options};
use neptune_harness::eventually;
use tokio::io::AsyncReadExt as _;

use crate::harness::{Harness, NODE, Receiver, UP, up_rule};

#[tokio::test(flavor = "multi_thread")]
async fn message_on_the_rules_topic_is_posted_unchanged_to_its_url() {
    let mut harness = Harness::start(1.0).await;
    harness.client.publish(UP, r#"{"a": 1}"#).await;
    eventually("the message to arrive", || harness.receiver.count() == 1).await;
    harness.receiver.inspect(|requests| {
        assert_eq!(&requests.bodies[0][..], br#"{"a": 1}"#);
        assert_eq!(requests.paths[0], "/upstream/edge0");
        // Only the URL identifies the node.
        let headers = format!("{:?}", requests.headers[0]);
        assert!(!headers.contains(NODE) && !headers.contains("upstream"), "{headers}");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_exact_topic_is_forwarded() {
    let mut harness = Harness::start(0.1).await;
    harness.emulator.apply(up_rule("wild", "user/wild/#", &harness.receiver.url("wild"))).unwrap();
    harness.emulator.apply(up_rule("plus", "plain/+", &harness.receiver.url("plus"))).unwrap();
    for topic in ["neptune-system/user/wild/a", "neptune-system/plain/a", "neptune-system/user/b"] {
        harness.client.publish(topic, "no").await;
    }
    let other_namespace = UP.replace("neptune-system", "other");
    harness.client.publish(&other_namespace, "no").await;
    harness.client.publish(UP, "yes").await;
    eventually("the message to arrive", || harness.receiver.count() == 1).await;
    eventually("the other messages to be lost", || {
        harness.emulator.traffic(NODE).unwrap().up.lost >= 3
    })
    .await;
    harness.receiver.inspect(|requests| assert_eq!(&requests.bodies[0][..], b"yes"));
}

#[tokio::test(flavor = "multi_thread")]
async fn status_is_ignored_without_retry_and_connections_are_not_reused() {
    let mut harness = Harness::start(0.1).await;
    let broken = Receiver::start(StatusCode::INTERNAL_SERVER_ERROR).await;
    harness.emulator.delete_rule("neptune-system", "up");
    harness.emulator.apply(up_rule("up", "user/neptune/upstream", &broken.url(NODE))).unwrap();
    harness.publish_numbers(20).await;
    eventually("all answers", || harness.emulator.traffic(NODE).unwrap().up.passed == 20).await;
    // A retry would come within this time.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(broken.count(), 20);
    assert_eq!(broken.inspect(|requests| requests.peers.len()), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn message_for_an_unreachable_url_is_lost() {
    let mut harness = Harness::start(0.1).await;
    harness.emulator.delete_rule("neptune-system", "up");
    harness.emulator.apply(up_rule("up", "user/neptune/upstream", "http://127.0.0.1:1/x")).unwrap();
    harness.client.publish(UP, "lost").await;
    eventually("the message to be lost", || harness.emulator.traffic(NODE).unwrap().up.lost == 1)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn six_hundred_messages_take_eighteen_seconds_out_of_order() {
    let mut harness = Harness::start(0.1).await;
    let started = Instant::now();
    harness.publish_numbers(600).await;
    eventually("all messages", || harness.receiver.count() == 600).await;
    let took = started.elapsed();
    assert!((1.75..8.0).contains(&took.as_secs_f64()), "{took:?}");
    let numbers = harness.receiver.numbers();
    let inversions = numbers.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!((130..=280).contains(&inversions), "{inversions}");
    let mut sorted = numbers;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..600).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn burst_of_sixty_messages_is_sent_at_once() {
    let mut harness = Harness::start(1.0).await;
    harness.publish_numbers(90).await;
    eventually("the burst", || harness.receiver.count() >= 60).await;
    let at_once = harness.receiver.count();
    assert!(at_once < 75, "{at_once}");
    eventually("the rest", || harness.receiver.count() == 90).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_messages_queued_in_edgecore_are_lost_on_stop() {
    let mut harness = Harness::start(0.2).await;
    harness.publish_numbers(2000).await;
    let started = Instant::now();
    harness.taken(2000).await;
    let four_seconds = Duration::from_millis(800);
    tokio::time::sleep(four_seconds.saturating_sub(started.elapsed())).await;
    harness.emulator.restart_edgecore(NODE).await.unwrap();
    let settled = || {
        let up = harness.emulator.traffic(NODE).unwrap().up;
        up.passed + up.lost == 2000
    };
    eventually("all messages to be accounted for", settled).await;
    // A burst of 60, then 30 per second; publishing took time, too.
    let arrived = harness.receiver.count();
    assert!((150..=1500).contains(&arrived), "{arrived}");
}

#[tokio::test(flavor = "multi_thread")]
async fn publisher_gets_puback_although_the_message_is_lost() {
    let mut harness = Harness::start(0.1).await;
    harness.emulator.cut(NODE).unwrap();
    harness.publish_numbers(3).await;
    harness.taken(3).await;
    harness.emulator.heal(NODE).unwrap();
    harness.client.publish(UP, "99").await;
    eventually("the last message", || harness.receiver.count() == 1).await;
    assert_eq!(harness.receiver.numbers(), [99]);
    assert_eq!(harness.emulator.traffic(NODE).unwrap().up.lost, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_payloads_are_dropped() {
    let mut harness = Harness::start(0.1).await;
    harness.client.publish(UP, "").await;
    harness.client.publish(UP, "1").await;
    eventually("the other message", || harness.receiver.count() == 1).await;
    eventually("the empty message to be lost", || {
        harness.emulator.traffic(NODE).unwrap().up.lost == 1
    })
    .await;
    assert_eq!(harness.receiver.numbers(), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_not_utf8_arrive_as_replacement_characters() {
    let mut harness = Harness::start(0.1).await;
    harness.client.publish(UP, b"a\xff\xfeb".to_vec()).await;
    eventually("the message to arrive", || harness.receiver.count() == 1).await;
    harness.receiver.inspect(|requests| assert_eq!(requests.bodies[0], "a\u{fffd}\u{fffd}b"));
}

#[tokio::test(flavor = "multi_thread")]
async fn eventbus_connects_with_a_clean_session_and_without_a_will() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let broker = format!("mqtt://{}", listener.local_addr().unwrap());
    let _emulator = Emulator::start(Options::new().node(NODE, &broker).unwrap()).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut connect = [0; 10];
    stream.read_exact(&mut connect).await.unwrap();
    assert_eq!(connect[0], 0x10);
    assert_eq!(&connect[2..9], b"\x00\x04MQTT\x04", "MQTT 3.1.1");
    assert_eq!(connect[9], 0b10, "clean session, no will, no user");
}
