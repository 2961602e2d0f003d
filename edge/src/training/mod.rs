//! Training tasks: what a task needs, its run, its output, and its transfers.

pub mod activity;
pub mod aggregator_client;
pub mod boot;
mod boot_time;
pub mod job;
pub mod metrics;
pub mod output;
pub mod prepare;
mod readable;
pub mod run;
pub mod upload;
pub mod volumes;
