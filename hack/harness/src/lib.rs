//! Test fixtures that every crate of the workspace shares: child processes, brokers, a TCP proxy,
//! clients that attack a server, an MQTT client, a model hub, containers, waiting with a deadline, and (feature
//! `cluster`) a Kubernetes API server. Never shipped.
//!
//! A fixture stops what it started when it is dropped, also after a panic. A fixture that fails
//! panics with the reason. What needs whole fleets is in `hack/e2e`.

#![allow(clippy::panic, clippy::unwrap_used)] // a fixture fails by panicking

pub mod attack;
pub mod broker;
#[cfg(feature = "cluster")]
pub mod cluster;
pub mod docker;
pub mod engine;
pub mod environment;
pub mod expansion;
pub mod generated;
pub mod http_stub;
pub mod hub;
pub mod metrics_doc;
pub mod mqtt;
pub mod planted;
pub mod ports;
pub mod process;
pub mod programs;
pub mod proxy;
#[cfg(feature = "tls")]
pub mod tls;
pub mod under_attack;
pub mod wait;
pub mod workspace;

pub use attack::{Attack, Attackers};
pub use broker::Broker;
#[cfg(feature = "cluster")]
pub use cluster::Cluster;
pub use engine::Engine;
pub use mqtt::MqttClient;
pub use ports::free_port;
pub use process::{Process, memory_kib};
pub use proxy::Proxy;
pub use wait::{TIMEOUT, eventually, eventually_async, eventually_some, within};

use std::sync::atomic::{AtomicU32, Ordering};

/// A name that no other test on this machine uses now: short, and a valid Kubernetes label.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
