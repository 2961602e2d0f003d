//! Connecting, losing the connection, reconnecting, and closing.

use std::time::Duration;

use neptune_link::{Link, LinkError, LinkEvent, Message};

use crate::mosquitto::{Mosquitto, free_port};
use crate::proxy::Proxy;
use crate::{TIMEOUT, flush, link, message, next, next_down, next_message, options};

#[tokio::test]
async fn subscriptions_are_renewed_after_a_reconnect() {
    let broker = Mosquitto::start().await;
    let proxy = Proxy::to(broker.port).await;
    let (sender, _events) = link(broker.port, "sender", &[]).await;
    let (reader, mut read) = link(proxy.port, "reader", &["one/+", "two/#"]).await;
    for round in 0..3 {
        proxy.cut();
        next_down(&mut read).await;
        assert_eq!(next(&mut read).await, LinkEvent::Up);
        assert!(reader.is_up());
        for topic in ["one/a", "two/a/b"] {
            sender.publish(message(topic, &round.to_string())).unwrap();
            assert_eq!(next_message(&mut read).await, message(topic, &round.to_string()));
        }
    }
}

#[tokio::test]
async fn resubscribing_delivers_only_retained_messages_again() {
    let broker = Mosquitto::start().await;
    let (sender, _events) = link(broker.port, "sender", &[]).await;
    let (reader, mut read) = link(broker.port, "reader", &["state/#", "more"]).await;
    let state = Message { retain: true, ..message("state/a", "retained") };
    sender.publish(state.clone()).unwrap();
    assert_eq!(next_message(&mut read).await, message("state/a", "retained"));
    // The second and the third subscription are merged, the one in flight may be acknowledged
    // already.
    for _ in 0..3 {
        reader.resubscribe();
    }
    for _ in 0..2 {
        assert_eq!(next_message(&mut read).await, state);
    }
    sender.publish(message("more", "end")).unwrap();
    assert_eq!(next_message(&mut read).await, message("more", "end"));
    reader.resubscribe();
    assert_eq!(next_message(&mut read).await, state);
}

#[tokio::test]
async fn last_will_is_published_when_the_connection_is_cut() {
    let broker = Mosquitto::start().await;
    let proxy = Proxy::to(broker.port).await;
    let (_watcher, mut watch) = link(broker.port, "watcher", &["state"]).await;
    let mut mortal = options(proxy.port, "mortal", &[]);
    mortal.will = Some(message("state", "offline"));
    let (mortal, mut events) = Link::start(mortal).unwrap();
    assert_eq!(next(&mut events).await, LinkEvent::Up);

    proxy.cut();
    assert_eq!(next_message(&mut watch).await, message("state", "offline"));
    next_down(&mut events).await;
    assert_eq!(next(&mut events).await, LinkEvent::Up);
    drop((mortal, events));
    assert_eq!(next_message(&mut watch).await, message("state", "offline"));
}

#[tokio::test]
async fn closed_link_has_sent_queued_messages_and_no_last_will() {
    let broker = Mosquitto::start().await;
    let (watcher, mut watch) = link(broker.port, "watcher", &["state/#", "end"]).await;
    let mut mortal = options(broker.port, "mortal", &["state/#"]);
    mortal.will = Some(message("state", "offline"));
    let (mortal, mut events) = Link::start(mortal).unwrap();
    assert_eq!(next(&mut events).await, LinkEvent::Up);
    // More than the capacity of the event channel, so DISCONNECT is sent while the channel is full.
    for n in 0..500 {
        mortal.publish(message(format!("state/{n}"), "done")).unwrap();
    }
    let clone = mortal.clone();
    mortal.close(TIMEOUT).await;
    watcher.publish(message("end", "")).unwrap();
    for n in 0..500 {
        assert_eq!(next_message(&mut watch).await.topic, format!("state/{n}"));
    }
    assert_eq!(next_message(&mut watch).await.topic, "end");

    assert!(matches!(clone.publish(message("late", "")), Err(LinkError::Closed)));
    flush(&clone).await;
    assert!(!clone.is_up());
    while let Some(event) = events.next().await {
        assert!(matches!(event, LinkEvent::Message(_)), "{event:?}");
    }
}

#[tokio::test]
async fn link_without_broker_reports_it_once_and_closes_immediately() {
    let (link, mut events) = Link::start(options(free_port(), "lonely", &[])).unwrap();
    next_down(&mut events).await;
    link.publish(message("unsent", "")).unwrap();
    let further = tokio::time::timeout(Duration::from_secs(1), events.next()).await;
    assert!(further.is_err(), "{further:?}");
    link.close(TIMEOUT).await;
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn link_or_events_may_be_dropped() {
    let broker = Mosquitto::start().await;
    let (reader, mut read) = link(broker.port, "reader", &["t/#"]).await;
    drop(reader);
    let (sender, events) = link(broker.port, "sender", &["t/#"]).await;
    drop(events);
    for n in 0..200 {
        sender.publish(message(format!("t/{n}"), "")).unwrap();
    }
    for n in 0..200 {
        assert_eq!(next_message(&mut read).await.topic, format!("t/{n}"));
    }
}
