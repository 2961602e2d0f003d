//! What `build/` ships is accepted where it is meant to be used, and says the same as the code.
#![allow(clippy::unwrap_used, clippy::panic)]

mod acl;
mod cluster;
mod frameworks;
mod helm;
mod images;
mod manifests;
mod rbac;
mod settings;
mod unit;
