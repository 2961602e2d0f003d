//! The identity of the agent: its data directory and its start.

use neptune_wire::AgentInstance;

/// The ID of the data directory, and the number of this start of the agent (epoch).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentIdentity {
    pub instance: AgentInstance,
    pub epoch: u64,
}
