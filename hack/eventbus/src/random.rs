//! Repeatable random numbers from a seed.

use std::ops::RangeInclusive;
use std::time::Duration;

/// SplitMix64: short, and good enough for delays and losses.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The same seed and purpose give the same numbers.
    pub fn new(seed: u64, purpose: &str) -> Self {
        // FNV-1a: the numbers of one node do not depend on the number of nodes.
        let hash = purpose.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(seed ^ hash)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `most`, inclusive.
    pub fn up_to(&mut self, most: usize) -> usize {
        let values = (most as u64).saturating_add(1);
        usize::try_from(self.next() % values).expect("not above `most`, which is a usize")
    }

    /// A duration in the range, in steps of a microsecond.
    pub fn time(&mut self, range: RangeInclusive<Duration>) -> Duration {
        let width = range.end().saturating_sub(*range.start()).as_micros();
        let steps = self.next() % u64::try_from(width).unwrap_or(u64::MAX).saturating_add(1).max(1);
        *range.start() + Duration::from_micros(steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_and_purpose_give_the_same_numbers() {
        let draw = |seed, purpose| {
            let mut random = Random::new(seed, purpose);
            (0..20).map(|_| random.up_to(999)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, "edge0"), draw(1, "edge0"));
        assert_ne!(draw(1, "edge0"), draw(2, "edge0"));
        assert_ne!(draw(1, "edge0"), draw(1, "edge1"));
    }

    #[test]
    fn numbers_stay_in_their_range_and_reach_both_ends() {
        let mut random = Random::new(7, "");
        let drawn: Vec<_> = (0..200).map(|_| random.up_to(3)).collect();
        for n in 0..=3 {
            assert!(drawn.contains(&n), "{n}");
        }
        assert!(drawn.iter().all(|n| *n <= 3));
        let (low, high) = (Duration::from_millis(3), Duration::from_millis(9));
        assert!((0..200).all(|_| (low..=high).contains(&random.time(low..=high))));
        assert_eq!(random.time(low..=low), low);
    }
}
