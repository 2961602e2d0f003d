//! The decisions of the agent of a node, without I/O: what the node should run, what to do next, and
//! what to report. Facts and the time are parameters, results are values.
//!
//! The compiler and clippy enforce that: `Cargo.toml` has no runtime, client, database or log, and
//! `clippy.toml` refuses clocks and the I/O of the standard library.
//!
//! The folders depend on each other in one direction:
//!
//! | folder | uses |
//! |---|---|
//! | `backoff`, `domain` | nothing |
//! | `flood` | nothing |
//! | `aggregator`, `desired`, `devices`, `image_gc`, `name_contest`, `observer`, `probes`, `report`, `supervision` | `domain` |
//! | `downloads`, `gateway`, `logs` | `domain`, `desired` |
//! | `plan` | `domain`, `desired`, `probes` |
//! | `training` | `domain`, `desired`, `supervision` |
//! | `values` | `domain` |
//! | `volumes` | `domain`, `desired` |
//! | `model_server` | `domain`, `plan` |
//! | `worker` | `domain`, `desired`, `plan`, `gateway`, `values`, `volumes` |

#![expect(clippy::implicit_hasher, reason = "labels are maps of the engine's client")]

pub mod aggregator;
pub mod backoff;
pub mod desired;
pub mod devices;
pub mod domain;
pub mod downloads;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod flood;
pub mod gateway;
#[cfg(test)]
mod golden;
pub mod image_gc;
pub mod logs;
pub mod model_server;
pub mod name_contest;
pub mod observer;
pub mod plan;
pub mod probes;
pub mod report;
pub mod supervision;
pub mod training;
pub mod values;
pub mod volumes;
pub mod worker;
