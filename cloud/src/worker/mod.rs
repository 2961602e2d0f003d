//! The image, command, environment, name and model source of workers and model servers. Pure.

pub mod environment;
pub mod frameworks;
pub mod names;
pub mod serving_runtimes;
