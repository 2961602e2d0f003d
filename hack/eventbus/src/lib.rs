//! An emulator of KubeEdge's router and EventBus for tests, as far as Neptune uses them, with the faults that were
//! measured on a live cluster. Never shipped. README.md lists what is emulated, and the test of each property.
//!
//! ```text
//! POST /<node>/<namespace>/<path>/<suffix> -> router -> session -> EventBus -> the node's broker
//! POST <the rule's URL>                    <- router <- session <- EventBus <- the node's broker
//! ```

#![deny(missing_docs)]
#![allow(clippy::doc_markdown, reason = "the names of KubeEdge components are not code")]

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
pub use node::{DirectionCounters, Traffic};

/// The CRDs of Rule and RuleEndpoint as two YAML documents, for a cluster without KubeEdge.
pub const CRDS: &str = concat!(
    include_str!("../crds/ruleendpoints.yaml"),
    "---\n",
    include_str!("../crds/rules.yaml")
);
