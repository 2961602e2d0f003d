//! The Docker engine: the only folder that uses a Docker client.

mod containers;
pub mod create;
pub mod docker;
pub mod former_nodes;
pub mod image_collector;
mod image_gc;
pub mod image_pulls;
mod images;
pub mod inspect;
pub mod networks;
pub mod registry_config;
pub mod training;
pub mod watch;
