//! The state that all requests share, protected by one lock, and the notification of its changes.
//! In memory only.

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::crd;
use crate::object::{self, ObjectKey};
use crate::registry::Registry;
use crate::store::{HISTORY, Store};
use serde_json::Value;

/// The objects and the served kinds.
#[derive(Debug)]
pub struct State {
    pub store: Store,
    pub registry: Registry,
    /// Number of allocated service addresses.
    pub services: u32,
}

impl State {
    pub fn new() -> Self {
        Self { store: Store::new(HISTORY), registry: Registry::new(), services: 0 }
    }

    /// Stores an object and, for a definition, updates the served kinds.
    pub fn put(&mut self, storage: &str, value: Value) -> Value {
        let stored = self.store.put(storage, value);
        if storage == crd::STORAGE {
            self.registry.set_custom(object::name(&stored), crd::resource(&stored));
        }
        Value::clone(&stored)
    }

    pub fn remove(&mut self, storage: &str, key: &ObjectKey) -> Option<Value> {
        let last = self.store.remove(storage, key)?;
        if storage == crd::STORAGE {
            self.registry.set_custom(&key.name, None);
        }
        Some(Value::clone(&last))
    }
}

#[derive(Debug)]
pub struct Cluster {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
    closing: watch::Sender<bool>,
}

impl Cluster {
    pub fn new() -> Self {
        Self {
            state: Mutex::new(State::new()),
            changed: watch::Sender::new(0),
            closing: watch::Sender::new(false),
        }
    }

    /// Runs a function on the state under the lock.
    pub fn read<R>(&self, function: impl FnOnce(&State) -> R) -> R {
        function(&self.state.lock())
    }

    /// Runs a change under the lock, and notifies the watches if it wrote anything.
    pub fn write<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let (result, version) = {
            let mut state = self.state.lock();
            let result = change(&mut state);
            (result, state.store.version())
        };
        self.changed.send_if_modified(|seen| {
            let newer = version > *seen;
            *seen = version.max(*seen);
            newer
        });
        result
    }

    /// The version of the store, with a notification of each new version.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Becomes true when the server stops.
    pub fn closing(&self) -> watch::Receiver<bool> {
        self.closing.subscribe()
    }

    /// Stops watches and controllers.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }
}
