//! The identity of the agent: its data directory and its start.

use neptune_wire::{AgentInstance, AgentStart};

/// The ID of the data directory, and the number of this start of the agent (epoch).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentIdentity {
    pub instance: AgentInstance,
    pub epoch: u64,
}

impl AgentIdentity {
    /// Whether the cloud knows a newer start of this instance: the data directory is an earlier
    /// copy, and the cloud would ignore what this agent counts up to the numbers that it has.
    pub fn is_outdated(&self, newer: &AgentStart) -> bool {
        newer.instance == self.instance && newer.epoch > self.epoch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_outdated_only_by_a_newer_start_of_its_instance() {
        let identity = AgentIdentity { instance: AgentInstance("a".to_owned()), epoch: 3 };
        for (instance, epoch, expected) in
            [("a", 4, true), ("a", 3, false), ("a", 2, false), ("b", 4, false)]
        {
            let newer = AgentStart { instance: AgentInstance(instance.to_owned()), epoch };
            assert_eq!(identity.is_outdated(&newer), expected, "{newer:?}");
        }
    }
}
