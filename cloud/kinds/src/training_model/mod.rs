//! Runs of rounds in which nodes train, an aggregator averages, and the result becomes a Model.

pub mod absence;
pub mod aggregator;
mod conditions;
#[cfg(test)]
mod crd_consistency;
pub mod evaluation_data;
mod events;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod frozen;
pub mod history;
#[cfg(test)]
mod leaves;
mod numbers;
pub mod observation;
pub mod on_node;
pub mod outcome;
pub mod output;
mod plan;
mod program;
pub mod references;
mod repeat;
pub mod request;
pub mod resolved;
pub mod rows;
mod server_container;
pub mod session;
mod settings;
pub mod status;
mod steps;
pub mod validate;
mod workers;
pub mod workload;

pub use self::evaluation_data::data_on;
pub use self::history::MAX_ROUNDS;
pub use self::status::{RESTART_RUN, STOP_RUN};
