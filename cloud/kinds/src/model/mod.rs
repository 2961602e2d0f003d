//! Models: which nodes download them, and what is reported of their files and metrics.

pub mod address;
#[cfg(test)]
mod crd_consistency;
mod events;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
#[cfg(test)]
mod leaves;
pub mod memory;
pub mod mirrors;
pub mod place;
mod plan;
mod presence;
mod resolved;
pub mod rows;
pub mod status;
mod steps;
pub mod users;
mod validate;

pub use self::{
    plan::content,
    presence::ModelFile,
    users::{is_selected, used_edge_model, uses_differ},
    validate::{address_text, validate},
};
