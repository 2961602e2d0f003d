//! The agent of a node: runs the workers and model servers that the cloud wants, and reports them.

pub mod cli;
pub mod config;
pub mod error;

mod agent;
mod artifacts;
mod backoff;
mod broker;
mod commands;
mod desired;
mod domain;
mod engine;
mod event;
mod model_server;
mod plan;
mod random;
mod report;
mod startup;
mod storage;
mod worker;

#[cfg(test)]
mod fixtures;

pub use crate::{commands::run, error::Error};
