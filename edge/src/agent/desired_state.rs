//! The desired state of this node: the stored objects, and the workers, models, servers and
//! datasets derived from them.

use std::collections::BTreeSet;

use neptune_link::Message;
use neptune_wire::{ObjectKey, Replica, Revision, replica::ReplicaChange};
use tracing::info;

use crate::{
    Error,
    config::Config,
    desired::{
        Desired, from_replica,
        receive::{ReceiveOutcome, receive},
    },
    storage::Store,
    worker::counts::Counts,
};

/// The objects that the cloud sent, and the desired state derived from them.
pub struct DesiredState {
    pub replica: Replica,
    /// Derived from `replica`.
    pub desired: Desired,
}

impl DesiredState {
    pub fn new(replica: Replica) -> Self {
        Self { replica, desired: Desired::default() }
    }

    /// Derives the desired state from the objects again.
    pub fn recompute(&mut self) {
        self.desired = from_replica(&self.replica);
    }

    /// The revision of the newest index, and whether this node has every object of it.
    pub fn progress(&self) -> (Revision, bool) {
        (self.replica.index().revision, self.replica.is_complete())
    }

    /// Applies a message of the cloud, and stores the changes.
    ///
    /// # Errors
    /// The database cannot be written. The state is unchanged.
    pub fn receive(
        &mut self,
        message: &Message,
        config: &Config,
        store: &mut Store,
    ) -> Result<ReceiveOutcome, Error> {
        receive(message, &config.node, &config.prefix, &mut self.replica, store)
    }

    /// Logs the changes and drops the counters of removed objects. Returns the removed objects.
    pub fn log_changes(
        &self,
        changes: &[ReplicaChange],
        counts: &mut Counts,
    ) -> BTreeSet<ObjectKey> {
        let mut removed = BTreeSet::new();
        for change in changes {
            match change {
                ReplicaChange::Set(key) => {
                    let object = &self.replica.objects()[key];
                    info!(object = %key, revision = %object.revision, "object received");
                    counts.forget(key, Some(&object.content.metadata.uid));
                }
                ReplicaChange::Removed(key) => {
                    info!(object = %key, "object removed");
                    counts.forget(key, None);
                    removed.insert(key.clone());
                }
                ReplicaChange::Renewed(_) | ReplicaChange::Index => {}
            }
        }
        removed
    }
}
