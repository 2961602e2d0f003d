//! Publishes the nodes' desired state over the transport, as fast as the transport takes it. Which
//! messages those are is decided by `desired`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
};

use k8s_openapi::jiff::Timestamp;
use neptune_wire::{
    ContentHash, NodeName, ObjectKey, Resource, Sync, SyncNotices, source::DownstreamMessage,
};

use tokio::sync::Notify;

use super::desired::{FleetDesired, Requirements, Retained};
use crate::transport::{Refused, Transport};

/// Publishes desired state. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Publisher(Arc<PublisherInner>);

#[derive(Debug)]
struct PublisherInner {
    transport: Transport,
    state: Mutex<PublisherState>,
    /// Nodes wait for room in the transport, or objects are affected.
    waiting: Notify,
}

#[derive(Debug, Default)]
struct PublisherState {
    desired: FleetDesired,
    /// Why an object could not be published to a node.
    unsent: BTreeMap<(ObjectKey, NodeName), String>,
    /// The objects for which that changed after their plan was set.
    affected: BTreeSet<ObjectKey>,
}

impl Publisher {
    /// Publishes nothing before [`Publisher::begin_initial_sync`] and the planning of all its
    /// objects.
    pub fn new(transport: Transport) -> Self {
        let (state, waiting) = (Mutex::default(), Notify::new());
        Self(Arc::new(PublisherInner { transport, state, waiting }))
    }

    /// Starts the initial sync: these objects exist and will be planned. Those of the resources
    /// `incomplete` are not known: nodes keep what they have of them.
    pub fn begin_initial_sync(&self, objects: BTreeSet<ObjectKey>, incomplete: BTreeSet<Resource>) {
        self.publish(|desired| desired.begin_initial_sync(objects, incomplete));
    }

    /// All objects of a resource are known now, and will be planned.
    pub fn on_listed(&self, resource: Resource, objects: BTreeSet<ObjectKey>) {
        self.publish(|desired| desired.on_listed(resource, objects));
    }

    /// Sets everything that an object requires. Returns why a node cannot get the object itself,
    /// for each such node, as far as known: [`Publisher::publish_next`] returns the object when
    /// that changes later.
    #[must_use]
    pub fn set(&self, object: &ObjectKey, requirements: Requirements) -> Vec<String> {
        let mut state = self.lock();
        state.desired.set(object, requirements);
        self.publish_waiting(&mut state);
        state.affected.remove(object);
        let unsent = state.unsent.iter().filter(|((key, _), _)| key == object);
        unsent.map(|(_, why)| why.clone()).collect()
    }

    /// An object cannot be planned: its nodes retain what they have of it.
    pub fn retain(&self, object: &ObjectKey, retained: &Retained) {
        self.publish(|desired| desired.retain(object, retained));
    }

    /// Removes a deleted object.
    pub fn remove(&self, object: &ObjectKey) {
        self.publish(|desired| desired.remove(object));
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
        self.publish(|desired| desired.on_node_online(node));
    }

    /// Answers a node's sync. `notices` are what else the node should know.
    pub fn on_sync(&self, node: &NodeName, sync: Sync, notices: SyncNotices) {
        self.publish(|desired| desired.on_sync(node, sync, notices));
    }

    /// Publishes everything again: the transport may have lost it.
    pub fn republish(&self) {
        self.publish(FleetDesired::republish);
    }

    /// Waits until the transport has room for the messages of nodes that wait, and publishes them.
    /// Returns the objects to plan again, because a node cannot get them or can get them again.
    pub async fn publish_next(&self) -> BTreeSet<ObjectKey> {
        self.0.waiting.notified().await;
        self.0.transport.room().await;
        let mut state = self.lock();
        let affected = std::mem::take(&mut state.affected);
        self.publish_waiting(&mut state);
        affected
    }

    /// Whether every object that exists was planned, so that messages are published.
    pub fn is_synced(&self) -> bool {
        self.lock().desired.is_synced()
    }

    /// The transport.
    pub fn transport(&self) -> &Transport {
        &self.0.transport
    }

    /// Changes the desired state, and publishes what the transport has room for.
    fn publish(&self, change: impl FnOnce(&mut FleetDesired)) {
        let mut state = self.lock();
        change(&mut state.desired);
        self.publish_waiting(&mut state);
    }

    /// Publishes the messages of the next nodes while the transport has room for them. The messages
    /// are queued under the lock, so that they leave in the order in which they were decided.
    /// Queueing never waits.
    fn publish_waiting(&self, state: &mut PublisherState) {
        let transport = &self.0.transport;
        state.desired.set_batch_seconds(transport.batch_seconds());
        while transport.has_room()
            && let Some((node, messages)) = state.desired.next(wall_ms())
        {
            for message in messages {
                let result = transport.publish(&node, &message);
                state.on_published(&node, &message, result);
            }
        }
        if state.desired.has_next() || !state.affected.is_empty() {
            self.0.waiting.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, PublisherState> {
        self.0.state.lock().expect("nothing panics while it holds this lock")
    }
}

impl PublisherState {
    fn on_published(
        &mut self,
        node: &NodeName,
        message: &DownstreamMessage,
        result: Result<(), Refused>,
    ) {
        match (message, result) {
            (DownstreamMessage::Insert(key, _), Err(Refused::TooLarge(error))) => {
                tracing::error!(%node, %key, error, "object exceeds the maximum message size; not published");
                let before = self.unsent.insert((key.clone(), node.clone()), error.clone());
                if before != Some(error) {
                    self.affected.insert(key.clone());
                }
            }
            (DownstreamMessage::Insert(key, _) | DownstreamMessage::Delete(key, _), _) => {
                if self.unsent.remove(&(key.clone(), node.clone())).is_some() {
                    self.affected.insert(key.clone());
                }
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
