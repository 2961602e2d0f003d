//! The agent of a node: runs the workers and model servers that the cloud requests, and reports
//! their status.
//!
//! The folders depend on each other in one direction:
//!
//! | folder | uses |
//! |---|---|
//! | `domain` | nothing |
//! | `storage`, `engine`, `report` | `domain` |
//! | `desired` | `domain`, `storage` |
//! | `plan` | `domain`, `desired` |
//! | `gateway` | `domain`, `desired` |
//! | `worker` | `domain`, `desired`, `plan`, `gateway` |
//! | `artifacts` | `domain`, `desired`, `storage` |
//! | `model_server` | `domain`, `desired`, `plan`, `artifacts`, `engine` |
//! | `training` | `domain`, `desired`, `artifacts`, `engine` |
//! | `aggregator` | `domain`, `engine`, `training` |
//! | `agent` | all of these |
//! | `broker` | `config`, `domain` |
//! | `sidecar` | `broker` |
//! | `commands` | `startup`, which assembles the agent |

pub mod cli;
pub mod commands;
pub mod config;
pub mod error;
pub mod model_server;
pub mod storage;

mod agent;
mod aggregator;
mod artifacts;
mod event;
mod gateway;
mod links;
mod peers;
mod replication;
mod report;
mod sidecar;
mod startup;
mod training;

#[cfg(test)]
mod fixtures;

pub use crate::{commands::run, error::Error};
