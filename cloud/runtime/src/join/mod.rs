//! How nodes join: the authority of the fleet in its Secret, the server that nodes ask for their
//! certificates, and what the active controller keeps of it. What is decided is in
//! `neptune_cloud_kinds::join`.

mod authority;
mod broker_secret;
mod maintain;
mod rates;
mod request;
mod server;
pub mod tokens;

pub use self::{
    authority::{await_authority, now_seconds, read_authority},
    broker_secret::BROKER_SECRET,
    maintain::{JoinSettings, maintain_joins},
    server::{JoinServer, JoinServerSettings},
};
