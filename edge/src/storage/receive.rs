//! Receives a message of the cloud: applies it to the wire's `Replica`, and stores the changes
//! before they take effect.

use neptune_link::Message;
use neptune_wire::{
    Delete, Index, Insert, NodeName, Replica, Topic, TopicPrefix, decode, replica::ReplicaChange,
};

use crate::{Error, storage::Store};

/// What a message of the cloud changed.
#[derive(Debug, PartialEq)]
pub enum ReceiveOutcome {
    /// These changes are in the replica and in the database.
    Changed(Vec<ReplicaChange>),
    /// The message changed nothing.
    Known,
    /// The index is older than the one of this node: a sync informs the cloud.
    OlderIndex,
    /// The message was dropped, for this reason.
    Rejected(String),
}

/// Applies a message to the replica and to the database.
///
/// # Errors
/// The database cannot be written. The replica is then unchanged.
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
        Err(RejectedMessage::OlderIndex) => return Ok(ReceiveOutcome::OlderIndex),
        Err(RejectedMessage::Invalid(why)) => return Ok(ReceiveOutcome::Rejected(why)),
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

enum RejectedMessage {
    OlderIndex,
    Invalid(String),
}

fn changes(
    message: &Message,
    node: &NodeName,
    prefix: &TopicPrefix,
    replica: &mut Replica,
) -> Result<Vec<ReplicaChange>, RejectedMessage> {
    fn invalid(error: impl std::fmt::Display) -> RejectedMessage {
        RejectedMessage::Invalid(error.to_string())
    }
    match Topic::parse(prefix, &message.topic).map_err(invalid)? {
        Topic::Insert(to, key) if to == *node => {
            if message.payload.is_empty() {
                // The retained message was cleared; a delete or an index carries the change.
                return Ok(Vec::new());
            }
            let insert: Insert = decode(&message.payload).map_err(invalid)?;
            let metadata = &insert.content.metadata;
            if (&metadata.namespace, &metadata.name) != (&key.namespace, &key.name) {
                return Err(invalid("metadata.namespace and metadata.name do not match the topic"));
            }
            Ok(replica.insert(&key, insert).into_iter().collect())
        }
        Topic::Delete(to, key) if to == *node => {
            let delete: Delete = decode(&message.payload).map_err(invalid)?;
            Ok(replica.delete(&key, &delete).into_iter().collect())
        }
        Topic::Index(to) if to == *node => {
            if message.payload.is_empty() {
                return Ok(Vec::new());
            }
            let index: Index = decode(&message.payload).map_err(invalid)?;
            if index.revision < replica.index().revision {
                return Err(RejectedMessage::OlderIndex);
            }
            Ok(replica.index_received(index))
        }
        _ => Err(invalid("not a downstream topic of this node")),
    }
}
