//! Runs the subcommands that do one thing and exit.

mod connect;
mod crds;
mod logs;
mod nodes;
mod record_metrics;
mod restart;
mod rolled_out;
mod rollout;
mod rollout_undo;
mod status;
mod training;
mod training_export;
mod trust;

pub use crds::crds;
pub use logs::logs;
pub use nodes::nodes;
pub use record_metrics::record_metrics;
pub use restart::restart;
pub use rollout::rollout;
pub use status::status;
pub use training::training;
pub use trust::{revoke, trust};
