//! The aggregator of a `TrainingModel`: it owns the rounds of federated training. It knows nothing of
//! Kubernetes, MQTT or containers; its messages are those of [`neptune_wire::aggregator`].
//!
//! [`run`] decides, [`store`] remembers, [`work`], [`judge`] and [`session`] compute, [`http`] serves.
//!
//! # Guarantees
//! - A stop at any moment changes nothing in the weights: each state is stored before it is acted on,
//!   and what is repeated after a restart has the same result.
//! - A worker's update counts at most once per round.
//! - A content has the digest of its name.

#![deny(missing_docs)]

pub mod aggregator;
pub mod cli;
mod clock;
pub mod command;
pub mod error;
pub mod fetch;
pub mod http;
pub mod judge;
pub mod metrics;
pub mod run;
pub mod session;
pub mod session_files;
pub mod store;
pub mod task;
pub mod work;
