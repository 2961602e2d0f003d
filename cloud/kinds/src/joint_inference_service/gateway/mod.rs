//! The gateway of a service.

pub mod address;
pub mod capture;
pub mod config;
pub mod exposed;
pub mod fields;
pub mod hard_example;
pub mod open;
pub mod ports;
pub mod resolve;
pub mod task;
#[cfg(test)]
pub mod tests;
