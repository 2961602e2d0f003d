//! The `Dataset` controller: observe, validate, plan, status. It runs nothing: the node's agent counts.

#[cfg(test)]
mod crd_consistency;
mod events;
#[cfg(test)]
mod fixtures;
mod observe;
mod observed;
mod plan;
mod reconcile;
mod status;
mod validate;

pub use plan::{content, object_key};
