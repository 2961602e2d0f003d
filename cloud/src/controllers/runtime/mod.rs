//! The generic part of every controller: queue, triggers, reconcile, plan execution, status writer, Events.

pub mod apply;
pub mod context;
pub mod controller;
pub mod event;
pub mod execute;
mod merge_patch;
pub mod queue;
pub mod status_writer;
pub mod triggers;
