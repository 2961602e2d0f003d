//! Counts the objects that a cache returns or tests: what its callers cost. Only tests count.

#[cfg(test)]
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The number of visited objects; in the product, nothing.
#[derive(Debug, Clone, Default)]
pub struct Visits(#[cfg(test)] Arc<AtomicUsize>);

impl Visits {
    /// Adds this number of objects that a lookup returned or tested.
    pub fn add(&self, count: usize) {
        #[cfg(test)]
        self.0.fetch_add(count, Relaxed);
        #[cfg(not(test))]
        let _ = (self, count);
    }

    /// The number of objects since the start.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.0.load(Relaxed)
    }
}
