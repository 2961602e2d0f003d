//! The store against servers, archives, disks and kills that do their worst.
#![allow(clippy::unwrap_used, clippy::panic)]

mod archives;
mod fetching;
mod server;
mod stage;
