//! One folder per kind: reads its facts and its observation, and enqueues what depends on its objects.
//! The other steps are in `neptune-cloud-kinds`, and the generic part is in `runtime`.

mod dataset;
mod inference_model;
mod joint_inference_service;
pub(crate) mod model;
mod port_contention;
pub mod runtime;
pub(crate) mod training_model;
