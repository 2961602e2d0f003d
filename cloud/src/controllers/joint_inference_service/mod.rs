//! The `JointInferenceService` controller: observe, validate, plan, apply, status.

#[cfg(test)]
mod crd_consistency;
mod events;
#[cfg(test)]
mod fixtures;
mod observe;
mod observed;
mod plan;
mod ports;
mod reconcile;
mod status;
mod validate;
mod worker;
mod workload;
mod write_status;

pub use reconcile::enqueue_port_neighbours;
