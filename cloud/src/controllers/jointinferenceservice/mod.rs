//! The JointInferenceService controller: observe, validate, plan, apply, status.

mod apply;
mod kubernetes;
mod notices;
mod observe;
mod plan;
mod ports;
mod reconcile;
mod status;
mod validate;
mod workers;

pub use kubernetes::{MANAGED_BY, SERVICE_ANNOTATION};
pub use reconcile::{Context, dispatch, run};
