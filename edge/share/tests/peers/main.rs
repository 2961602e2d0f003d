//! Members of a site on loopback, with a slow origin and with hostile peers.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "tests read clocks, and compute ratios"
)]

mod attacks;
mod failures;
mod hostile;
mod limits;
mod memory;
mod origin;
mod sharing;
mod site;
