//! Contents that are named by their sha256, and their resumable transfer over HTTP.
//!
//! The address of an upload contains the digest of the content, so both sides know it and creating
//! an upload needs no request:
//!
//! ```text
//! HEAD  URL -> 204  Upload-Offset: 8388608  Upload-Complete: ?0
//! PATCH URL         Upload-Offset: 8388608  Upload-Complete: ?0  Upload-Length: 20971520
//!                   Content-Digest: sha-256=:...:   Content-Type: application/partial-upload
//!           -> 204  Upload-Offset: 16777216
//!           -> 409  Upload-Offset: the expected one
//!           -> 400  the block does not have its digest
//!           -> 413, 507  too large, the disk is full
//! PATCH the last block, Upload-Complete: ?1
//!           -> what the receiver decides about the whole content
//! ```
//!
//! Header names and meanings are those of `draft-ietf-httpbis-resumable-upload`, and of RFC 9530.
//!
//! # Guarantees
//! - A connection that is cut costs at most one block, 8 MiB.
//! - A content that is complete has its digest; it is accepted once, in any order of repetitions.

#![deny(missing_docs)]

mod body;
pub mod client;
pub mod download;
pub mod headers;
pub mod server;
pub mod uploads;

pub use body::text;
pub use neptune_transfer::{Digest, InvalidDigest};
