//! What a worker and a model server get: image, command, environment, name, and where their model is. Pure.

pub mod environment;
pub mod frameworks;
pub mod names;
pub mod serving_runtimes;
