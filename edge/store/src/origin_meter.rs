//! Counts and limits what servers send. I/O: reads the clock.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use neptune_transfer::rate::RateBucket;
use parking_lot::Mutex;

/// What downloads may receive at once after a pause, as time at their rate.
const BURST: Duration = Duration::from_secs(1);

/// The bytes that servers sent to this process, and the rate that all downloads share.
pub struct OriginMeter {
    received: AtomicU64,
    /// `None` without a limit.
    rate: Option<Mutex<RateBucket>>,
}

#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
impl OriginMeter {
    pub fn new(bytes_per_second: Option<u64>) -> Self {
        let bucket = |rate| Mutex::new(RateBucket::new(rate, BURST, Instant::now()));
        Self { received: AtomicU64::new(0), rate: bytes_per_second.map(bucket) }
    }

    /// Counts received bytes. Returns how long to wait before more may be received.
    pub fn count(&self, bytes: u64) -> Duration {
        self.received.fetch_add(bytes, Ordering::Relaxed);
        let Some(rate) = &self.rate else { return Duration::ZERO };
        rate.lock().take(bytes, Instant::now())
    }

    /// The bytes that servers sent.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}
