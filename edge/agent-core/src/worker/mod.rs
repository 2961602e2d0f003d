//! Workers of joint inference services: their containers, inputs, messages and counters.

pub mod completion;
pub mod container;
#[cfg(test)]
mod count_model;
pub mod counts;
pub mod gateway_reports;
pub mod health;
pub mod message;
pub mod model_reports;
pub mod plan;
pub mod probed;
pub mod reload;
pub mod start_time;
