//! The clock and random numbers. The only file that reads them; decisions get both as values.

use std::time::Instant;

/// Returns the monotonic time, for deadlines and durations.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the wall time, for records and reports.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub fn timestamp() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// A uniform number in [0, 1). Not cryptographically secure.
pub fn random() -> f64 {
    let bits = neptune_program::random::random() >> 11;
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit exactly")]
    let share = bits as f64 / (1_u64 << 53) as f64;
    share
}
