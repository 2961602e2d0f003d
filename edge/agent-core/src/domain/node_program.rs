//! A program that the agent runs, with what names its volumes and binds its Secrets.

use neptune_wire::{ContainerProgram, WorkerName};

/// The program of a worker, of a version of a model server, or of a training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeProgram<'a> {
    /// UID of the object.
    pub uid: &'a str,
    /// Name of the worker or of the server, unique on the node.
    pub name: &'a WorkerName,
    pub program: &'a ContainerProgram,
}
