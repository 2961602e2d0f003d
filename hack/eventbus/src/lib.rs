//! KubeEdge's router and EventBus for tests, as far as Neptune meets them, with the defects that were seen on a live
//! cluster. Never shipped. README.md says what is emulated, and which test holds which fact.
//!
//! ```text
//! POST /<node>/<namespace>/<path>/<suffix> -> router -> session -> EventBus -> the node's broker
//! POST <the rule's URL>                    <- router <- session <- EventBus <- the node's broker
//! ```

#![deny(missing_docs)]
#![allow(clippy::doc_markdown, reason = "the names of KubeEdge's parts are no code")]

mod bus;
mod cloudcore;
pub mod control;
mod emulator;
mod error;
mod forward;
mod node;
mod object;
mod pace;
mod payload;
mod random;
mod router;
mod rules;
mod session;
mod uplink;
mod uri;
pub mod watch;

pub use bus::BrokerAddress;
pub use emulator::{Emulator, Options};
pub use error::Error;
pub use node::{Traffic, Way};

/// The definitions of Rule and RuleEndpoint, to be applied to a cluster that has no KubeEdge: two documents.
pub const CRDS: &str = concat!(
    include_str!("../crds/ruleendpoints.yaml"),
    "---\n",
    include_str!("../crds/rules.yaml")
);
