//! Tests a link with real brokers, with a proxy that cuts connections, and with a scripted broker
//! for the behaviour that real ones rarely show.
#![allow(clippy::unwrap_used, clippy::panic)]

mod delivery;
mod embedded;
mod lifecycle;
mod mosquitto;
mod proxy;
mod scripted;
mod secrets;

use std::collections::BTreeSet;
use std::time::Duration;

use neptune_link::{Link, LinkEvent, LinkEvents, LinkOptions, Message};
use tokio::time::timeout;

/// Longer than any step takes on a busy machine with the slowest broker, and shorter than the
/// timeout of the test runner.
const TIMEOUT: Duration = Duration::from_secs(100);

fn options(port: u16, client_id: &str, subscriptions: &[&str]) -> LinkOptions {
    let mut options =
        LinkOptions::new(format!("mqtt://127.0.0.1:{port}").parse().unwrap(), client_id);
    options.subscriptions = subscriptions.iter().map(ToString::to_string).collect();
    options
}

/// A link that is up.
async fn link(port: u16, client_id: &str, subscriptions: &[&str]) -> (Link, LinkEvents) {
    let (link, mut events) = Link::start(options(port, client_id, subscriptions)).unwrap();
    assert_eq!(next(&mut events).await, LinkEvent::Up);
    (link, events)
}

async fn next(events: &mut LinkEvents) -> LinkEvent {
    timeout(TIMEOUT, events.next()).await.expect("no event in time").expect("the link is closed")
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
        other => panic!("expected a loss, got {other:?}"),
    }
}

async fn flush(link: &Link) {
    timeout(TIMEOUT, link.flushed()).await.expect("not flushed in time");
}

/// Receives until a message has arrived on each of these topics.
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
