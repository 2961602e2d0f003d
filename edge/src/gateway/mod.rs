//! Gateways: workers that run `neptune-gateway`. Their container and their files.

pub mod container;
pub mod files;
mod secrets;
pub mod writer;
