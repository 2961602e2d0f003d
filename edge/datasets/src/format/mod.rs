//! The samples in the bytes of each format. Pure.

pub(crate) mod csv;
pub(crate) mod json;
pub(crate) mod lines;
pub(crate) mod tfrecord;
pub(crate) mod voc;
