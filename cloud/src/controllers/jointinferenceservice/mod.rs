//! The `JointInferenceService` controller: observe, validate, plan, apply, status.

#[cfg(test)]
mod agreement;
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
mod workers;
mod write;

pub use reconcile::wake_neighbours;
