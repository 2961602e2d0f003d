//! The messages that synchronize the objects of a node: what it should have, and what it has.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{ContentHash, Counters, ObjectKey, Revision, unknown};

/// Identifies an agent's data directory. `(epoch, seq)` orders the messages of an instance. The
/// counters of another instance of the same node start at zero and are added to those of earlier
/// instances.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AgentInstance(pub String);

impl AgentInstance {
    /// Maximum length in bytes.
    const MAX_LENGTH: usize = 64;

    /// Returns whether this can be the ID of a data directory: 1 to 64 letters, digits and `-`.
    pub fn is_valid(&self) -> bool {
        (1..=Self::MAX_LENGTH).contains(&self.0.len())
            && self.0.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    }
}

/// A start of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentStart {
    /// Identifies the agent's data directory.
    pub instance: AgentInstance,
    /// Number of agent starts on that data directory.
    pub epoch: u64,
}

/// The index of a node: every object that it should have, without the contents.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// Orders this index among all indexes of the node. Indexes and objects use the same clock.
    pub revision: Revision,
    /// The objects. The node removes objects that are not listed and not newer than this index.
    #[serde(deserialize_with = "unknown::objects")]
    pub objects: BTreeMap<ObjectKey, IndexEntry>,
    /// Objects whose desired state the controller cannot determine now, because something that they
    /// refer to is unknown. A node that has such an object keeps it unchanged.
    #[serde(
        default,
        skip_serializing_if = "BTreeSet::is_empty",
        deserialize_with = "unknown::keys"
    )]
    pub keep: BTreeSet<ObjectKey>,
    /// UIDs of the last sync's `departed` that no object has any more. The node deletes their
    /// totals.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub gone_uids: BTreeSet<String>,
    /// A start of the agent that is newer than the one that sent the last sync.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newer_start: Option<AgentStart>,
    /// Over `EventBus`, the seconds between two batches of the node that contain reports; absent
    /// means 1. Grows with the fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_seconds: Option<u32>,
}

/// The entry of an object in an [`Index`] or a [`Sync`](crate::Sync).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexEntry {
    /// The revision of the newest [`Insert`](crate::Insert) of the object.
    pub revision: Revision,
    /// The hash of its content.
    pub hash: ContentHash,
}

/// The objects that a node has. The controller responds with the messages that are missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sync {
    /// Identifies the agent's data directory.
    pub instance: AgentInstance,
    /// Number of agent starts on that data directory.
    pub epoch: u64,
    /// The revision of the newest index that the node has applied.
    pub index_revision: Revision,
    /// The highest revision that the node has seen, tombstones included.
    pub highest: Revision,
    /// Whether the objects are exactly those of that index. Two controllers that overlap can assign
    /// one revision to two indexes; this field detects that the node has the other one.
    pub complete: bool,
    /// Whether the controller responds with its index even if the node has it. A node requests it
    /// after a reconnect over a transport that loses messages silently, until an index arrives.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub request_index: bool,
    /// The objects that the node has.
    #[serde(deserialize_with = "unknown::objects")]
    pub objects: BTreeMap<ObjectKey, IndexEntry>,
    /// Totals of objects that the node no longer has, by UID. The node keeps them until an index
    /// lists the UID in `goneUids`: the object may return to the node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub departed: BTreeMap<String, DepartedTotals>,
}

/// The totals of an object that a node no longer has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DepartedTotals {
    /// Namespace, resource and name of the object.
    pub object: ObjectKey,
    /// The counters. Those of gateways are zero for other workers.
    #[serde(flatten, with = "crate::counter_members")]
    pub counters: Counters,
}
