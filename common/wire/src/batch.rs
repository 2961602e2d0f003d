//! Several upstream messages in one, for a way that carries few messages and loses some.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::AgentInstance;

/// What a node says at once over `KubeEdge`'s `EventBus`. Each message is complete in itself: a lost
/// batch is repaired by a later one, and the order of batches does not matter beyond
/// `(instance, epoch, seq)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// The agent's data directory.
    pub instance: AgentInstance,
    /// How often the agent has started on that directory.
    pub epoch: u64,
    /// The order of this batch within the epoch.
    pub seq: u64,
    /// The messages. Empty says only that the node is there.
    #[serde(default)]
    pub messages: Vec<BatchMessage>,
}

/// A message as it would have been published by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchMessage {
    /// The whole topic, prefix included.
    pub topic: String,
    /// The payload; `null` where the message is empty, which tells that an object is gone.
    pub payload: Value,
}
