//! The desired state of this node: the stored objects, and the workers, models, servers and
//! datasets derived from them.

use neptune_agent_core::desired::{Desired, from_replica};
use neptune_link::Message;
use neptune_wire::{PeerRoster, Replica, Resource, Revision};

use crate::{
    Error,
    config::Config,
    storage::{Store, replica::ReceiveOutcome},
};

/// The objects that the cloud sent, and the desired state derived from them.
pub struct DesiredState {
    pub replica: Replica,
    /// Everything that the objects in `replica` want from this node.
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

    /// The peers of this node. `None` if the cloud has not sent them, for example because the
    /// controller has just started: the agent keeps those that it has.
    pub fn roster(&self) -> Option<&PeerRoster> {
        let mut objects = self.replica.objects().iter();
        let (_, object) = objects.find(|(key, _)| key.resource == Resource::Peers)?;
        object.content.peers.as_deref()
    }

    /// The revision of the newest index, and whether this node has every object of it.
    pub fn progress(&self) -> (Revision, bool) {
        (self.replica.index().revision, self.replica.is_complete())
    }

    /// Whether the cloud sent an index, and this node has every object of it.
    pub fn is_complete(&self) -> bool {
        self.replica.index().revision.0 > 0 && self.replica.is_complete()
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
        store.receive(message, &config.node, &config.prefix, &mut self.replica)
    }
}
