//! One folder a kind, each with the same steps: observe, validate, plan, apply, status. What is the
//! same for every kind stands beside the folders.

#[cfg(test)]
mod agreement;
mod apply;
mod carry_out;
mod condition;
mod context;
mod dataset;
mod identity;
mod inferencemodel;
mod jointinferenceservice;
mod kind;
mod merge;
mod model;
mod nodes;
mod notice;
mod objects;
mod pods;
mod queue;
mod tables;
mod wake;
mod write;

pub use apply::FIELD_MANAGER;
pub use context::Context;
pub use kind::Kind;
pub use nodes::is_edge_node;
pub use objects::{INFERENCE_MODEL_ANNOTATION, MANAGED_BY, SERVICE_ANNOTATION};
pub use queue::{expect, run};
pub use wake::dispatch;
