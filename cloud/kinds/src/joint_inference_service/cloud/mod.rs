//! Resolves the worker or server that answers hard samples.

pub mod endpoint;
pub mod other_service;
pub mod pod;
pub mod server;
pub mod target;
#[cfg(test)]
pub mod tests;
pub mod worker;
pub mod workload;
