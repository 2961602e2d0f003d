//! Probes of workers and model servers: requests to their containers. When they are run, and what
//! the results mean, is decided in `neptune-agent-core`.

mod any_server;
pub mod http;
pub mod worker;
