//! Model servers: the state of an instance, its health probes, and the file with its route.

pub mod http_probe;
pub mod instance;
pub mod route_file;
