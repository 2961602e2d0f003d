//! The link with real brokers, a proxy that resets connections, and a scripted broker for behaviour
//! that real ones rarely show.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod delivery;
mod lifecycle;
mod scripted;
mod secrets;

use std::collections::BTreeSet;

use neptune_harness::{TIMEOUT, within};
use neptune_link::{Link, LinkEvent, LinkEvents, LinkOptions, Message};

fn options(port: u16, client_id: &str, subscriptions: &[&str]) -> LinkOptions {
    let mut options =
        LinkOptions::new(format!("mqtt://127.0.0.1:{port}").parse().unwrap(), client_id);
    options.subscriptions = subscriptions.iter().map(ToString::to_string).collect();
    options
}

/// Returns a link once it is up.
async fn link(port: u16, client_id: &str, subscriptions: &[&str]) -> (Link, LinkEvents) {
    let (link, mut events) = Link::start(options(port, client_id, subscriptions)).unwrap();
    assert_eq!(next(&mut events).await, LinkEvent::Up);
    (link, events)
}

async fn next(events: &mut LinkEvents) -> LinkEvent {
    within("a link event", events.next()).await.expect("the link is open")
}

async fn next_message(events: &mut LinkEvents) -> Message {
    match next(events).await {
        LinkEvent::Message(message) => message,
        other => panic!("expected a message, got {other:?}"),
    }
}

async fn next_down(events: &mut LinkEvents) -> String {
    match next(events).await {
        LinkEvent::Down { reason } => reason,
        other => panic!("expected a lost connection, got {other:?}"),
    }
}

async fn flush(link: &Link) {
    within("the link to be flushed", link.flushed()).await;
}

/// Reads events until each of these topics has arrived.
async fn await_topics(events: &mut LinkEvents, mut missing: BTreeSet<String>) {
    while !missing.is_empty() {
        if let LinkEvent::Message(message) = next(events).await {
            missing.remove(&message.topic);
        }
    }
}

fn message(topic: impl Into<String>, payload: &str) -> Message {
    Message { topic: topic.into(), payload: payload.to_owned().into(), retain: false }
}

fn retained(topic: impl Into<String>, payload: &str) -> Message {
    Message { retain: true, ..message(topic, payload) }
}
