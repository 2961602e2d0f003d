//! The controller of Neptune: its command line, the assembly of `run`, and the other commands.
//!
//! `neptune-cloud-kinds` decides what to do and does no I/O. `neptune-cloud-runtime` reads and writes
//! objects in the API server, and `neptune-cloud-fleet` connects to the nodes.

pub mod cli;
pub mod commands;
pub mod error;
mod fleet_authority;
pub mod run;
