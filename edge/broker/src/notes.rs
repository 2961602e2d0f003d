//! Remarks on how workers use the broker, for the status of each worker. Bounded: a fixed set per
//! worker that has a container.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use neptune_wire::WorkerName;
use parking_lot::Mutex;
use tracing::warn;

/// A remark on one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerNote {
    /// It publishes without a login, which `--allow-anonymous-workers` permits.
    Anonymous,
    /// The worker's container has no password, because an earlier version of the agent created it.
    WithoutPassword,
    /// It never logged in, and a client without a login was refused.
    LoginMissing,
    /// It never logged in, and a client with its user name and another password was refused.
    WrongPassword,
    /// It never logged in, and its client uses another version of MQTT.
    OtherVersion,
    OversizedMessage,
    ForeignTopic,
}

impl fmt::Display for WorkerNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous => {
                "publishes without credentials, so that any process on the node can report for it; use the user and password of MQTT_URL in the worker"
            }
            Self::WithoutPassword => {
                "its container has no credentials because an earlier agent created it; it is replaced as soon as its inputs are on the node"
            }
            Self::LoginMissing => {
                "has not connected to the node's broker, and a client without credentials was refused; use the user and password of MQTT_URL in the worker, or start the agent with --allow-anonymous-workers"
            }
            Self::WrongPassword => {
                "has not connected to the node's broker, and a client with its user name was refused because of the password; use the user and password of MQTT_URL in the worker"
            }
            Self::OtherVersion => {
                "has not connected to the node's broker, and its client was refused because it does not use MQTT 3.1.1; set the worker's client to MQTT 3.1.1"
            }
            Self::OversizedMessage => {
                "publishes messages above 64 KiB, which are dropped; send smaller ones"
            }
            Self::ForeignTopic => {
                "publishes on topics that are not its own, and these messages are dropped; use WORKER_INFO_TOPIC"
            }
        })
    }
}

/// The remarks on all workers.
pub struct WorkerNotes {
    notes: Mutex<BTreeMap<WorkerName, BTreeSet<WorkerNote>>>,
    on_change: Box<dyn Fn() + Send + Sync>,
}

impl WorkerNotes {
    /// `on_change` is called after each change and must not block.
    pub fn new(on_change: impl Fn() + Send + Sync + 'static) -> Self {
        Self { notes: Mutex::default(), on_change: Box::new(on_change) }
    }

    pub(crate) fn add(&self, worker: &WorkerName, note: WorkerNote) {
        if self.notes.lock().entry(worker.clone()).or_default().insert(note) {
            warn!(%worker, "worker {note}");
            (self.on_change)();
        }
    }

    pub(crate) fn remove(&self, worker: &WorkerName, note: WorkerNote) {
        if self.notes.lock().get_mut(worker).is_some_and(|notes| notes.remove(&note)) {
            (self.on_change)();
        }
    }

    /// Removes the remarks on workers that do not match.
    pub(crate) fn retain(&self, is_retained: impl Fn(&WorkerName) -> bool) {
        self.notes.lock().retain(|worker, _| is_retained(worker));
    }

    /// The remarks on a worker, as one text. Empty if there are none.
    pub fn text(&self, worker: &WorkerName) -> String {
        let notes = self.notes.lock();
        let notes = notes.get(worker).into_iter().flatten().map(ToString::to_string);
        notes.collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    #[test]
    fn repeated_note_is_one_change_and_names_the_remedy() {
        let changes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&changes);
        let notes = WorkerNotes::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let worker: WorkerName = "w".parse().unwrap();
        for _ in 0..1000 {
            notes.add(&worker, WorkerNote::Anonymous);
        }
        assert_eq!(changes.load(Ordering::Relaxed), 1);
        assert!(notes.text(&worker).contains("use the user and password of MQTT_URL"));
        notes.remove(&worker, WorkerNote::Anonymous);
        assert_eq!((notes.text(&worker).as_str(), changes.load(Ordering::Relaxed)), ("", 2));
    }
}
