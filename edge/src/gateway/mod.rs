//! Gateways: workers that run `neptune-gateway`. Their container, their files, and their metrics.

mod capture_dir;
pub mod container;
pub mod files;
mod merge;
pub mod metrics;
pub mod ownership;
pub mod report_paths;
pub mod secrets;
pub mod writer;
