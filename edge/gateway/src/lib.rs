//! The gateway of joint inference: answers inference requests with the model server of its node,
//! and sends hard samples to the cloud.
//!
//! The folders depend on each other in one direction:
//!
//! | folder | uses |
//! |---|---|
//! | `decision`, `metrics` | nothing |
//! | `counter_file` | `decision` |
//! | `clients` | `config`, `counter_file`, `decision` |
//! | `protocol` | `config` |
//! | `server` | `config`, `protocol` |
//! | `upstream` | `config`, `protocol`, `server` |
//! | `capture` | `config`, `decision`, `metrics`, `protocol`, `server` |
//! | `gateway` | all of these |
//! | `handler`, `probe`, `report`, `reload` | `gateway` |
//! | `proxy` | `server`, `upstream` |
//! | `run`, `calibrate` | all of these |

#![deny(missing_docs)]

pub mod calibrate;
mod capture;
pub mod cli;
mod clients;
pub mod clock;
pub mod command;
mod counter_file;
pub mod decision;
pub mod error;
pub mod gateway;
mod handler;
pub mod metrics;
mod probe;
mod problems;
pub mod protocol;
pub mod proxy;
mod reload;
mod report;
pub mod run;
mod server;
mod state_file;
mod upstream;

pub use neptune_gateway_config as config;

pub use crate::error::Error;
