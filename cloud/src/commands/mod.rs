//! The commands that end by themselves.

mod crds;
mod status;

pub use crds::crds;
pub use status::status;
