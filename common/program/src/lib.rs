//! What all programs of Neptune do in the same way.
//!
//! | module | task | feature |
//! |---|---|---|
//! | `causes` | the causes of an error, and the text of a failed call | |
//! | `duration` | durations as a spec has them; pure | `duration` |
//! | `listen` | the one accept loop of all servers | `listen` |
//! | `metrics` | the formats of metrics, and those of the process | `listen` |
//! | `pages` | a server of probes, metrics and states | `pages` |
//! | `random` | random numbers for delays and names | |
//! | `start` | the threads, the logs, the TLS library, and the exit code | `start` |
//! | `logs` | the options and the format of the log | `start` |
//! | `signals` | the signals that stop a program | `start` |
//! | `served_key` | the certificate of a TLS server, replaced while it serves | `tls` |
//! | `broker` | the options of a connection to an MQTT broker | `broker` |
#![deny(missing_docs)]

#[cfg(feature = "broker")]
mod broker;
mod causes;
#[cfg(feature = "duration")]
pub mod duration;
#[cfg(feature = "listen")]
pub mod listen;
#[cfg(feature = "start")]
pub mod logs;
#[cfg(feature = "listen")]
pub mod metrics;
#[cfg(feature = "pages")]
pub mod pages;
pub mod random;
#[cfg(feature = "tls")]
pub mod served_key;
#[cfg(feature = "start")]
mod signals;
#[cfg(feature = "start")]
mod start;

#[cfg(feature = "broker")]
pub use broker::BrokerFlags;
pub use causes::{causes, chain, root_cause};
#[cfg(feature = "start")]
pub use signals::stop_signal;
#[cfg(feature = "start")]
pub use start::{Program, Threads};
