//! One folder per kind, each with the same steps: facts, validate, plan, observe, status, events.
//! The generic part is in `runtime`.

#[cfg(test)]
mod crd_consistency;
mod dataset;
mod inference_model;
mod joint_inference_service;
#[cfg(test)]
mod leaves;
pub mod model;
mod port_contention;
pub mod runtime;
pub mod training_model;
