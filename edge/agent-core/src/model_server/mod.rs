//! Model servers: the container of a version, its health, and the rollout of a new version.

pub mod container;
pub mod plan;
pub mod probe;
pub mod rollout;
