//! The `NodeReportSlices` of services with many nodes: read at the start of leading, written when
//! their rows change, and created again when a person deletes them. What they have is decided by
//! `fleet::rows`.

mod api;
mod deletions;
mod load;
mod write;

pub use self::{
    deletions::follow_deletions,
    load::load_slices,
    write::{flush_slices, write_slices},
};
