//! Gateways: workers that run `neptune-gateway`. Their files on the node, and their metrics.

mod capture_dir;
pub mod metrics;
pub mod ownership;
pub mod secrets;
pub mod writer;
