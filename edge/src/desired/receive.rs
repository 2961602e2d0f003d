//! Receives messages of the cloud: decides with the wire's `Replica` whether they change anything,
//! and stores the changes before the agent acts on them.

use neptune_link::Message;
use neptune_wire::{
    Delete, Index, Insert, NodeName, Replica, Topic, TopicPrefix, decode, replica::ReplicaChange,
};

use crate::{Error, storage::Store};

/// What became of a message.
#[derive(Debug, PartialEq)]
pub enum ReceiveOutcome {
    /// These changes are in the replica and on the disk.
    Changed(Vec<ReplicaChange>),
    /// It was known already.
    Known,
    /// The index is older than what this node knows: the cloud should hear what that is.
    OlderIndex,
    /// It was dropped, because.
    Rejected(String),
}

/// Takes a message.
///
/// # Errors
/// The database cannot be written: then the replica is as it was before.
pub fn receive(
    message: &Message,
    node: &NodeName,
    prefix: &TopicPrefix,
    replica: &mut Replica,
    store: &mut Store,
) -> Result<ReceiveOutcome, Error> {
    let before = replica.clone();
    let changes = match changes(message, node, prefix, replica) {
        Ok(changes) => changes,
        Err(Dropped::Older) => return Ok(ReceiveOutcome::OlderIndex),
        Err(Dropped::Bad(why)) => return Ok(ReceiveOutcome::Rejected(why)),
    };
    if changes.is_empty() {
        return Ok(ReceiveOutcome::Known);
    }
    if let Err(error) = store.apply(replica, &changes, &message.payload) {
        *replica = before;
        return Err(error);
    }
    Ok(ReceiveOutcome::Changed(changes))
}

enum Dropped {
    Older,
    Bad(String),
}

fn changes(
    message: &Message,
    node: &NodeName,
    prefix: &TopicPrefix,
    replica: &mut Replica,
) -> Result<Vec<ReplicaChange>, Dropped> {
    fn bad(error: impl std::fmt::Display) -> Dropped {
        Dropped::Bad(error.to_string())
    }
    match Topic::parse(prefix, &message.topic).map_err(bad)? {
        Topic::Insert(to, key) if to == *node => {
            if message.payload.is_empty() {
                // The broker's retained copy was cleared; the delete or the index says what it
                // means.
                return Ok(Vec::new());
            }
            let insert: Insert = decode(&message.payload).map_err(bad)?;
            let metadata = &insert.content.metadata;
            if (&metadata.namespace, &metadata.name) != (&key.namespace, &key.name) {
                return Err(bad("the object's namespace and name are not those of its topic"));
            }
            Ok(replica.insert(&key, insert).into_iter().collect())
        }
        Topic::Delete(to, key) if to == *node => {
            let delete: Delete = decode(&message.payload).map_err(bad)?;
            Ok(replica.delete(&key, &delete).into_iter().collect())
        }
        Topic::Index(to) if to == *node => {
            if message.payload.is_empty() {
                return Ok(Vec::new());
            }
            let index: Index = decode(&message.payload).map_err(bad)?;
            if index.revision < replica.index().revision {
                return Err(Dropped::Older);
            }
            Ok(replica.index_received(index))
        }
        _ => Err(bad("not a downstream topic of this node")),
    }
}
