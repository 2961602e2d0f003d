//! Publishes the nodes' desired state over the transport. Which messages those are is decided by
//! `desired`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
};

use k8s_openapi::jiff::Timestamp;
use neptune_wire::{
    ContentHash, NodeName, ObjectKey, Sync, SyncNotices, source::DownstreamMessage,
};

use super::desired::{FleetDesired, Messages, Requirements, Retained};
use crate::transport::{Refused, Transport};

/// Publishes desired state. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Publisher(Arc<PublisherInner>);

#[derive(Debug)]
struct PublisherInner {
    transport: Transport,
    state: Mutex<PublisherState>,
}

#[derive(Debug, Default)]
struct PublisherState {
    desired: FleetDesired,
    /// Why an object could not be published to a node.
    unsent: BTreeMap<(ObjectKey, NodeName), String>,
}

impl Publisher {
    /// Publishes nothing before [`Publisher::begin_initial_sync`] and the planning of all its
    /// objects.
    pub fn new(transport: Transport) -> Self {
        Self(Arc::new(PublisherInner { transport, state: Mutex::default() }))
    }

    /// Starts the initial sync: these objects exist and will be planned.
    pub fn begin_initial_sync(&self, objects: BTreeSet<ObjectKey>) {
        self.publish(|desired, wall_ms| desired.begin_initial_sync(objects, wall_ms));
    }

    /// Sets everything that an object requires. Returns why a node cannot get the object itself,
    /// for each such node.
    #[must_use]
    pub fn set(&self, object: &ObjectKey, requirements: Requirements) -> Vec<String> {
        let mut state = self.lock();
        self.publish_from(&mut state, |desired, wall_ms| {
            desired.set(object, requirements, wall_ms)
        });
        let unsent = state.unsent.iter().filter(|((key, _), _)| key == object);
        unsent.map(|(_, why)| why.clone()).collect()
    }

    /// An object cannot be planned: its nodes retain what they have of it.
    pub fn retain(&self, object: &ObjectKey, retained: &Retained) {
        self.publish(|desired, wall_ms| desired.retain(object, retained, wall_ms));
    }

    /// Removes a deleted object.
    pub fn remove(&self, object: &ObjectKey) {
        self.publish(|desired, wall_ms| desired.remove(object, wall_ms));
    }

    /// The hash of the content that a node should have of an object, once it is published.
    pub fn published_hash(&self, node: &NodeName, object: &ObjectKey) -> Option<ContentHash> {
        self.lock().desired.published_hash(node, object)
    }

    /// The objects that were planned, or whose plan is retained.
    pub fn objects(&self) -> BTreeSet<ObjectKey> {
        self.lock().desired.objects()
    }

    /// Publishes the index of a node that is online.
    pub fn on_node_online(&self, node: &NodeName) {
        self.publish(|desired, wall_ms| desired.on_node_online(node, wall_ms));
    }

    /// Answers a node's sync. `notices` are what else the node should know.
    pub fn on_sync(&self, node: &NodeName, sync: Sync, notices: SyncNotices) {
        self.publish(|desired, wall_ms| desired.on_sync(node, sync, notices, wall_ms));
    }

    /// Publishes everything again: the transport may have lost it.
    pub fn republish(&self) {
        self.publish(|desired, _| desired.snapshot());
    }

    /// Whether every object that exists was planned, so that messages are published.
    pub fn is_synced(&self) -> bool {
        self.lock().desired.is_synced()
    }

    /// The transport.
    pub fn transport(&self) -> &Transport {
        &self.0.transport
    }

    /// Queues the messages under the lock, so that they leave in the order in which they were
    /// decided. Queueing never waits.
    fn publish(&self, change: impl FnOnce(&mut FleetDesired, u64) -> Messages) {
        self.publish_from(&mut self.lock(), change);
    }

    fn publish_from(
        &self,
        state: &mut PublisherState,
        change: impl FnOnce(&mut FleetDesired, u64) -> Messages,
    ) {
        state.desired.set_batch_seconds(self.0.transport.batch_seconds());
        let messages = change(&mut state.desired, wall_ms());
        for (node, message) in messages {
            let result = self.0.transport.publish(&node, &message);
            state.on_published(node, &message, result);
        }
    }

    fn lock(&self) -> MutexGuard<'_, PublisherState> {
        self.0.state.lock().expect("nothing panics while it holds this lock")
    }
}

impl PublisherState {
    fn on_published(
        &mut self,
        node: NodeName,
        message: &DownstreamMessage,
        result: Result<(), Refused>,
    ) {
        match (message, result) {
            (DownstreamMessage::Insert(key, _), Err(Refused::TooLarge(error))) => {
                tracing::error!(%node, %key, error, "object exceeds the maximum message size; not published");
                self.unsent.insert((key.clone(), node), error);
            }
            (DownstreamMessage::Insert(key, _) | DownstreamMessage::Delete(key, _), _) => {
                self.unsent.remove(&(key.clone(), node));
            }
            (DownstreamMessage::Index(_), Err(error)) => {
                tracing::error!(%node, %error, "cannot publish the index");
            }
            (DownstreamMessage::Index(_), Ok(())) => {}
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
fn wall_ms() -> u64 {
    // Before 1970 the revisions count up from what they were.
    Timestamp::now().as_millisecond().try_into().unwrap_or(0)
}
