//! Hands what the nodes should have to the transport. Which messages those are is `desired`'s.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
};

use k8s_openapi::jiff::Timestamp;
use neptune_wire::{NodeName, ObjectContent, ObjectKey, Sync, source::DownstreamMessage};

use crate::{
    desired::{Desired, Says},
    transport::{Refused, Transport},
};

/// The way to the nodes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Downstream(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    transport: Transport,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    desired: Desired,
    /// Objects that no message can carry, by node.
    too_large: BTreeMap<(NodeName, ObjectKey), String>,
}

impl Downstream {
    /// Nothing is said before [`Downstream::expect`] and the planning of what it expects.
    pub fn new(transport: Transport) -> Self {
        Self(Arc::new(Inner { transport, state: Mutex::default() }))
    }

    /// These services exist and will be planned.
    pub fn expect(&self, services: BTreeSet<ObjectKey>) {
        self.with(|desired, wall_ms| desired.expect(services, wall_ms));
    }

    /// All that a service asks for. Returns why a node cannot be told of it, if it cannot.
    pub fn set(
        &self,
        service: &ObjectKey,
        asks: BTreeMap<NodeName, BTreeMap<ObjectKey, ObjectContent>>,
    ) -> Option<String> {
        let nodes: Vec<_> = asks.keys().cloned().collect();
        self.with(|desired, wall_ms| desired.set(service, asks, wall_ms));
        let state = self.lock();
        let mut refused = nodes
            .into_iter()
            .map(|node| (node, service.clone()))
            .filter_map(|place| state.too_large.get(&place));
        refused.next().cloned()
    }

    /// A service that cannot be planned: its nodes keep what they have of these objects.
    pub fn keep(&self, service: &ObjectKey, keeps: &BTreeMap<NodeName, BTreeSet<ObjectKey>>) {
        self.with(|desired, wall_ms| desired.keep(service, keeps, wall_ms));
    }

    /// A service that is gone.
    pub fn remove(&self, service: &ObjectKey) {
        self.with(|desired, wall_ms| desired.remove(service, wall_ms));
    }

    /// The services that ask for something.
    pub fn services(&self) -> BTreeSet<ObjectKey> {
        self.lock().desired.services()
    }

    /// A node is there.
    pub fn spoke(&self, node: &NodeName) {
        self.with(|desired, wall_ms| desired.spoke(node, wall_ms));
    }

    /// A node told what it has.
    pub fn answer(&self, node: &NodeName, sync: Sync) {
        self.with(|desired, wall_ms| desired.answer(node, sync, wall_ms));
    }

    /// The transport may have forgotten what it kept.
    pub fn repeat(&self) {
        self.with(|desired, _| desired.everything());
    }

    /// Whether every service that exists was planned, so that the nodes are told.
    pub fn is_open(&self) -> bool {
        self.lock().desired.is_open()
    }

    /// The way to the nodes itself.
    pub fn transport(&self) -> &Transport {
        &self.0.transport
    }

    fn with(&self, change: impl FnOnce(&mut Desired, u64) -> Says) {
        // The lock is held while the messages are queued, so that they leave in the order in which
        // they were decided. Queueing never waits.
        let mut state = self.lock();
        let says = change(&mut state.desired, wall_ms());
        for (node, say) in says {
            self.say(&mut state, node, &say);
        }
    }

    fn say(&self, state: &mut State, node: NodeName, say: &DownstreamMessage) {
        let result = self.0.transport.say(&node, say);
        match (say, result) {
            (DownstreamMessage::Insert(key, _), Err(Refused::TooLarge(error))) => {
                tracing::error!(%node, %key, error, "a task is too large to be sent");
                state.too_large.insert((node, key.clone()), error);
            }
            (DownstreamMessage::Insert(key, _) | DownstreamMessage::Delete(key, _), _) => {
                state.too_large.remove(&(node, key.clone()));
            }
            (DownstreamMessage::Index(_), Err(error)) => {
                tracing::error!(%node, %error, "the index of a node cannot be sent");
            }
            (DownstreamMessage::Index(_), Ok(())) => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("nothing panics while it holds this lock")
    }
}

fn wall_ms() -> u64 {
    // Before 1970 the revisions count up from what they were.
    Timestamp::now().as_millisecond().try_into().unwrap_or(0)
}
