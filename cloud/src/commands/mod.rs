//! Runs the subcommands that do one thing and exit.

mod broker_files;
mod client_key;
mod connect;
mod crds;
mod enroll;
mod join_server;
mod logs;
mod nodes;
mod observer;
mod record_metrics;
mod resolve;
mod restart;
mod rolled_out;
mod rollout;
mod rollout_undo;
mod status;
mod training;
mod training_export;
mod trust;

pub use broker_files::broker_files;
pub use client_key::client_key;
pub use crds::crds;
pub use enroll::enroll;
pub use join_server::join_server;
pub use logs::logs;
pub use nodes::nodes;
pub use observer::observer_certificate;
pub use record_metrics::record_metrics;
pub use resolve::resolve;
pub use restart::restart;
pub use rollout::rollout;
pub use status::status;
pub use training::training;
pub use trust::{revoke, trust};
