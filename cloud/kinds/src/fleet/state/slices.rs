//! The slices of the objects with many nodes: which replica reads them, and from how many nodes on.

use super::{FleetState, Rows};
use crate::fleet::rows::MAX_IN_STATUS;

/// What holds for the slices of every object.
#[derive(Debug, Clone, Copy)]
pub(super) struct SliceSettings {
    /// The number of nodes above which the rows of an object are in slices.
    threshold: usize,
    /// Whether the stored slices were read. A replica that does not lead reads none.
    are_loaded: bool,
}

impl Default for SliceSettings {
    fn default() -> Self {
        Self { threshold: MAX_IN_STATUS, are_loaded: false }
    }
}

impl SliceSettings {
    /// The rows of an object that was not known.
    pub(super) fn new_rows(self) -> Rows {
        let mut rows = if self.are_loaded { Rows::default() } else { Rows::before_loading() };
        rows.set_threshold(self.threshold);
        rows
    }
}

impl FleetState {
    /// Sets the number of nodes above which the rows of an object are in slices. It applies to objects
    /// that are not known yet.
    pub fn set_slice_threshold(&mut self, threshold: usize) {
        self.slices.threshold = threshold;
    }

    /// All stored slices were read.
    pub fn finish_loading_slices(&mut self) {
        self.slices.are_loaded = true;
        self.rows.values_mut().for_each(Rows::finish_loading);
    }

    /// The objects whose rows are in slices, with their uids.
    pub fn sliced(&mut self) -> impl Iterator<Item = (&String, &mut Rows)> {
        self.rows.iter_mut().filter(|(_, rows)| rows.is_sliced())
    }

    /// The counters of the object with this uid, if something is known of it.
    pub fn known_rows(&mut self, uid: &str) -> Option<&mut Rows> {
        self.rows.get_mut(uid)
    }
}
