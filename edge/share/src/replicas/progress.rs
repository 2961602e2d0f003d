//! What a replica does, readable while it syncs.

use std::sync::atomic::{AtomicU64, Ordering};

/// The progress of a replica. The counters are totals since it was opened.
#[derive(Debug, Default)]
pub struct SyncProgress {
    /// Bytes that the running or last sync has still to fetch.
    bytes_behind: AtomicU64,
    reused: AtomicU64,
    sent: AtomicU64,
    resent: AtomicU64,
}

impl SyncProgress {
    /// Bytes that the running or last sync has still to fetch.
    pub fn bytes_behind(&self) -> u64 {
        self.bytes_behind.load(Ordering::Relaxed)
    }

    /// Blocks that the replica had elsewhere.
    pub fn reused(&self) -> u64 {
        self.reused.load(Ordering::Relaxed)
    }

    /// Blocks that were fetched.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Blocks whose fetch failed, so that the source sends a part of them again.
    pub fn resent(&self) -> u64 {
        self.resent.load(Ordering::Relaxed)
    }

    pub(crate) fn set_behind(&self, bytes: u64) {
        self.bytes_behind.store(bytes, Ordering::Relaxed);
    }

    /// A block is here.
    pub(crate) fn arrived(&self, bytes: u64) {
        // One task writes it.
        self.set_behind(self.bytes_behind().saturating_sub(bytes));
    }

    pub(crate) fn count_reused(&self) {
        self.reused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_resent(&self) {
        self.resent.fetch_add(1, Ordering::Relaxed);
    }
}
