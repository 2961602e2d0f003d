//! The aggregator with real files and sockets: kills, uploads over pinned TLS, and poisoned updates.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

mod attacks;
mod clients;
mod disk;
mod downloads;
mod fixtures;
mod kills;
mod poisons;
mod recovery;
mod requests;
mod session;
