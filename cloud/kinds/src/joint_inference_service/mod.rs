//! Services of an edge worker and a cloud worker, which an agent or a Deployment runs.

#[cfg(test)]
mod cases;
pub mod chain;
mod cloud;
#[cfg(test)]
mod config_tests;
#[cfg(test)]
mod crd_changes;
#[cfg(test)]
mod crd_consistency;
mod edge;
pub mod facts;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod gateway;
#[cfg(test)]
mod leaves;
mod node_contents;
pub mod plan;
pub mod resolved;
pub mod rollout;
pub mod selection;
pub mod server;
pub mod spec;
pub mod status;
mod steps;
pub mod validate;
mod worker;

pub use self::steps::has_reason;
