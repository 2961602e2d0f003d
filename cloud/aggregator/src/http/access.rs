//! Who sent a request, and what it may do. Pure.

use neptune_wire::{KeyPin, NodeName, TaskId, aggregator::RunTask};

use crate::{aggregator::Current, run::Run};

/// The other side of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// A client without TLS, which could be anybody.
    Anonymous,
    /// The owner of the controller's key.
    Controller,
    /// The owner of another key.
    Key(KeyPin),
}

/// Which task a peer sent a result of.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskAccess {
    /// A task of the current round, which is its own.
    Own(Box<RunTask>),
    /// The peer is a node of the run, and the task is none of the current round.
    NotCurrent,
    /// The peer may not send results of this task.
    Denied,
}

impl Peer {
    /// Whether the peer is a node of the run.
    pub fn is_node(&self, run: &Run) -> bool {
        matches!(self, Self::Key(pin) if run.nodes.values().any(|it| it == pin))
    }

    fn is(&self, node: &NodeName, run: &Run) -> bool {
        matches!(self, Self::Key(pin) if run.nodes.get(node) == Some(pin))
    }

    /// Decides whether the peer may send results of a task.
    pub fn task(&self, current: &Current, task: &TaskId) -> TaskAccess {
        let Some(run) = &current.run else { return TaskAccess::Denied };
        match current.tasks.get(task) {
            Some(task) if self.is(&task.node, run) => TaskAccess::Own(Box::new(task.clone())),
            None if self.is_node(run) => TaskAccess::NotCurrent,
            _ => TaskAccess::Denied,
        }
    }
}
