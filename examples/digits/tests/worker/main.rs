//! The worker program as an agent runs it: the built binary with its environment, a real broker,
//! and a cloud worker in this process.
#![allow(clippy::unwrap_used, clippy::panic)]

mod cloud;
mod edge;
mod program;
mod reports;
