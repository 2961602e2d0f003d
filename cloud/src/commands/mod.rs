//! The one-shot subcommands.

mod crds;
mod status;

pub use crds::crds;
pub use status::status;
