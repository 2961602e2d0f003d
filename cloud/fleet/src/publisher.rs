//! Publishes the nodes' desired state over the transport, as fast as the transport takes it. Which
//! messages those are is decided by `desired`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
};

use k8s_openapi::jiff::Timestamp;
use neptune_cloud_kinds::fleet::{FleetDesired, NodeContents, PendingPlan, Retained};
use neptune_wire::{
    ContentHash, NodeName, NodeRequest, ObjectKey, Resource, Sync, SyncNotices,
    source::DownstreamMessage,
};

use tokio::sync::{Notify, watch};

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
    /// Whether the initial sync is complete.
    synced: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct PublisherState {
    desired: FleetDesired,
    /// The uid under which each object was planned.
    uids: BTreeMap<ObjectKey, String>,
    /// Why an object could not be published to a node.
    unsent: BTreeMap<ObjectKey, BTreeMap<NodeName, String>>,
    /// The objects for which that changed after their plan was set.
    affected: BTreeSet<ObjectKey>,
    /// The nodes to which nothing is published.
    revoked: BTreeSet<NodeName>,
}

impl Publisher {
    /// Publishes nothing before [`Publisher::begin_initial_sync`] and the planning of all its
    /// objects.
    pub fn new(transport: Transport) -> Self {
        let (state, waiting, synced) = (Mutex::default(), Notify::new(), watch::Sender::default());
        Self(Arc::new(PublisherInner { transport, state, waiting, synced }))
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

    /// Brings the plan of an object into effect, in parts: the messages of other nodes never wait for
    /// all nodes of the object. Returns why a node cannot get the object itself, if that is known:
    /// [`Publisher::publish_next`] returns the object when that changes later.
    #[must_use]
    pub fn set(&self, object: &ObjectKey, uid: &str, mut plan: PendingPlan) -> Option<String> {
        loop {
            let mut state = self.lock();
            let is_complete = state.apply(object, uid, &mut plan);
            self.publish_waiting(&mut state);
            if is_complete {
                state.affected.remove(object);
                return state.unsent.get(object)?.values().next().cloned();
            }
            drop(state);
            std::thread::yield_now();
        }
    }

    /// An object cannot be planned: its nodes retain what they have of it, except for the nodes
    /// where another object has priority.
    pub fn retain(
        &self,
        object: &ObjectKey,
        uid: &str,
        retained: Retained,
        yielded: &BTreeSet<NodeName>,
    ) {
        let mut state = self.lock();
        state.retain(object, uid, retained, yielded);
        self.publish_waiting(&mut state);
    }

    /// Removes a deleted object. Has no effect if an object with another uid was planned under this
    /// key since: the deletion may be processed after a later object was created. Returns whether
    /// it had an effect.
    pub fn remove(&self, object: &ObjectKey, uid: &str) -> bool {
        let mut state = self.lock();
        let is_removed = state.remove(object, uid);
        self.publish_waiting(&mut state);
        is_removed
    }

    /// The hash of the content that a node should have of an object, once it is published.
    pub fn published_hash(&self, node: &NodeName, object: &ObjectKey) -> Option<ContentHash> {
        self.lock().desired.published_hash(node, object)
    }

    /// What an object requires on a node by its last plan.
    pub fn planned_contents(&self, node: &NodeName, object: &ObjectKey) -> Option<NodeContents> {
        self.lock().desired.planned_contents(node, object)
    }

    /// Sets whether an object has a rollout: then no other object replaces a Model that it uses on a
    /// node before its own plan does.
    pub fn set_guard(&self, object: &ObjectKey, is_guard: bool) {
        self.publish(|desired| desired.set_guard(object, is_guard));
    }

    /// The object for whose rollout the newest content of this one waits on a node.
    pub fn awaited_rollout(&self, node: &NodeName, key: &ObjectKey) -> Option<ObjectKey> {
        self.lock().desired.awaited_rollout(node, key).cloned()
    }

    /// The nodes on which something that this object requires waits for a rollout.
    pub fn delayed_nodes(&self, object: &ObjectKey) -> BTreeSet<NodeName> {
        self.lock().desired.delayed_nodes(object)
    }

    /// The nodes that should have something because of this object.
    pub fn nodes(&self, object: &ObjectKey) -> Vec<NodeName> {
        self.lock().desired.nodes(object).cloned().collect()
    }

    /// Publishes a request to a node, unless the node is revoked. It is not repeated.
    pub fn request(&self, node: &NodeName, request: &NodeRequest) {
        if self.lock().revoked.contains(node) {
            return;
        }
        if let Err(error) = self.0.transport.request(node, request) {
            tracing::warn!(%node, %error, "cannot publish a request");
        }
    }

    /// The objects of a resource that were planned, whose plan is retained, or that are awaited, with
    /// the uid under which they were planned.
    pub fn objects(&self, resource: Resource) -> BTreeMap<ObjectKey, String> {
        let state = self.lock();
        let objects = state.desired.objects(resource).into_iter();
        let with_uid = |key: ObjectKey| {
            let uid = state.uids.get(&key).cloned().unwrap_or_default();
            (key, uid)
        };
        objects.map(with_uid).collect()
    }

    /// Whether messages wait until this object is planned.
    pub fn awaits(&self, object: &ObjectKey) -> bool {
        self.lock().desired.awaits(object)
    }

    /// Sets whether nothing is published to a node. What is decided meanwhile is in the answer to the
    /// next sync of the node.
    pub fn set_revoked(&self, node: &NodeName, is_revoked: bool) {
        let mut state = self.lock();
        if is_revoked {
            state.revoked.insert(node.clone());
        } else {
            state.revoked.remove(node);
        }
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

    /// Resolves when every object that exists was planned.
    pub async fn synced(&self) {
        // The sender lives as long as `self`.
        drop(self.0.synced.subscribe().wait_for(|synced| *synced).await);
    }

    /// Returns the transport that publishes the messages.
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
            if state.revoked.contains(&node) {
                continue;
            }
            for message in messages {
                let result = transport.publish(&node, &message);
                state.on_published(&node, &message, result);
            }
        }
        if state.desired.has_next() || !state.affected.is_empty() {
            self.0.waiting.notify_one();
        }
        let is_synced = state.desired.is_synced();
        self.0.synced.send_if_modified(|synced| std::mem::replace(synced, is_synced) != is_synced);
    }

    fn lock(&self) -> MutexGuard<'_, PublisherState> {
        self.0.state.lock().expect("nothing panics while it holds this lock")
    }
}

impl PublisherState {
    /// Brings the next part of a plan into effect. Returns whether that was the last one.
    fn apply(&mut self, object: &ObjectKey, uid: &str, plan: &mut PendingPlan) -> bool {
        if self.uids.get(object).is_none_or(|planned| planned != uid) {
            self.uids.insert(object.clone(), uid.to_owned());
        }
        self.desired.apply(plan)
    }

    fn retain(
        &mut self,
        object: &ObjectKey,
        uid: &str,
        mut retained: Retained,
        yielded: &BTreeSet<NodeName>,
    ) {
        let before = self.uids.insert(object.clone(), uid.to_owned());
        if before.is_some_and(|before| before != uid) {
            // Nodes have nothing of this object yet.
            self.desired.remove(object);
        }
        retained.retain(|node, _| !yielded.contains(node));
        self.desired.retain(object, &retained);
        self.desired.withdraw(object, yielded);
    }

    fn remove(&mut self, object: &ObjectKey, uid: &str) -> bool {
        if self.uids.get(object).is_some_and(|planned| planned != uid) {
            return false;
        }
        self.uids.remove(object);
        self.desired.remove(object);
        self.desired.set_guard(object, false);
        true
    }

    fn on_published(
        &mut self,
        node: &NodeName,
        message: &DownstreamMessage,
        result: Result<(), Refused>,
    ) {
        match (message, result) {
            (DownstreamMessage::Insert(key, _), Err(Refused::TooLarge(error))) => {
                tracing::error!(%node, %key, error, "object exceeds the maximum message size; not published");
                let unsent = self.unsent.entry(key.clone()).or_default();
                let before = unsent.insert(node.clone(), error.clone());
                if before != Some(error) {
                    self.affected.insert(key.clone());
                }
            }
            (DownstreamMessage::Insert(key, _) | DownstreamMessage::Delete(key, _), _) => {
                let Some(unsent) = self.unsent.get_mut(key) else { return };
                if unsent.remove(node).is_some() {
                    self.affected.insert(key.clone());
                }
                if unsent.is_empty() {
                    self.unsent.remove(key);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_cloud_kinds::fleet::{Generations, Requirements, encode_contents};

    use super::*;

    impl PublisherState {
        fn set(&mut self, object: &ObjectKey, uid: &str, plan: Requirements) {
            let (generations, kept) = (Generations::new(), Retained::new());
            let mut plan = PendingPlan::new(object.clone(), plan, generations, kept);
            while !self.apply(object, uid, &mut plan) {}
        }
    }

    fn service() -> ObjectKey {
        "default/jointinferenceservices/a".parse().unwrap()
    }

    fn requirements() -> Requirements {
        [("edge0".parse().unwrap(), encode_contents(BTreeMap::new()))].into()
    }

    #[test]
    fn deletion_leaves_what_was_planned_under_another_uid() {
        let mut state = PublisherState::default();
        state.set(&service(), "1", requirements());
        state.set(&service(), "2", requirements());
        assert!(!state.remove(&service(), "1"), "it was processed late");
        let services = |state: &PublisherState| state.desired.objects(service().resource);
        assert_eq!(services(&state), [service()].into());
        assert!(state.remove(&service(), "2"));
        assert!(services(&state).is_empty() && state.uids.is_empty());
        assert!(state.remove(&service(), "2"), "nothing is planned");
    }

    #[test]
    fn recreated_object_that_cannot_be_planned_keeps_nothing_of_the_deleted_one() {
        let node: NodeName = "edge0".parse().unwrap();
        let content = serde_json::from_value(serde_json::json!({
            "apiVersion": "v", "kind": "k", "spec": 1,
            "metadata": {"namespace": "default", "name": "a", "uid": "1"},
        }));
        let requirements = || -> Requirements {
            let contents = [(service(), content.as_ref().cloned().unwrap())].into();
            [(node.clone(), encode_contents(contents))].into()
        };
        let mut state = PublisherState::default();
        state.desired.begin_initial_sync(BTreeSet::new(), BTreeSet::new());
        state.set(&service(), "1", requirements());
        state.retain(&service(), "1", Retained::new(), &BTreeSet::new());
        assert!(state.desired.published_hash(&node, &service()).is_some(), "the same object");
        state.retain(&service(), "2", Retained::new(), &BTreeSet::new());
        assert!(state.desired.published_hash(&node, &service()).is_none());
        assert!(!state.remove(&service(), "1"));
    }

    #[test]
    fn object_keeps_nothing_on_a_node_that_it_yields() {
        let content = serde_json::from_value(serde_json::json!({
            "apiVersion": "v", "kind": "k", "spec": 1,
            "metadata": {"namespace": "default", "name": "a", "uid": "1"},
        }));
        let nodes: [NodeName; 2] = ["edge0", "edge1"].map(|name| name.parse().unwrap());
        let on = |node: &NodeName| {
            let contents = [(service(), content.as_ref().cloned().unwrap())].into();
            (node.clone(), encode_contents(contents))
        };
        let mut state = PublisherState::default();
        state.desired.begin_initial_sync(BTreeSet::new(), BTreeSet::new());
        state.set(&service(), "1", nodes.iter().map(on).collect());
        while state.desired.next(1).is_some() {}
        let keys = Arc::new([service()].into());
        let retained = nodes.iter().map(|node| (node.clone(), Arc::clone(&keys))).collect();
        state.retain(&service(), "1", retained, &[nodes[0].clone()].into());
        while state.desired.next(2).is_some() {}
        let has = |node: &NodeName| state.desired.published_hash(node, &service()).is_some();
        assert_eq!(nodes.each_ref().map(has), [false, true]);
    }
}
