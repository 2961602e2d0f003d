//! Model servers: the state of an instance, and the file with its route.

pub mod instance;
pub mod route_file;
