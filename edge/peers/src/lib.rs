//! Agents of one site fetch content from each other, so that it crosses the site's uplink once.
//!
//! The crate does not know workers, resources or messages. The caller passes the members of the
//! site and says which contents it has and wants; contents are named by their sha256.
#![deny(missing_docs)]

pub mod fetch_state;
pub mod limits;
pub mod quarantine;
pub mod rendezvous;
mod roster;

pub use roster::{MAX_ADDRESSES, MAX_MEMBERS, Peer, Roster};
