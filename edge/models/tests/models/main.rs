//! The store against servers, archives, disks and kills that do their worst.
#![allow(clippy::unwrap_used, clippy::panic)]

mod archives;
mod disk;
mod faults;
mod fetching;
mod hostile_archives;
mod hostile_urls;
mod killed;
mod s3;
mod server;
mod sharing;
mod stage;
mod tls;
