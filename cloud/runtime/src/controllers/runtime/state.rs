//! The in-memory state of a controller per object, and its queue. Losing it costs only requests.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use futures::channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use kube::runtime::reflector::ObjectRef;
use neptune_cloud_kinds::{finding::Finding, rollout::memory::RolloutMemory, steps::Steps};
use neptune_wire::ContentHash;

use super::{
    config_memory::ConfigReads,
    recent_events::{LastSummary, RecentEvents},
    write_budget::WritePace,
};
use crate::cache::Cached;

/// A kind with a [`ControllerState`]: every registered kind.
pub trait Stateful: Cached + Steps {
    /// The state of the kind's controller.
    fn state(states: &States) -> &ControllerState<Self>;
}

macro_rules! define_states {
    ([] $($kind:ident($resource:ident, $field:ident, $gauge:literal);)*) => {
        /// The state of every controller.
        #[derive(Default)]
        pub struct States { $($field: ControllerState<neptune_api::$kind>),* }

        $(impl Stateful for neptune_api::$kind {
            fn state(states: &States) -> &ControllerState<Self> {
                &states.$field
            }
        })*
    };
}

neptune_cloud_kinds::for_each_kind!(define_states!());

/// The state of one kind's controller.
pub struct ControllerState<K: Stateful> {
    /// The queue of objects; `None` until the controller runs: a standby replica enqueues nothing.
    queue: Mutex<Option<UnboundedSender<ObjectRef<K>>>>,
    /// The state of each object, by uid. Boxed, because a map has many unused entries.
    objects: Mutex<HashMap<String, Box<ObjectState<K>>>>,
    /// The objects that are planned again because of changed nodes, once these changes are collected.
    collected: Mutex<HashSet<ObjectRef<K>>>,
}

/// The state of one object.
pub struct ObjectState<K: Steps> {
    /// The workload that was applied last; `None` if it has to be applied.
    pub applied: Option<Applied>,
    /// The Service of the workload, if it was applied before the rest.
    pub applied_service: Option<Applied>,
    /// Deletions of the workload. If it increases during an apply, the applied workload may be
    /// deleted too.
    pub removals: u64,
    /// The status that was written last.
    pub last_write: Option<LastWrite<K>>,
    /// The versions that the watch brought since a status was sent, until the response: one may be that
    /// of the write.
    unattributed: Option<Vec<Option<String>>>,
    /// When the status of the object may be written.
    pub pace: WritePace,
    /// The cost of the last computation of the status, and when it ended.
    pub computed: Option<(Duration, Instant)>,
    /// Number of reconciles that failed since the last success.
    pub failures: u32,
    /// The result of the last facts, validate and plan. `None` after a change of an input.
    pub prepared: Option<Arc<Prepared<K>>>,
    /// Changes of the inputs of facts, validate or plan.
    pub invalidations: u64,
    /// What the controller keeps between two statuses.
    pub memory: K::Memory,
    /// Whether the spec was valid once since the start of the controller.
    pub was_valid: bool,
    /// Since when the plan waits for the Service that it created.
    pub awaits_service_since: Option<Instant>,
    /// The Events that were published last.
    pub events: RecentEvents,
    /// The Event with its numbers.
    pub summary: LastSummary,
    /// Which nodes may have the present revision, if the object has a rollout.
    pub rollout: RolloutMemory,
    /// The revision whose spec was recorded last.
    pub recorded: Option<String>,
    /// The Secrets and `ConfigMap`s that were read last; `None` without references.
    pub config: Option<ConfigReads>,
}

/// The last applied workload, so that a reconcile without a change sends no request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The hash of the desired objects.
    pub desired: ContentHash,
    /// The versions that the API server returned.
    pub versions: Vec<String>,
}

/// The result of facts, validate, plan and execute.
pub struct Prepared<K: Steps> {
    /// The generation of the spec.
    pub generation: Option<i64>,
    /// What `observe` needs of the valid spec; `None` if the spec is invalid.
    pub placed: Option<K::Placed>,
    /// What prevents the spec from being in effect.
    pub findings: Vec<Finding>,
    /// Whether the nodes wait until the status is stored.
    pub awaits_status: bool,
    /// When to execute the plan again although nothing changes.
    pub retry_at: Option<Instant>,
}

/// A status that was written, and that the cache may not have yet.
pub struct LastWrite<K> {
    /// The version of the cached object when the status was written.
    pub over: Option<String>,
    /// The version that the write created.
    pub version: Option<String>,
    /// The object as the API server returned it, while the cache has the version `over`.
    pub object: Option<Arc<K>>,
}

impl<K: Stateful> Default for ControllerState<K> {
    fn default() -> Self {
        Self { queue: Mutex::default(), objects: Mutex::default(), collected: Mutex::default() }
    }
}

impl<K: Steps> Default for ObjectState<K> {
    fn default() -> Self {
        Self {
            applied: None,
            applied_service: None,
            removals: 0,
            last_write: None,
            unattributed: None,
            pace: WritePace::default(),
            computed: None,
            failures: 0,
            prepared: None,
            invalidations: 0,
            memory: K::Memory::default(),
            was_valid: false,
            awaits_service_since: None,
            events: RecentEvents::default(),
            summary: LastSummary::default(),
            rollout: RolloutMemory::default(),
            recorded: None,
            config: None,
        }
    }
}

impl<K: Stateful> ControllerState<K> {
    /// Opens the queue of the controller, and returns its receiver.
    pub fn open_queue(&self) -> UnboundedReceiver<ObjectRef<K>> {
        let (sender, receiver) = mpsc::unbounded();
        *self.lock_queue() = Some(sender);
        receiver
    }

    /// Enqueues an object, if the controller runs.
    pub fn enqueue(&self, reference: ObjectRef<K>) {
        if let Some(queue) = &*self.lock_queue() {
            // The receiver is dropped only at program exit.
            let _ = queue.unbounded_send(reference);
        }
    }

    /// Collects an object. Returns whether it is the first one since the last
    /// [`ControllerState::take_collected`].
    pub fn collect(&self, reference: ObjectRef<K>) -> bool {
        let mut collected = self.lock_collected();
        let is_first = collected.is_empty();
        collected.insert(reference);
        is_first
    }

    /// Takes the objects that were collected.
    pub fn take_collected(&self) -> HashSet<ObjectRef<K>> {
        std::mem::take(&mut self.lock_collected())
    }

    /// Runs `action` on the state of the object with this uid.
    pub fn with_object<T>(&self, uid: &str, action: impl FnOnce(&mut ObjectState<K>) -> T) -> T {
        let mut objects = self.lock_objects();
        if !objects.contains_key(uid) {
            objects.insert(uid.to_owned(), Box::default());
        }
        action(objects.get_mut(uid).expect("it was inserted"))
    }

    /// Runs `action` on the state of the object with this uid, if it has one.
    pub fn with_known<T>(
        &self,
        uid: &str,
        action: impl FnOnce(&mut ObjectState<K>) -> T,
    ) -> Option<T> {
        self.lock_objects().get_mut(uid).map(|state| action(state))
    }

    /// Drops the state of an object.
    pub fn forget(&self, uid: &str) {
        self.lock_objects().remove(uid);
    }

    /// Drops the state of all objects except these.
    pub fn retain(&self, uids: &BTreeSet<String>) {
        self.lock_objects().retain(|uid, _| uids.contains(uid));
    }

    fn lock_queue(&self) -> MutexGuard<'_, Option<UnboundedSender<ObjectRef<K>>>> {
        self.queue.lock().expect("nothing panics while it holds this lock")
    }

    fn lock_collected(&self) -> MutexGuard<'_, HashSet<ObjectRef<K>>> {
        self.collected.lock().expect("nothing panics while it holds this lock")
    }

    fn lock_objects(&self) -> MutexGuard<'_, HashMap<String, Box<ObjectState<K>>>> {
        self.objects.lock().expect("nothing panics while it holds this lock")
    }
}

impl<K: Steps> ObjectState<K> {
    /// An input of facts, validate or plan changed: the next reconcile runs them again.
    pub fn invalidate(&mut self) {
        self.prepared = None;
        self.invalidations += 1;
        self.memory = K::Memory::default();
    }

    /// Records that a status write is on its way, so its version is not known yet.
    pub fn begin_write(&mut self) {
        self.unattributed = Some(Vec::new());
    }

    /// The write has a response, with this version if it succeeded. Returns whether the watch brought
    /// other versions meanwhile, whose changes are not processed yet.
    pub fn end_write(&mut self, version: Option<&str>) -> bool {
        let versions = self.unattributed.take().unwrap_or_default();
        versions.iter().any(|brought| version.is_none() || brought.as_deref() != version)
    }

    /// Whether a version is that of the last status write, or may be: then the response decides. An
    /// object has another generation if its spec changed.
    pub fn is_own_write(&mut self, version: Option<String>, is_same_generation: bool) -> bool {
        if self.last_write.as_ref().is_some_and(|last| last.version == version) {
            return true;
        }
        let unattributed = self.unattributed.as_mut().filter(|_| is_same_generation);
        unattributed.map(|versions| versions.push(version)).is_some()
    }

    /// A workload of the object was deleted: the next reconcile applies it again.
    pub fn on_workload_deleted(&mut self) {
        (self.applied, self.applied_service) = (None, None);
        self.removals += 1;
    }
}

#[cfg(test)]
mod tests {
    use neptune_api::Dataset;

    use super::*;

    #[test]
    fn watch_event_before_the_response_is_the_own_write() {
        let version = |number: &str| Some(number.to_owned());
        let mut state = ObjectState::<Dataset>::default();
        assert!(!state.is_own_write(version("1"), true), "no status was sent");
        state.begin_write();
        assert!(!state.is_own_write(version("2"), false), "the spec changed");
        assert!(state.is_own_write(version("3"), true));
        assert!(!state.end_write(Some("3")), "it was the write");
        assert!(!state.is_own_write(version("4"), true), "the write has its response");
        state.begin_write();
        assert!(state.is_own_write(version("5"), true) && state.is_own_write(version("6"), true));
        assert!(state.end_write(Some("6")), "5 was written by another");
        state.begin_write();
        assert!(state.is_own_write(version("7"), true));
        assert!(state.end_write(None), "the write failed");
    }
}
