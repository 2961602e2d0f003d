//! What the bench sees of the controller's messages and statuses.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use kube::Client;
use neptune_api::{JointInferenceService, Model};
use neptune_e2e::totals;
use neptune_link::{LinkEvent, LinkEvents};
use neptune_wire::{Insert, NodeName, Topic, TopicPrefix, decode};
use tokio::sync::Notify;

use crate::controller::follow;

/// What the bench sees of the controller's messages and statuses.
#[derive(Debug, Default)]
pub struct Seen {
    /// When the first insert of each service came, and the uid of the service.
    pub inserts: HashMap<String, (Instant, String)>,
    /// The first message to a node that is not dead, since the restart.
    pub first: Option<Instant>,
    pub dead: u32,
    /// The reports of each service whose total no status has yet.
    pub pending: HashMap<String, Vec<(u64, Instant)>>,
    pub latencies: Vec<Duration>,
    /// The users in the status of a Model.
    pub users: u32,
}

impl Seen {
    /// A message came for a node.
    fn reached(&mut self, node: &NodeName, at: Instant) {
        let number = node.as_str().rsplit('-').next().and_then(|number| number.parse::<u32>().ok());
        if number.is_some_and(|number| number >= self.dead) {
            self.first.get_or_insert(at);
        }
    }
}

/// Shared with the tasks that receive.
pub type Shared = Arc<(Mutex<Seen>, Notify)>;

/// Receives the messages to the nodes.
pub async fn follow_messages(mut events: LinkEvents, shared: Shared) {
    while let Some(event) = events.next().await {
        let (at, LinkEvent::Message(message)) = (Instant::now(), event) else { continue };
        let Ok(topic) = Topic::parse(&TopicPrefix::default(), &message.topic) else { continue };
        let mut seen = shared.0.lock().unwrap();
        match topic {
            Topic::Insert(node, key) if !message.payload.is_empty() => {
                seen.reached(&node, at);
                if key.resource.to_string() == "jointinferenceservices" {
                    let insert: Insert = decode(&message.payload).unwrap();
                    let uid = insert.content.metadata.uid;
                    seen.inserts.entry(key.name.to_string()).or_insert((at, uid));
                }
            }
            Topic::Index(node) => seen.reached(&node, at),
            _ => {}
        }
        drop(seen);
        shared.1.notify_one();
    }
}

/// Watches the services and the Model.
pub fn follow_statuses(client: &Client, shared: &Shared) {
    let of_services = Arc::clone(shared);
    follow(client, move |service: JointInferenceService| {
        let total = service.status.as_ref().map_or(0, |status| totals(status).inference);
        let (name, now) = (service.metadata.name.unwrap(), Instant::now());
        let mut seen = of_services.0.lock().unwrap();
        let Some(pending) = seen.pending.get_mut(&name) else { return };
        let written: Vec<_> = pending.extract_if(.., |(wanted, _)| *wanted <= total).collect();
        if pending.is_empty() {
            seen.pending.remove(&name);
        }
        seen.latencies.extend(written.into_iter().map(|(_, sent)| now - sent));
        drop(seen);
        of_services.1.notify_one();
    });
    let seen = Arc::clone(shared);
    follow(client, move |model: Model| {
        if model.metadata.name.as_deref() == Some("small") {
            let users = model.status.and_then(|status| status.users).unwrap_or_default();
            seen.0.lock().unwrap().users = users.try_into().unwrap_or_default();
            seen.1.notify_one();
        }
    });
}
