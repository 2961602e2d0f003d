//! Partial downloads and complete artifacts on disk.

pub mod content_store;
pub mod partial;
pub mod partial_record;
mod writer;
