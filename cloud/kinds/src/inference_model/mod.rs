//! Model servers, run by an agent or by a Deployment.

mod contents;
#[cfg(test)]
mod crd_consistency;
mod events;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
#[cfg(test)]
mod inputs_tests;
#[cfg(test)]
mod leaves;
mod manifest;
mod model_source;
pub mod observed;
pub mod place;
mod plan;
mod program;
pub mod rollout;
pub mod servers;
pub mod status;
mod steps;
pub mod target;
pub mod validate;
pub mod waves;
pub mod workload;
