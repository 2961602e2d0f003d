//! Delivery: messages arrive although brokers and networks fail.

use std::collections::BTreeSet;
use std::time::Duration;

use neptune_link::{Link, LinkError, LinkEvent};

use neptune_harness::{Broker, Proxy, free_port, within};

use crate::{await_topics, flush, link, message, next, next_down, next_message, options, retained};

#[tokio::test]
async fn message_published_while_broker_is_down_arrives_later() {
    let port = free_port();
    let (sender, mut events) = Link::start(options(port, "sender", &[])).unwrap();
    let reason = next_down(&mut events).await;
    assert!(
        reason.contains(&format!("mqtt://127.0.0.1:{port}")) && reason.contains("refused"),
        "{reason}"
    );
    sender.publish(retained("early", "message")).unwrap();
    assert!(!sender.is_up());

    let _broker = Broker::start_on(port).await;
    assert_eq!(next(&mut events).await, LinkEvent::Up);
    flush(&sender).await;
    let (_reader, mut read) = link(port, "reader", &["early"]).await;
    assert_eq!(next_message(&mut read).await, retained("early", "message"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resets_every_200_ms_lose_none_of_40000_messages() {
    let broker = Broker::start().await;
    let proxy = Proxy::start(broker.port()).await;
    let (_reader, mut read) = link(broker.port(), "reader", &["bulk/#"]).await;
    let (sender, events) = link(proxy.port(), "sender", &[]).await;
    drop(events);

    let topics: BTreeSet<String> = (0..40_000).map(|n| format!("bulk/{n}")).collect();
    for topic in &topics {
        sender.publish(message(topic, "twenty bytes of text")).unwrap();
    }
    let mut cuts = 0;
    let resetting = async {
        let mut tick = tokio::time::interval(Duration::from_millis(200));
        loop {
            tick.tick().await;
            proxy.reset_connections();
            cuts += 1;
        }
    };
    tokio::select! {
        () = async { tokio::join!(await_topics(&mut read, topics), flush(&sender)); } => {}
        () = resetting => {}
    }
    assert!(cuts > 3, "only {cuts} resets during the transfer");
}

#[tokio::test]
async fn restarted_broker_gets_unacknowledged_messages() {
    let mut broker = Broker::start().await;
    let (sender, mut events) = link(broker.port(), "sender", &["from/reader"]).await;
    let (reader, mut read) = link(broker.port(), "reader", &["kill/#"]).await;
    for round in 0..3 {
        broker.kill();
        assert!(matches!(next(&mut events).await, LinkEvent::Down { .. }));
        assert!(matches!(next(&mut read).await, LinkEvent::Down { .. }));
        let topics: BTreeSet<String> = (0..500).map(|n| format!("kill/{round}/{n}")).collect();
        for topic in &topics {
            sender.publish(retained(topic, "x")).unwrap();
        }
        broker.restart().await;
        await_topics(&mut read, topics).await;
        flush(&sender).await;
        reader.publish(retained("from/reader", "still connected")).unwrap();
        // A broker that starts slowly causes another Down event, for another reason.
        while next(&mut events).await != LinkEvent::Up {}
        assert_eq!(next_message(&mut events).await.topic, "from/reader");
    }
}

#[tokio::test]
async fn newer_message_replaces_a_queued_one_of_its_topic() {
    let broker = Broker::start().await;
    let proxy = Proxy::start(broker.port()).await;
    proxy.close();
    let (_reader, mut read) = link(broker.port(), "reader", &["+"]).await;
    let (sender, _events) = Link::start(options(proxy.port(), "sender", &[])).unwrap();
    for (topic, payload) in [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("a", "3")] {
        sender.publish(message(topic, payload)).unwrap();
    }
    proxy.open();
    for (topic, payload) in [("b", "1"), ("c", "1"), ("a", "3")] {
        assert_eq!(next_message(&mut read).await, message(topic, payload));
    }
}

#[tokio::test]
async fn wait_for_room_ends_when_the_broker_acknowledges() {
    let broker = Broker::start().await;
    let proxy = Proxy::start(broker.port()).await;
    proxy.close();
    let (sender, _events) = Link::start(options(proxy.port(), "sender", &[])).unwrap();
    for n in 0..300 {
        sender.publish(message(format!("bulk/{n}"), "1")).unwrap();
    }
    assert_eq!(sender.unacknowledged(), 300);
    sender.acknowledged_to(300).await;
    let room = sender.acknowledged_to(150);
    proxy.open();
    within("room for more messages", room).await;
    assert!(sender.unacknowledged() <= 150);
    flush(&sender).await;
    assert_eq!(sender.unacknowledged(), 0);
    sender.publish(message("last", "1")).unwrap();
    let closed = sender.clone();
    tokio::join!(closed.close(Duration::ZERO), sender.acknowledged_to(0));
}

#[tokio::test]
async fn message_over_the_size_limit_is_refused_and_link_stays_up() {
    let broker = Broker::start().await;
    let mut limited = options(broker.port(), "limited", &["t"]);
    limited.max_packet_size = 20_000;
    let (link, mut events) = Link::start(limited).unwrap();
    assert_eq!(next(&mut events).await, LinkEvent::Up);

    // One byte of type, three of length, two of topic length, the topic, and two of packet ID.
    let fits = "x".repeat(20_000 - 1 - 3 - 3 - 2);
    let refused = link.publish(message("t", &format!("{fits}x"))).unwrap_err();
    assert!(
        matches!(&refused, LinkError::TooLarge { topic, size: 20_001, max: 20_000 } if topic == "t"),
        "{refused}"
    );
    link.publish(message("t", &fits)).unwrap();
    assert_eq!(next_message(&mut events).await, message("t", &fits));
    assert!(link.is_up());
}

#[tokio::test]
async fn unread_events_apply_backpressure_without_loss() {
    let broker = Broker::start().await;
    let (reader, mut read) = link(broker.port(), "reader", &["flood/#"]).await;
    let (sender, _events) = link(broker.port(), "sender", &[]).await;
    let payload = "x".repeat(1000);
    for n in 0..10_000 {
        sender.publish(message(format!("flood/{n}"), &payload)).unwrap();
    }
    flush(&sender).await;
    assert!(reader.is_up());
    for n in 0..10_000 {
        assert_eq!(next_message(&mut read).await.topic, format!("flood/{n}"));
    }
}

#[tokio::test]
async fn oversized_retained_message_is_dropped_and_the_rest_is_delivered() {
    let broker = Broker::start().await;
    let mut options = options(broker.port(), "publisher", &[]);
    options.max_packet_size = 8 << 20;
    let (publisher, _events) = Link::start(options).unwrap();
    publisher.publish(retained("fleet/big", &"x".repeat(3 << 19))).unwrap();
    publisher.publish(retained("fleet/small", "1")).unwrap();
    flush(&publisher).await;

    let (reader, mut events) =
        Link::start(crate::options(broker.port(), "reader", &["fleet/#"])).unwrap();
    await_topics(&mut events, ["fleet/small".to_owned()].into()).await;
    let mut oversized = reader.oversized();
    within("the count", oversized.wait_for(|count| *count == 1)).await.unwrap();
    assert!(reader.is_up(), "the connection stays");
}
