//! Gateways: workers that run `neptune-gateway`. Their container, the content of their files, and
//! their metrics.

pub mod container;
pub mod directories;
pub mod files;
pub mod merge;
pub mod report_paths;
