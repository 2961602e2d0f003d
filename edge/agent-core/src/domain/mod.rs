//! Value types without I/O that the other folders exchange. Depends on no other folder.

pub mod aggregator;
pub mod allowed_dirs;
pub mod artifact;
pub mod broker_login;
pub mod container;
pub mod device;
pub mod engine_observation;
pub mod gateway_files;
pub mod health;
pub mod identity;
pub mod listen_address;
pub mod mounts;
pub mod node_context;
pub mod observed_container;
pub mod outcome;
pub mod peer_settings;
pub mod problem;
pub mod pulled_image;
pub mod registry_config;
pub mod rollout;
pub mod served_version;
pub mod server_part;
pub mod step;
pub mod training;
pub mod volume;
pub mod worker_count;
