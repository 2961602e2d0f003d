//! Delays that can be repeated: a seeded generator (`SplitMix64`).

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

/// A seed that differs from run to run.
pub fn seed() -> u64 {
    RandomState::new().hash_one(()) >> 32
}

/// `SplitMix64` of Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A delay of up to `longest`, with a resolution of a millisecond.
    pub fn up_to(&mut self, longest: Duration) -> Duration {
        let millis = u64::try_from(longest.as_millis()).expect("a delay of seconds");
        Duration::from_millis(self.next() % (millis + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_the_same_delays_within_the_limit() {
        let delays = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.up_to(Duration::from_millis(50))).collect::<Vec<_>>()
        };
        assert_eq!(delays(7), delays(7));
        assert_ne!(delays(7), delays(8));
        assert!(delays(7).iter().all(|delay| *delay <= Duration::from_millis(50)));
        assert!(delays(7).iter().any(|delay| *delay > Duration::from_millis(40)));
    }
}
