//! Model servers: which version runs, its container, its health probes and the rollout of a new
//! version.

pub mod container;
pub mod instance;
pub mod plan;
pub mod probe;
pub mod rollout;
pub mod route_file;
