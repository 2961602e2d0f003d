//! The peers of the nodes, shared by the tasks that change and publish them.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use neptune_cloud_kinds::fleet::{PeerPair, Rosters};
use neptune_wire::{NodeName, ObjectKey};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

/// The peers of the nodes, shared by the triggers and the Dataset controller.
#[derive(Debug, Default)]
pub struct PeerRosters {
    state: Mutex<Rosters>,
    /// Notified when a roster changed.
    pub changed: Notify,
}

impl PeerRosters {
    /// Sets the pairs of nodes that need a connection because of `object`, with their agents'
    /// consent: the source and each replica of a Dataset. Empty if it needs none any more. Pairs of
    /// older objects come first.
    pub fn set_pairs(
        &self,
        object: &ObjectKey,
        created: Option<Timestamp>,
        pairs: BTreeSet<PeerPair>,
    ) {
        self.change(|rosters| rosters.set_pairs(object, created, pairs));
    }

    /// The node that has no room for this pair, which therefore does not count.
    pub fn crowded(&self, a: &NodeName, b: &NodeName) -> Option<NodeName> {
        self.lock().crowded(a, b).cloned()
    }

    /// Applies a change of the nodes.
    pub fn change(&self, change: impl FnOnce(&mut Rosters)) {
        let mut rosters = self.lock();
        change(&mut rosters);
        if rosters.is_changed() {
            self.changed.notify_one();
        }
    }

    /// Locks the rosters. The guard must not live across an `await`.
    pub fn lock(&self) -> MutexGuard<'_, Rosters> {
        // Each change is one step, so a panic of another thread leaves no inconsistent value.
        self.state.lock()
    }
}
