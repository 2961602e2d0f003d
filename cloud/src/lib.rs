//! The controller of Neptune: watches its kinds in Kubernetes, publishes each node's desired state,
//! and writes what the nodes report into statuses.
//!
//! What to do is decided in `neptune-cloud-kinds`, which does no I/O.
//!
//! The binary calls [`run::run`] and [`commands`]. The folders depend on each other in one
//! direction: `admission`, `commands`, `worker_reports` and `run` on `controllers`, these on
//! `upstream`, this on `cache`, and all on `kubernetes` and `training`.

mod admission;
mod cache;
pub mod cli;
pub mod commands;
mod controllers;
pub mod error;
mod health;
mod kubernetes;
pub mod run;
mod training;
mod upstream;
mod worker_reports;
