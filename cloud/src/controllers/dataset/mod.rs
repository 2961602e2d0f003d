//! The `Dataset` controller: observe, validate, plan, status. It runs nothing: the node's agent counts.

#[cfg(test)]
mod agreement;
mod notices;
mod observe;
mod plan;
mod reconcile;
#[cfg(test)]
mod sample;
mod status;
mod validate;
mod view;

pub use plan::{content, object_key};
