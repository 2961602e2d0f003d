//! Counting the samples of datasets on a node, and keeping up with them as they grow.
pub mod counter;
pub mod error;
pub mod format;
pub mod options;
pub mod tally;
