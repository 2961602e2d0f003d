//! The image, command, environment, configuration, name, ports, volumes, probes and model source of workers
//! and model servers.

pub mod config;
pub mod container_config;
pub mod environment;
pub mod frameworks;
pub mod names;
pub mod needs;
pub mod node_values;
pub mod ports;
pub mod probes;
pub mod program;
pub mod program_text;
pub mod restart;
pub mod server_inputs;
pub mod serving_runtimes;
pub mod settings;
pub mod transformers;
pub mod volumes;
