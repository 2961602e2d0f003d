//! Counting the samples of datasets on a node, and keeping up with them as they grow.
//!
//! [`Counter`] counts bytes, pure; [`read`] feeds it; [`DatasetSpec::count`] counts a file or directory once, from
//! what was known; [`watch()`] does so whenever it changes. Which datasets there are, and where reports go, is the
//! agent's; downloading remote ones too.

mod annotations;
mod counter;
mod dataset;
mod directory;
mod error;
mod eyes;
mod file;
mod format;
mod options;
mod policy;
pub mod read;
mod tally;
mod walk;
mod watch;

pub use counter::Counter;
pub use dataset::{DatasetSpec, State};
pub use error::{Class, Error};
pub use eyes::Watching;
pub use format::Format;
pub use options::{Column, Options};
pub use policy::Policy;
pub use read::Meter;
pub use tally::{Labels, MAX_LABELS, Tally};
pub use watch::{Pace, Report, watch};
