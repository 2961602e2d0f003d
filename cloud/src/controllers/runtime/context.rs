//! The shared context of every reconcile: API client, caches, fleet, publisher, metrics and
//! controller state.

use std::sync::{Arc, MutexGuard};

use kube::{
    Client, ResourceExt as _,
    runtime::{events::Recorder, reflector::ObjectRef},
};
use neptune_wire::{NodeName, ObjectKey};

use super::{
    apply::FIELD_MANAGER,
    controller::Controller,
    state::{ObjectState, States},
};
use crate::{
    cache::Caches,
    fleet::{Fleet, FleetState, Publisher},
    kubernetes::identity::{key, reference},
    metrics::Metrics,
};

/// The shared context of the controllers. Cheap to clone.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    client: Client,
    recorder: Recorder,
    caches: Caches,
    fleet: Fleet,
    publisher: Publisher,
    metrics: Metrics,
    fetch_image: String,
    states: States,
}

impl Context {
    /// Creates the context. Enqueueing has no effect before [`super::run_all`].
    pub fn new(
        client: Client,
        caches: Caches,
        fleet: Fleet,
        publisher: Publisher,
        metrics: Metrics,
        fetch_image: String,
    ) -> Self {
        let recorder = Recorder::new(client.clone(), FIELD_MANAGER.into());
        let states = States::default();
        let inner =
            Inner { client, recorder, caches, fleet, publisher, metrics, fetch_image, states };
        Self(Arc::new(inner))
    }

    /// The client of the API server.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// The caches of Kubernetes objects.
    pub fn caches(&self) -> &Caches {
        &self.0.caches
    }

    /// Publishes the nodes' desired state.
    pub fn publisher(&self) -> &Publisher {
        &self.0.publisher
    }

    /// The metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Locks the reports of the nodes. Must not be held across an `await`.
    pub fn fleet(&self) -> MutexGuard<'_, FleetState> {
        self.0.fleet.lock()
    }

    /// The image that downloads models in Pods.
    pub fn fetch_image(&self) -> &str {
        &self.0.fetch_image
    }

    /// Publishes Events.
    pub fn recorder(&self) -> &Recorder {
        &self.0.recorder
    }

    /// The state of the controllers.
    pub fn states(&self) -> &States {
        &self.0.states
    }

    /// Runs `action` on the state of an object.
    pub fn object_state<K: Controller, T>(
        &self,
        object: &K,
        action: impl FnOnce(&mut ObjectState<K>) -> T,
    ) -> T {
        let uid = object.meta().uid.as_deref().unwrap_or_default();
        K::state(self.states()).with_object(uid, action)
    }

    /// Enqueues an object because an input of its plan may have changed.
    pub fn enqueue<K: Controller>(&self, object: &K) {
        self.object_state(object, ObjectState::invalidate);
        K::state(self.states()).enqueue(ObjectRef::from_obj(object));
    }

    /// Enqueues an object, if it exists, because of a report: only its status may change.
    pub fn enqueue_status<K: Controller>(&self, key: &ObjectKey) {
        K::state(self.states()).enqueue(reference(key));
    }

    /// Enqueues these objects because an input of their plan may have changed.
    pub fn enqueue_where<K: Controller>(&self, which: impl Fn(&K) -> bool) {
        for object in K::cache(self.caches()).state_filter(|cached| which(cached)) {
            self.enqueue(&*object);
        }
    }

    /// Enqueues every object that a change of the node, or of its agent, may affect.
    pub fn enqueue_node(&self, node: &NodeName) {
        each_kind!(K => self.enqueue_where(|object: &K| object.concerns(node.as_str())));
    }

    /// Enqueues every object.
    pub fn enqueue_all(&self) {
        each_kind!(K => self.enqueue_where(|_: &K| true));
    }

    /// Drops the state of a deleted object and removes the object from its nodes.
    pub fn forget<K: Controller>(&self, object: &K) {
        let uid = object.uid().unwrap_or_default();
        if let Some(key) = key(object) {
            self.publisher().remove(&key);
            self.fleet().forget(&key, &uid);
        }
        K::state(self.states()).forget(&uid);
    }
}
