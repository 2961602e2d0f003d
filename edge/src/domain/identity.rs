//! The identity of the agent: its data directory and its start.

use neptune_wire::AgentInstance;

/// Who this data directory is, in this start of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentIdentity {
    pub instance: AgentInstance,
    pub epoch: u64,
}
