//! One folder per kind: reads its facts and its observation, and enqueues what depends on its objects.
//! The other steps are in `neptune-cloud-kinds`, and the generic part is in `runtime`. `edge_nodes`
//! writes what is known of nodes.

mod dataset;
pub(crate) mod edge_nodes;
mod inference_model;
mod joint_inference_service;
pub(crate) mod model;
mod port_contention;
mod rollout;
pub mod runtime;
pub(crate) mod training_model;

pub(crate) use self::joint_inference_service::on_slice_stored;
