//! Coming up, losing, coming back, and leaving.

use std::time::Duration;

use neptune_link::{Link, LinkError, LinkEvent, Message};

use crate::mosquitto::{Mosquitto, free_port};
use crate::proxy::Proxy;
use crate::{PATIENCE, flush, link, message, next, next_down, next_message, options};

#[tokio::test]
async fn subscriptions_are_made_again_after_a_reconnect() {
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
async fn what_the_broker_retains_comes_again_to_who_asks_and_nothing_else_does() {
    let broker = Mosquitto::start().await;
    let (sender, _events) = link(broker.port, "sender", &[]).await;
    let (reader, mut read) = link(broker.port, "reader", &["state/#", "more"]).await;
    let kept = Message { retain: true, ..message("state/a", "kept") };
    sender.publish(kept.clone()).unwrap();
    assert_eq!(next_message(&mut read).await, message("state/a", "kept"));
    // The second and the third question are one: what is on its way may have been answered already.
    for _ in 0..3 {
        reader.resubscribe();
    }
    for _ in 0..2 {
        assert_eq!(next_message(&mut read).await, kept);
    }
    sender.publish(message("more", "end")).unwrap();
    assert_eq!(next_message(&mut read).await, message("more", "end"));
    reader.resubscribe();
    assert_eq!(next_message(&mut read).await, kept);
}

#[tokio::test]
async fn the_will_is_published_when_the_connection_is_cut() {
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
async fn a_closed_link_has_sent_what_was_queued_and_leaves_no_will() {
    let broker = Mosquitto::start().await;
    let (watcher, mut watch) = link(broker.port, "watcher", &["state/#", "end"]).await;
    let mut mortal = options(broker.port, "mortal", &["state/#"]);
    mortal.will = Some(message("state", "offline"));
    let (mortal, mut events) = Link::start(mortal).unwrap();
    assert_eq!(next(&mut events).await, LinkEvent::Up);
    // More than fits into the unread events, so the goodbye has to get past a full channel.
    for n in 0..500 {
        mortal.publish(message(format!("state/{n}"), "done")).unwrap();
    }
    let clone = mortal.clone();
    mortal.close(PATIENCE).await;
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
async fn a_link_without_a_broker_says_so_once_and_closes_at_once() {
    let (link, mut events) = Link::start(options(free_port(), "lonely", &[])).unwrap();
    next_down(&mut events).await;
    link.publish(message("nobody", "hears")).unwrap();
    let further = tokio::time::timeout(Duration::from_secs(1), events.next()).await;
    assert!(further.is_err(), "{further:?}");
    link.close(PATIENCE).await;
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn a_program_may_only_listen_or_only_speak() {
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
