//! The decisions of the controller, without I/O: what each kind's objects need on nodes and in the
//! API server, their statuses, and what the nodes should have and report. Facts and the time are
//! parameters, results are values.
//!
//! The compiler and clippy hold that: `Cargo.toml` has no runtime, client or log, and `clippy.toml`
//! refuses clocks and the I/O of the standard library.
//!
//! The folders depend on each other in one direction:
//!
//! | modules | use |
//! |---|---|
//! | `error_class`, `kind`, `reason` | nothing |
//! | `finding` | `reason` |
//! | `availability`, `exceptions`, `log_requests` | nothing |
//! | `kubernetes` | `kind`, `finding` |
//! | `nodes`, `index_key`, `worker` | `kubernetes` |
//! | `join` | `kubernetes`, `nodes` |
//! | `fleet` | these |
//! | `port_contention`, `steps` | these |
//! | `rollout` | these |
//! | `dataset`, `model` | these |
//! | `inference_model`, `training_model`, `joint_inference_service` | these, and not each other |

#[macro_use]
pub mod kind;

mod availability;
mod cluster_keys;
#[cfg(test)]
mod crd_consistency;
pub mod dataset;
pub mod error_class;
mod exceptions;
pub mod finding;
pub mod fleet;
#[cfg(test)]
mod golden;
pub mod index_key;
pub mod inference_model;
pub mod join;
pub mod joint_inference_service;
pub mod kubernetes;
#[cfg(test)]
mod leaves;
pub mod log_requests;
pub mod model;
pub mod nodes;
pub mod port_contention;
pub mod reason;
pub mod rollout;
pub mod steps;
pub mod training_model;
pub mod worker;
