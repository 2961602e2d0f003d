//! Limits the messages of one connection by number and size. Pure.

use std::time::{Duration, Instant};

/// Tokens that the bucket gains per second.
const RATE: u32 = 1000;
/// Tokens that may be used at once.
const BURST: u32 = 2000;
/// Payload bytes for which a message takes one more token. The agent parses each byte.
const BYTES_PER_TOKEN: usize = 4096;

/// A token bucket: a message takes one token, and one more for each 4 KiB of payload.
#[derive(Debug)]
pub struct RateLimit {
    tokens: f64,
    updated: Instant,
}

impl RateLimit {
    pub fn new(now: Instant) -> Self {
        Self { tokens: BURST.into(), updated: now }
    }

    /// Takes the tokens of a message with a payload of this size.
    ///
    /// # Errors
    /// How long to wait until there are enough.
    pub fn take(&mut self, payload: usize, now: Instant) -> Result<(), Duration> {
        let extra = u32::try_from(payload / BYTES_PER_TOKEN).unwrap_or(BURST);
        let cost = f64::from(extra.saturating_add(1).min(BURST));
        let added = now.saturating_duration_since(self.updated).as_secs_f64() * f64::from(RATE);
        self.tokens = (self.tokens + added).min(BURST.into());
        self.updated = now;
        if self.tokens >= cost {
            self.tokens -= cost;
            return Ok(());
        }
        Err(Duration::from_secs_f64((cost - self.tokens) / f64::from(RATE)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::panic)]
    use super::*;

    #[test]
    fn rate_is_limited_after_a_burst_and_recovers() {
        let mut now = Instant::now();
        let mut limit = RateLimit::new(now);
        let burst = (0..3 * BURST).filter(|_| limit.take(200, now).is_ok()).count();
        assert_eq!(burst, BURST as usize);
        let Err(wait) = limit.take(200, now) else { panic!("the bucket is empty") };
        assert!(wait <= Duration::from_millis(1), "{wait:?}");
        now += wait + Duration::from_micros(1);
        assert_eq!(limit.take(200, now), Ok(()));
        now += Duration::from_secs(1);
        let second = (0..3 * RATE).filter(|_| limit.take(200, now).is_ok()).count();
        assert!((999..=1001).contains(&second), "{second}");
    }

    #[test]
    fn large_messages_take_more_tokens() {
        let now = Instant::now();
        let mut limit = RateLimit::new(now);
        let large = (0..BURST).filter(|_| limit.take(64 * 1024, now).is_ok()).count();
        assert_eq!(large, BURST as usize / 17);
        assert!(limit.take(usize::MAX, now).is_err(), "it never needs more than the bucket holds");
    }
}
