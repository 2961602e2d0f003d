//! The agent of a node: runs the workers and model servers that the cloud requests, and reports
//! their status.
//!
//! What to do is decided in `neptune-agent-core`, which does no I/O. The Docker client is
//! `neptune-edge-engine`, the workers' broker `neptune-edge-broker`. Here are the loop and the I/O.
//! The folders depend on each other in one direction:
//!
//! | folder | uses |
//! |---|---|
//! | `storage`, `report` | `neptune-agent-core` |
//! | `event` | values of the crates that it names |
//! | `devices` | `event` |
//! | `config` | `devices` |
//! | `links` | `config` |
//! | `peers`, `replication` | `event` |
//! | `artifacts` | `storage`, `peers`, `replication` |
//! | `values` | `neptune-agent-core` |
//! | `gateway`, `model_server`, `training` | `artifacts` |
//! | `aggregator` | `training` |
//! | `agent` | all of these |
//! | `sidecar` | nothing |
//! | `commands` | `startup`, which assembles the agent |

pub mod cli;
pub mod commands;
pub mod config;
pub mod error;
pub mod storage;

mod agent;
mod aggregator;
mod artifacts;
mod devices;
mod event;
mod gateway;
mod key_file;
mod links;
mod model_server;
mod peers;
mod probes;
mod replication;
mod report;
mod sidecar;
mod startup;
mod training;
mod values;

#[cfg(test)]
mod fixtures;

pub use crate::{commands::run, error::Error};
