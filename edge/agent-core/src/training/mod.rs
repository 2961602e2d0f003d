//! Training tasks: the state machine of a task, its container and volumes, and the result of its
//! program.

pub mod container;
pub mod paths;
pub mod result;
pub mod task;
pub mod volumes;
