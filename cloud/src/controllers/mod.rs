//! One folder a kind, each with the same steps: observe, validate, plan, apply, status. What is the
//! same for every kind stands beside the folders.

mod apply;
mod carry_out;
mod context;
mod identity;
mod inferencemodel;
mod jointinferenceservice;
mod kind;
mod merge;
mod nodes;
mod notice;
mod objects;
mod pods;
mod queue;
mod tables;
mod wake;
mod write;

pub use context::Context;
pub use kind::Kind;
pub use objects::{INFERENCE_MODEL_ANNOTATION, MANAGED_BY, SERVICE_ANNOTATION};
pub use queue::{expect, run};
pub use wake::dispatch;
