//! What a controller keeps of a model between two statuses: its rows, and what changed since. The
//! triggers mark changes, and `observe` reads only what is marked.

use std::collections::BTreeSet;

use neptune_wire::NodeName;

use super::rows::NodeRows;

/// The rows of a model, and what of them has to be read again.
#[derive(Debug, Default)]
pub struct ModelMemory {
    /// The generation of the spec that the rows were compared with.
    generation: Option<i64>,
    rows: NodeRows,
    changes: Changes,
}

/// What has to be read again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Changes {
    /// Everything has to be read again.
    #[default]
    All,
    /// Only the named services and nodes have to be read again.
    Some {
        /// Services of the namespace, by name.
        services: BTreeSet<String>,
        /// Nodes whose reports changed.
        nodes: BTreeSet<NodeName>,
    },
}

impl ModelMemory {
    /// A service changed that uses the model, or did.
    pub fn mark_service(&mut self, service: &str) {
        if let Changes::Some { services, .. } = &mut self.changes {
            services.insert(service.to_owned());
        }
    }

    /// The report of a node changed, or its agent.
    pub fn mark_node(&mut self, node: &NodeName) {
        if let Changes::Some { nodes, .. } = &mut self.changes {
            nodes.insert(node.clone());
        }
    }

    /// Takes the rows and what changed in them. What is marked from now on is a later change.
    pub fn take(&mut self, generation: Option<i64>) -> (NodeRows, Changes) {
        let none = Changes::Some { services: BTreeSet::new(), nodes: BTreeSet::new() };
        let changes = std::mem::replace(&mut self.changes, none);
        let rows = std::mem::take(&mut self.rows);
        let is_same_spec = std::mem::replace(&mut self.generation, generation) == generation;
        match changes {
            Changes::Some { .. } if is_same_spec => (rows, changes),
            Changes::Some { .. } | Changes::All => (NodeRows::default(), Changes::All),
        }
    }

    /// Puts the rows back. If everything changed meanwhile, they are read again.
    pub fn put(&mut self, rows: NodeRows) {
        self.rows = rows;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn marks_are_taken_once_and_another_spec_changes_everything() {
        let mut memory = ModelMemory::default();
        memory.mark_service("a");
        assert_eq!(memory.take(Some(1)).1, Changes::All);
        let edge: NodeName = "edge0".parse().unwrap();
        memory.mark_service("a");
        memory.mark_node(&edge);
        memory.put(NodeRows::default());
        let some = Changes::Some { services: ["a".to_owned()].into(), nodes: [edge].into() };
        assert_eq!(memory.take(Some(1)).1, some);
        let none = Changes::Some { services: BTreeSet::new(), nodes: BTreeSet::new() };
        assert_eq!(memory.take(Some(1)).1, none);
        assert_eq!(memory.take(Some(2)).1, Changes::All);
    }
}
