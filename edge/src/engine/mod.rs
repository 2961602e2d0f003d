//! The Docker engine: the only folder that uses a Docker client.

pub mod create;
pub mod docker;
pub mod image_pulls;
pub mod inspect;
pub mod mounts;
pub mod observer;
pub mod watch;
