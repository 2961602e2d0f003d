//! From the node to the cloud.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use eventbus_emulator::{Emulator, Options};
use tokio::io::AsyncReadExt as _;

use crate::bed::{Bed, NODE, Receiver, UP, until, up_rule};

#[tokio::test(flavor = "multi_thread")]
async fn a_message_on_the_rules_topic_is_posted_as_it_is_to_the_rules_url() {
    let mut bed = Bed::start(1.0).await;
    bed.client.publish(UP, r#"{"a": 1}"#).await;
    until("it arrives", || bed.receiver.count() == 1).await;
    bed.receiver.look(|got| {
        assert_eq!(&got.bodies[0][..], br#"{"a": 1}"#);
        assert_eq!(got.paths[0], "/upstream/edge0");
        // Nothing but the URL says whence it comes.
        let headers = format!("{:?}", got.headers[0]);
        assert!(!headers.contains(NODE) && !headers.contains("upstream"), "{headers}");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_exact_topic_is_forwarded_and_wildcards_are_not() {
    let mut bed = Bed::start(0.1).await;
    bed.emulator.apply(up_rule("wild", "user/wild/#", &bed.receiver.url("wild"))).unwrap();
    bed.emulator.apply(up_rule("plus", "plain/+", &bed.receiver.url("plus"))).unwrap();
    for topic in ["neptune-system/user/wild/a", "neptune-system/plain/a", "neptune-system/user/b"] {
        bed.client.publish(topic, "no").await;
    }
    let other_namespace = UP.replace("neptune-system", "other");
    bed.client.publish(&other_namespace, "no").await;
    bed.client.publish(UP, "yes").await;
    until("it arrives", || bed.receiver.count() == 1).await;
    until("the others are lost", || bed.emulator.traffic(NODE).unwrap().up.lost >= 3).await;
    bed.receiver.look(|got| assert_eq!(&got.bodies[0][..], b"yes"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_is_ignored_nothing_is_retried_and_each_message_is_a_new_connection() {
    let mut bed = Bed::start(0.1).await;
    let broken = Receiver::start(StatusCode::INTERNAL_SERVER_ERROR).await;
    bed.emulator.delete_rule("neptune-system", "up");
    bed.emulator.apply(up_rule("up", "user/neptune/upstream", &broken.url(NODE))).unwrap();
    bed.publish_numbers(20).await;
    until("all are answered", || bed.emulator.traffic(NODE).unwrap().up.passed == 20).await;
    // A retry would come within the time of many messages.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(broken.count(), 20);
    assert_eq!(broken.look(|got| got.peers.len()), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_finds_nobody_at_the_url_is_lost() {
    let mut bed = Bed::start(0.1).await;
    bed.emulator.delete_rule("neptune-system", "up");
    bed.emulator.apply(up_rule("up", "user/neptune/upstream", "http://127.0.0.1:1/x")).unwrap();
    bed.client.publish(UP, "lost").await;
    until("it is lost", || bed.emulator.traffic(NODE).unwrap().up.lost == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn six_hundred_messages_take_eighteen_seconds_and_arrive_out_of_order() {
    let mut bed = Bed::start(0.1).await;
    let started = Instant::now();
    bed.publish_numbers(600).await;
    until("all arrive", || bed.receiver.count() == 600).await;
    let took = started.elapsed();
    assert!((1.75..8.0).contains(&took.as_secs_f64()), "{took:?}");
    let numbers = bed.receiver.numbers();
    let inversions = numbers.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!((130..=280).contains(&inversions), "{inversions}");
    let mut sorted = numbers;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..600).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_messages_go_at_once() {
    let mut bed = Bed::start(1.0).await;
    bed.publish_numbers(90).await;
    until("the burst arrives", || bed.receiver.count() >= 60).await;
    let at_once = bed.receiver.count();
    assert!(at_once < 75, "{at_once}");
    until("the rest arrives", || bed.receiver.count() == 90).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_in_edgecore_is_lost_when_it_stops_though_it_was_acknowledged() {
    let mut bed = Bed::start(0.2).await;
    bed.publish_numbers(2000).await;
    let started = Instant::now();
    bed.taken(2000).await;
    let four_seconds = Duration::from_millis(800);
    tokio::time::sleep(four_seconds.saturating_sub(started.elapsed())).await;
    bed.emulator.restart_edgecore(NODE).await.unwrap();
    let settled = || {
        let up = bed.emulator.traffic(NODE).unwrap().up;
        up.passed + up.lost == 2000
    };
    until("all are accounted for", settled).await;
    // 60 and 30 a second; the publishing took a while, too.
    let arrived = bed.receiver.count();
    assert!((150..=1500).contains(&arrived), "{arrived}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_publisher_has_its_puback_though_the_message_is_lost() {
    let mut bed = Bed::start(0.1).await;
    bed.emulator.cut(NODE).unwrap();
    bed.publish_numbers(3).await;
    bed.taken(3).await;
    bed.emulator.heal(NODE).unwrap();
    bed.client.publish(UP, "99").await;
    until("the last arrives", || bed.receiver.count() == 1).await;
    assert_eq!(bed.receiver.numbers(), [99]);
    assert_eq!(bed.emulator.traffic(NODE).unwrap().up.lost, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_payloads_are_refused() {
    let mut bed = Bed::start(0.1).await;
    bed.client.publish(UP, "").await;
    bed.client.publish(UP, "1").await;
    until("the other arrives", || bed.receiver.count() == 1).await;
    until("the empty one is lost", || bed.emulator.traffic(NODE).unwrap().up.lost == 1).await;
    assert_eq!(bed.receiver.numbers(), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_not_utf8_arrive_as_replacement_characters() {
    let mut bed = Bed::start(0.1).await;
    bed.client.publish(UP, b"a\xff\xfeb".to_vec()).await;
    until("it arrives", || bed.receiver.count() == 1).await;
    bed.receiver.look(|got| assert_eq!(got.bodies[0], "a\u{fffd}\u{fffd}b"));
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
