//! Several upstream messages in one payload, for a transport that carries few messages and loses
//! some.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::AgentInstance;

/// The messages that a node publishes together over `KubeEdge`'s `EventBus`.
///
/// Each message is complete in itself: a later batch repairs a lost one. `(instance, epoch, seq)`
/// orders the batches of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Identifies the agent's data directory.
    pub instance: AgentInstance,
    /// Number of agent starts on that data directory.
    pub epoch: u64,
    /// Sequence number of this batch within the epoch.
    pub seq: u64,
    /// The messages. An empty list is a heartbeat.
    #[serde(default)]
    pub messages: Vec<BatchMessage>,
}

/// One message of a [`Batch`], as it would be published on its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchMessage {
    /// The complete topic, including the prefix.
    pub topic: String,
    /// The payload. `null` is the empty payload, which clears a retained message.
    pub payload: Value,
}
