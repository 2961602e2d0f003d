//! The one-shot subcommands.

mod crds;
mod status;
mod trust;

pub use crds::crds;
pub use status::status;
pub use trust::trust;
