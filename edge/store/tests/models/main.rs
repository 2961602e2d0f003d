//! Tests of the store with faulty servers, hostile archives, full disks and killed processes.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod archives;
mod disk;
mod faults;
mod fetching;
mod fixture;
mod hostile_archives;
mod hostile_urls;
mod hub;
mod killed;
mod mirrors;
mod namespaces;
mod oci;
mod proxies;
mod rate;
mod s3;
mod server;
mod sharing;
mod tls;
