//! Repeatable random numbers for tests.

/// `SplitMix64` by Steele, Lea and Flood, 2014.
pub(crate) struct Uniform(u64);

impl Uniform {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number in [0, 1), uniform in steps of 2^-32.
    pub(crate) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let high = u32::try_from((mixed ^ (mixed >> 31)) >> 32).expect("the upper half of 64 bits");
        f64::from(high) / (f64::from(u32::MAX) + 1.0)
    }
}
