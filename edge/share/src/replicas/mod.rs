//! Copies a directory or a file of one node to others, in blocks of 1 MiB that are named by their sha256.
//!
//! The source hashes its files and offers a manifest and the blocks to its replicas, through the
//! server of [`peers`](crate::peers). A replica compares the manifest with its own blocks, and
//! fetches the missing ones.
//!
//! # Layout
//! - [`Manifest`], `compare`: what a directory has, and what a replica lacks. Pure.
//! - [`DatasetSource`]: the side with the data.
//! - [`Replica`]: the other side.
//!
//! # Guarantees
//! - After a sync, the replica's files have the bytes of the manifest; each block was verified when
//!   it arrived.
//! - A file is replaced by a rename. Only a file that grew is written in place, after its end, and in
//!   whole lines: a sync that is cut leaves no part of a line that is shorter than a block.
//! - A cut costs at most the block in flight, 1 MiB.

mod block_fetch;
mod compare;
mod directory_lock;
mod files;
mod manifest;
mod progress;
mod replica;
mod source;
mod staging;

pub use block_fetch::{ReplicaError, SyncReport};
pub use compare::{BlockOrigin, Deletions, FileChange, SyncPlan, compare};
pub use manifest::{BLOCK, FileBlocks, InvalidManifest, MAX_FILES, Manifest, RelativePath};
pub use progress::SyncProgress;
pub use replica::Replica;
pub use source::{DatasetDescription, DatasetSource, FileEnd, Generation, SourceData};
