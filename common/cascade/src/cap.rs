//! A hard limit of uploads: a token bucket that refills per sample, not per second.
//!
//! # Guarantees
//! In any n consecutive samples, at most r n + b uploads are permitted (r the rate, b the depth),
//! for any interleaving of samples and uploads.

use serde::{Deserialize, Serialize};

use crate::number::{ONE, Share, from_billionths};

/// The default depth: a burst of this many uploads is permitted.
pub const DEPTH: u32 = 50;

/// The token bucket of the cap. Its state can be saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cap {
    rate: Share,
    depth: u32,
    /// The tokens of the bucket, in billionths of an upload.
    tokens: i64,
}

impl Cap {
    /// Returns a full bucket, which `rate` fills per sample up to `depth` uploads.
    pub fn new(rate: Share, depth: u32) -> Self {
        Self { rate, depth, tokens: i64::from(depth) * ONE }
    }

    /// Continues with the saved tokens, at most `depth`.
    #[must_use]
    pub fn resumed(self, rate: Share, depth: u32) -> Self {
        Self { rate, depth, tokens: self.tokens.clamp(0, i64::from(depth) * ONE) }
    }

    /// No burst is permitted until it refills.
    pub const fn empty(&mut self) {
        self.tokens = 0;
    }

    /// Adds the tokens of one sample.
    pub fn sample(&mut self) {
        self.add(self.rate.billionths());
    }

    /// Whether an upload is permitted. It is counted then.
    pub fn take(&mut self) -> bool {
        let is_permitted = self.tokens >= ONE;
        if is_permitted {
            self.tokens -= ONE;
        }
        is_permitted
    }

    /// An upload that was permitted was not made.
    pub fn refund(&mut self) {
        self.add(ONE);
    }

    /// The uploads that are permitted now, 0 to the depth.
    pub fn tokens(&self) -> f64 {
        from_billionths(self.tokens)
    }

    fn add(&mut self, tokens: i64) {
        self.tokens = self.tokens.saturating_add(tokens).min(i64::from(self.depth) * ONE);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn burst_is_the_depth_and_the_rest_follows_the_rate() {
        let mut cap = Cap::new(Share::percent(50), 3);
        let permitted: Vec<bool> = (0..8)
            .map(|_| {
                cap.sample();
                cap.take()
            })
            .collect();
        assert_eq!(permitted, [true, true, true, true, true, false, true, false]);
        cap.refund();
        cap.empty();
        assert!(!cap.take());
        cap.refund();
        assert!(cap.take());
    }

    #[test]
    fn no_depth_permits_nothing_and_no_rate_only_the_burst() {
        let mut none = Cap::new(Share::percent(99), 0);
        none.sample();
        assert!(!none.take());
        let mut burst = Cap::new(Share::ZERO, 2);
        (0..1_000).for_each(|_| burst.sample());
        assert_eq!([burst.take(), burst.take(), burst.take()], [true, true, false]);
    }

    #[test]
    fn damaged_tokens_are_limited() {
        for (tokens, expected) in [(i64::MAX, 2.0), (i64::MIN, 0.0)] {
            let cap = Cap { rate: Share::ONE, depth: u32::MAX, tokens };
            assert!((cap.resumed(Share::ONE, 2).tokens() - expected).abs() < 1e-12);
        }
    }

    proptest! {
        /// `true` is a sample, `false` an attempt to upload. Refunds are left out: they take an
        /// upload back.
        #[test]
        fn no_window_exceeds_the_bound(
            rate in 0.0..=1.0_f64,
            depth in 0_u32..20,
            events in prop::collection::vec(any::<bool>(), 1..400),
        ) {
            let rate = Share::new(rate).unwrap();
            let mut cap = Cap::new(rate, depth);
            let uploads: Vec<(i64, i64)> = events
                .into_iter()
                .map(|is_sample| {
                    if is_sample {
                        cap.sample();
                        (1, 0)
                    } else {
                        (0, i64::from(cap.take()))
                    }
                })
                .collect();
            for start in 0..uploads.len() {
                let (mut samples, mut made) = (0, 0);
                for (sample, upload) in &uploads[start..] {
                    samples += sample;
                    made += upload;
                    prop_assert!(made * ONE <= rate.billionths() * samples + i64::from(depth) * ONE);
                }
            }
        }

        #[test]
        fn saved_tokens_continue_exactly(events in prop::collection::vec(any::<bool>(), 1..100)) {
            let mut cap = Cap::new(Share::percent(33), 5);
            for is_sample in events {
                if is_sample { cap.sample() } else { cap.take(); }
            }
            let text = serde_json::to_string(&cap).unwrap();
            let saved: Cap = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(saved.resumed(Share::percent(33), 5), cap);
        }
    }
}
