//! What nodes of one site share: [`peers`] fetch content from each other, and [`replicas`] are copies
//! of directories in blocks, which are contents of peers.

#![deny(missing_docs)]

pub mod peers;
pub mod replicas;
