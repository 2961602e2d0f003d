//! The `JointInferenceService` controller: observe, validate, plan, apply, status.

mod apply;
mod context;
mod half;
mod kubernetes;
mod notices;
mod observe;
mod plan;
mod ports;
mod reconcile;
#[cfg(test)]
mod sample;
mod status;
mod validate;
mod wake;
mod workers;
mod write;

pub use context::Context;
pub use kubernetes::{MANAGED_BY, SERVICE_ANNOTATION};
pub use reconcile::run;
pub use wake::dispatch;
