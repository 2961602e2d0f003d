//! Questions with known answers, a client that asks them, and a stand-in for a large language model
//! that knows most of the answers. The cascade itself needs none of this: see `service.yaml`.
#![warn(missing_docs)]

pub mod client;
pub mod oracle;
pub mod questions;
