//! Models and datasets as an object names them: the location of an artifact, the format of a
//! dataset and its options. The stores that read them and the pure code of the agent share these
//! values.

#![deny(missing_docs)]

mod error;
mod format;
mod location;
mod options;

pub use error::{FormatError, LocationError};
pub use format::DatasetFormat;
pub use location::{ArtifactLocation, redacted};
pub use options::{CsvColumn, FormatOptions};
