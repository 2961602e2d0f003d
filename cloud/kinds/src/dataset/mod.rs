//! Datasets: which nodes get them, and what is reported of their samples and replicas.

#[cfg(test)]
mod crd_consistency;
mod events;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
#[cfg(test)]
mod leaves;
pub mod observed;
pub mod place;
mod plan;
pub mod replicas;
pub mod status;
mod steps;
pub mod validate;

pub use self::{
    place::is_on,
    plan::{content, object_key},
    status::READY,
};
