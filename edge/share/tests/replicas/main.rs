//! A source and a replica on loopback, with connections that are cut.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "tests read clocks, and compute ratios"
)]

mod appended;
mod changed;
mod fixture;
mod idle;
mod races;
