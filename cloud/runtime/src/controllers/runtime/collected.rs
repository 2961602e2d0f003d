//! Collects the objects that changes of nodes affect, so that a thousand nodes which join at the same
//! time are one plan.

use std::time::Duration;

use kube::runtime::reflector::ObjectRef;

use super::{
    context::Context,
    controller::{Cause, Controller},
};

/// The time for which changes of nodes are collected before the objects that they affect are planned
/// again.
const COLLECT: Duration = Duration::from_millis(200);

impl Context {
    /// Enqueues an object, and those that depend on it, because a node that it concerns changed. It is
    /// enqueued once for all changes of the next 200 ms.
    pub fn enqueue_by_nodes<K: Controller>(&self, object: &K) {
        if !K::state(self.states()).collect(ObjectRef::from_obj(object)) {
            return;
        }
        let context = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(COLLECT).await;
            context.enqueue_collected::<K>();
        });
    }

    /// Enqueues the objects that were collected, as far as they still exist.
    pub fn enqueue_collected<K: Controller>(&self) {
        for reference in K::state(self.states()).take_collected() {
            if let Some(object) = K::cache(self.caches()).get(&reference) {
                self.enqueue(&*object);
                object.enqueue_related(Cause::Node, self);
            }
        }
    }
}
