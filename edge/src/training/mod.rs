//! Training tasks: the state machine of a task, its container, its output, and its transfers.

pub mod activity;
pub mod aggregator_client;
pub mod boot;
mod boot_time;
pub mod container;
pub mod metrics;
pub mod output;
pub mod prepare;
mod readable;
pub mod result;
pub mod run;
pub mod task;
pub mod upload;
