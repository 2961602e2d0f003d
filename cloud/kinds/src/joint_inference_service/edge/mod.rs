//! What runs on the edge nodes, besides the gateway.

pub mod dataset;
pub mod server;
#[cfg(test)]
pub mod tests;
pub mod worker;
