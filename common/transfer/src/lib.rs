//! Files that programs write, receive and keep.
//!
//! | module | content |
//! |---|---|
//! | [`durable`] | gives a finished file or directory its name: the only place of the product |
//! | [`json`] | records in JSON files |
//! | [`partial`] | a file that grows with what is received, and its digest |
//! | [`rate`] | the rate that transfers share; pure |
//! | [`range`] | the ranges of HTTP, for clients and servers; pure |
//! | [`Digest`] | the sha256 of a content |

#![deny(missing_docs)]

mod digest;
pub mod durable;
pub mod json;
pub mod partial;
pub mod range;
pub mod rate;

pub use digest::{Digest, InvalidDigest};
