//! Connecting, losing the connection, reconnecting, and closing.

use std::time::Duration;

use neptune_link::{Link, LinkError, LinkEvent, Message};

use neptune_harness::{Broker, Proxy, free_port};

use crate::{TIMEOUT, flush, link, message, next, next_down, next_message, options};

#[tokio::test]
async fn reconnect_renews_subscriptions() {
    let broker = Broker::start().await;
    let proxy = Proxy::start(broker.port()).await;
    let (sender, _events) = link(broker.port(), "sender", &[]).await;
    let (reader, mut read) = link(proxy.port(), "reader", &["one/+", "two/#"]).await;
    for round in 0..3 {
        proxy.reset_connections();
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
async fn resubscription_repeats_only_retained_messages() {
    let broker = Broker::start().await;
    let (sender, _events) = link(broker.port(), "sender", &[]).await;
    let (reader, mut read) = link(broker.port(), "reader", &["state/#", "more"]).await;
    let retained = Message { retain: true, ..message("state/a", "retained") };
    sender.publish(retained.clone()).unwrap();
    assert_eq!(next_message(&mut read).await, message("state/a", "retained"));
    // The second and the third request are merged while the first is on its way.
    for _ in 0..3 {
        reader.resubscribe();
    }
    for _ in 0..2 {
        assert_eq!(next_message(&mut read).await, retained);
    }
    sender.publish(message("more", "end")).unwrap();
    assert_eq!(next_message(&mut read).await, message("more", "end"));
    reader.resubscribe();
    assert_eq!(next_message(&mut read).await, retained);
}

#[tokio::test]
async fn will_is_published_when_the_connection_is_cut() {
    let broker = Broker::start().await;
    let proxy = Proxy::start(broker.port()).await;
    let (_watcher, mut watch) = link(broker.port(), "watcher", &["state"]).await;
    let mut client = options(proxy.port(), "client", &[]);
    client.will = Some(message("state", "offline"));
    let (client, mut events) = Link::start(client).unwrap();
    assert_eq!(next(&mut events).await, LinkEvent::Up);

    proxy.reset_connections();
    assert_eq!(next_message(&mut watch).await, message("state", "offline"));
    next_down(&mut events).await;
    assert_eq!(next(&mut events).await, LinkEvent::Up);
    drop((client, events));
    assert_eq!(next_message(&mut watch).await, message("state", "offline"));
}

#[tokio::test]
async fn closed_link_sends_queued_messages_and_no_will() {
    let broker = Broker::start().await;
    let (watcher, mut watch) = link(broker.port(), "watcher", &["state/#", "end"]).await;
    let mut client = options(broker.port(), "client", &["state/#"]);
    client.will = Some(message("state", "offline"));
    let (client, mut events) = Link::start(client).unwrap();
    assert_eq!(next(&mut events).await, LinkEvent::Up);
    // More than the event channel holds, so closing must not depend on free space in it.
    for n in 0..500 {
        client.publish(message(format!("state/{n}"), "done")).unwrap();
    }
    let clone = client.clone();
    client.close(TIMEOUT).await;
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
async fn link_without_broker_reports_it_once_and_closes_quickly() {
    let (link, mut events) = Link::start(options(free_port(), "lonely", &[])).unwrap();
    next_down(&mut events).await;
    link.publish(message("topic", "payload")).unwrap();
    let further = tokio::time::timeout(Duration::from_secs(1), events.next()).await;
    assert!(further.is_err(), "{further:?}");
    link.close(TIMEOUT).await;
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn link_works_when_only_one_handle_is_kept() {
    let broker = Broker::start().await;
    let (reader, mut read) = link(broker.port(), "reader", &["t/#"]).await;
    drop(reader);
    let (sender, events) = link(broker.port(), "sender", &["t/#"]).await;
    drop(events);
    for n in 0..200 {
        sender.publish(message(format!("t/{n}"), "")).unwrap();
    }
    for n in 0..200 {
        assert_eq!(next_message(&mut read).await.topic, format!("t/{n}"));
    }
}

#[tokio::test]
async fn clients_of_one_id_yield_to_each_other() {
    let broker = Broker::start().await;
    let (_watcher, mut watch) = link(broker.port(), "watcher", &["state"]).await;
    let clients = ["one", "two"].map(|name| {
        let mut options = options(broker.port(), "same", &["state"]);
        options.will = Some(message("state", name));
        Link::start(options).unwrap()
    });
    // Each takeover publishes a last will. Without pauses there are about five per second.
    let mut wills = 0;
    let end = tokio::time::Instant::now() + Duration::from_secs(12);
    while let Ok(Some(event)) = tokio::time::timeout_at(end, watch.next()).await {
        wills += u32::from(matches!(event, LinkEvent::Message(_)));
    }
    assert!((4..=16).contains(&wills), "{wills} takeovers in 12 s");
    assert!(clients.iter().all(|(link, _)| link.is_taken_over()));
}
