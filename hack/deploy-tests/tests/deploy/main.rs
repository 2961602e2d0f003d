//! The files in `build/` are valid for the tools that read them, and agree with the code.
#![allow(clippy::unwrap_used, clippy::panic)]

mod acl;
mod can_i;
mod cluster;
mod frameworks;
mod helm;
mod images;
mod manifests;
mod rbac;
mod release;
mod rights;
mod settings;
mod unit;
mod upgrade;
