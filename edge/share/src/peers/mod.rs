//! Agents of one site fetch content from each other, so that it crosses the site's uplink once.
//!
//! The module does not know workers, resources or messages. The caller passes the members of the
//! site, and the contents that it has and wants; contents are named by their sha256.
//!
//! # Layout
//! - `rendezvous`, `roster`, `limits`, `quarantine`, [`fetch_state`], [`protocol`]: decisions and
//!   formats. Pure.
//! - [`PeerServer`], [`ContentSource`], [`ContentTable`]: what a node offers.
//! - [`PeerFetcher`], [`client`]: what a node fetches.
//!
//! # Guarantees
//! - Only members of the roster can connect, in both directions: TLS 1.3 with pinned keys.
//! - A content is used only if all its bytes have the digest.

pub mod client;
pub mod content;
mod content_table;
mod fetch;
pub mod fetch_state;
pub mod limits;
pub mod protocol;
pub mod quarantine;
pub mod rendezvous;
mod roster;
mod server;

pub use content::{ContentSource, ContentState, FileRange, MAX_DESCRIPTION};
pub use content_table::{ContentEvent, ContentTable};
pub use fetch::{FetchOutcome, FetchRequest, FetchResult, PeerFetcher};
pub use fetch_state::{FetchTimes, OriginReason};
pub use roster::{MAX_ADDRESSES, MAX_MEMBERS, Peer, Roster};
pub use server::{PeerServer, bind};
