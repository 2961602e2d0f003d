//! HTTP: the listener, the routes, and who may use them.

mod access;
mod body;
mod content;
mod evaluations;
mod response;
mod router;
pub mod server;
mod shared;
mod state;
mod updates;
mod verdict;
