//! Counts the samples of datasets in a node's file system, and keeps the counts current as the
//! data grows.
//!
//! - [`SampleCounter`] counts bytes. It does no I/O.
//! - [`count_reader`] feeds a counter from any reader.
//! - [`LocalDataset::count`] counts a file or a directory once, and resumes from an earlier
//!   [`CountState`].
//! - [`watch_dataset`] counts again whenever the dataset changes, and publishes each result.
//!
//! The caller decides which datasets to count, downloads remote ones, and publishes the results.

#![deny(missing_docs)]

mod change_watcher;
mod counted_file;
mod counter;
mod counts;
mod directory;
mod directory_index;
mod error;
mod format;
mod local_dataset;
mod path_policy;
mod read;
mod walk;
mod watch;

pub use change_watcher::ChangeDetection;
pub use counter::SampleCounter;
pub use counts::{LabelCounts, MAX_LABELS, SampleCounts};
pub use error::{DatasetError, DatasetErrorClass};
pub use local_dataset::{CountState, LocalDataset};
pub use path_policy::PathPolicy;
pub use read::{ReadMeter, count_reader};
pub use watch::{CountReport, WatchIntervals, watch_dataset};
