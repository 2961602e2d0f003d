//! The built agent with a real container engine (Docker, or the engine of `DOCKER_HOST`); the test
//! is the cloud and the workers. Every test uses names of its own; everything is removed when it is
//! dropped, also after a panic.

#![allow(clippy::unwrap_used, clippy::panic, dead_code, unused_imports)]

mod agent;
mod cloud;
mod engine_proxy;
mod file_server;
mod load;
pub mod raw_mqtt;
mod registry;
mod secrets;
mod small_disk;
mod worker;

pub use agent::Agent;
pub use cloud::{Cloud, add_typed_content};
pub use engine_proxy::EngineProxy;
pub use file_server::FileServer;
pub use load::{Load, LoadResult};
pub use neptune_harness::{
    Broker, MqttClient,
    docker::{self, BusyboxImage, IDLE, UnmanagedContainer, docker},
    eventually, free_port,
    planted::{files_with, planted_secret, topics_without},
    unique, within,
};
pub use registry::Registry;
pub use secrets::{Keys, add_secret, exec, key_of, requested_log, seal_key};
pub use small_disk::SmallDisk;
pub use worker::{MODEL, SERVICE, WorkerClient, local_model, run_service, runs, service};

/// Returns user and password of `mqtt://user:password@host:port`.
pub fn login_of(url: &str) -> (String, String) {
    let (login, _) = url.strip_prefix("mqtt://").unwrap().split_once('@').unwrap();
    let (user, password) = login.split_once(':').unwrap();
    (user.to_owned(), password.to_owned())
}
