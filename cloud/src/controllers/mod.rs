//! One folder per kind, each with the same steps: facts, validate, plan, observe, status, events.
//! The generic part is in `runtime`.

mod dataset;
mod inference_model;
mod joint_inference_service;
pub mod model;
mod port_contention;
pub mod runtime;
pub mod training_model;
