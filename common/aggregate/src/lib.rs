//! Aggregation of model updates for federated learning: reads files of weights, checks the updates of
//! workers, decides their weights, and computes the new weights.
//!
//! A round has three steps:
//! 1. [`update::check`] compares each update with its base when it arrives.
//! 2. [`close::close`] decides which updates count and with what weight. Its record is stored.
//! 3. [`aggregate::aggregate`] computes the new weights. It can be repeated at any time.
//!
//! # Guarantees
//! - The new file is a function of the record and the files: the order of arrival, a repetition, and
//!   the number of threads or versions of libraries do not change a bit.
//! - Memory is bounded by the number of updates times 256 KiB, for any size of the model.
//! - No file makes a function panic or allocate more than its limits.

#![deny(missing_docs)]

pub mod aggregate;
pub mod close;
#[cfg(test)]
mod testing;
pub mod update;
pub mod weights;

/// Bytes of a file that are read at a time.
const CHUNK: usize = 256 * 1024;
