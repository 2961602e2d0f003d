//! Model servers: which version runs, its container, its health probes and the rollout of a new
//! version.

pub mod http_probe;
pub mod instance;
pub mod route_file;
