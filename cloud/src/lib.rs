//! The controller of Neptune: watches its kinds in Kubernetes, publishes each node's desired state,
//! and writes what the nodes report into statuses.
//!
//! The binary calls [`run::run`] and [`commands`]. The folders depend on each other in one
//! direction: `admission`, `commands`, `worker_reports` and `run` on `controllers`, these on `cache`
//! and `fleet`, and all on `kubernetes`, `training`, `transport`, `worker` and `receiver`.

#[macro_use]
mod kinds;

mod admission;
mod cache;
pub mod cli;
pub mod commands;
mod controllers;
pub mod error;
mod finding;
mod fleet;
mod health;
mod kubernetes;
mod metrics;
mod reason;
mod receiver;
pub mod run;
mod token_key;
mod training;
mod transport;
mod worker;
mod worker_reports;
