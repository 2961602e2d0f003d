//! The state that all requests share, behind one lock, and the signal that it changed. Touches memory only.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::crd;
use crate::object::{self, ObjectKey};
use crate::registry::Registry;
use crate::store::{HISTORY, Store};
use serde_json::Value;

/// Objects and the kinds that are served.
#[derive(Debug)]
pub struct State {
    pub store: Store,
    pub registry: Registry,
    /// The next address that a service gets, counted from the first.
    pub services: u32,
}

impl State {
    pub fn new() -> Self {
        Self { store: Store::new(HISTORY), registry: Registry::new(), services: 0 }
    }

    /// Stores an object and follows it where it is a definition of a kind.
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

    pub fn read<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(&self.lock())
    }

    /// Runs a change under the lock and wakes the watches when anything was written.
    pub fn write<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let (result, version) = {
            let mut state = self.lock();
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

    /// Resolves whenever the store reaches a new version.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Becomes true when the server ends.
    pub fn closing(&self) -> watch::Receiver<bool> {
        self.closing.subscribe()
    }

    /// Ends watches and controllers.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// A panic while holding the lock leaves whole objects: every write is one step of the store.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
