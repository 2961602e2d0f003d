//! Shares in fixed point, and the conversions between integers and floating point.
//!
//! Sums of shares are kept in billionths as integers: they are exact over any number of samples,
//! and JSON preserves them.

use serde::{Deserialize, Serialize};

/// The number 1 in billionths.
pub(crate) const ONE: i64 = 1_000_000_000;

/// A number from 0 to 1 in steps of a billionth: a ratio, a target, a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Share(u32);

impl Share {
    /// The share 0, none.
    pub const ZERO: Self = Self(0);
    /// The share 1, all.
    pub const ONE: Self = Self(1_000_000_000);

    /// The nearest share, or `None` when `value` is not a number from 0 to 1.
    pub fn new(value: f64) -> Option<Self> {
        (0.0..=1.0).contains(&value).then(|| Self::nearest(value))
    }

    /// The nearest share; below 0 and not a number is 0, above 1 is 1.
    pub(crate) fn nearest(value: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 to 1e9 after clamping; the cast turns NaN into 0"
        )]
        let billionths = (value.clamp(0.0, 1.0) * 1e9).round() as u32;
        Self(billionths)
    }

    /// `percent` / 100, at most 1.
    pub const fn percent(percent: u32) -> Self {
        Self(if percent > 100 { 100 } else { percent } * 10_000_000)
    }

    /// The value, 0 to 1.
    pub fn get(self) -> f64 {
        f64::from(self.0) / 1e9
    }

    /// This share times `factor`, between 0 and 1.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self::nearest(self.get() * factor)
    }

    pub(crate) fn billionths(self) -> i64 {
        i64::from(self.0)
    }
}

impl TryFrom<u32> for Share {
    type Error = String;

    fn try_from(billionths: u32) -> Result<Self, String> {
        if billionths > Self::ONE.0 {
            return Err(format!("{billionths} billionths are more than 1"));
        }
        Ok(Self(billionths))
    }
}

impl From<Share> for u32 {
    fn from(share: Share) -> Self {
        share.0
    }
}

/// Billionths as a number.
#[expect(clippy::cast_precision_loss, reason = "sums of billionths stay below 2^53")]
pub(crate) fn from_billionths(billionths: i64) -> f64 {
    billionths as f64 / 1e9
}

/// A number in billionths. Not a number is 0.
#[expect(clippy::cast_possible_truncation, reason = "the cast saturates, and turns NaN into 0")]
pub(crate) fn to_billionths(value: f64) -> i64 {
    (value * 1e9).round() as i64
}

/// A count as a number.
#[expect(clippy::cast_precision_loss, reason = "counts of samples stay far below 2^53")]
pub(crate) fn count(count: u64) -> f64 {
    count as f64
}

/// A length as a number.
pub(crate) fn length(length: usize) -> f64 {
    count(length as u64)
}

/// The bin of a confidence among `bins` bins of equal width over 0..=1. What lies outside belongs
/// to the first or last one.
pub(crate) fn bin(confidence: f64, bins: usize) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to the number of bins after clamping; the cast turns NaN into 0"
    )]
    let bin = (confidence.clamp(0.0, 1.0) * length(bins)) as usize;
    bin.min(bins.saturating_sub(1))
}

/// Number of bins of [`fine_bin`].
pub(crate) const FINE_BINS: usize = 256;

/// The bin of a confidence c among 256 bins of equal width of 1 - cbrt(1 - c): 0.012 wide at 0, and
/// finer the closer to 1, where the confidences of most models are.
pub(crate) fn fine_bin(confidence: f64) -> usize {
    bin(1.0 - (1.0 - confidence.clamp(0.0, 1.0)).cbrt(), FINE_BINS)
}

/// The confidence at a place among the fine bins, 0 to 256.
pub(crate) fn fine_confidence(place: f64) -> f64 {
    1.0 - (1.0 - place / length(FINE_BINS)).clamp(0.0, 1.0).powi(3)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]
    use super::*;

    #[test]
    fn share_is_a_number_from_0_to_1() {
        assert_eq!(Share::new(0.2).unwrap().get(), 0.2);
        assert_eq!(Share::percent(2).get(), 0.02);
        assert_eq!(Share::percent(2).times(100.0), Share::ONE);
        for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(Share::new(bad), None, "{bad}");
        }
    }

    #[test]
    fn saved_share_above_1_is_refused() {
        assert_eq!(serde_json::from_str::<Share>("200000000").unwrap().get(), 0.2);
        assert!(serde_json::from_str::<Share>("1000000001").is_err());
    }

    #[test]
    fn fine_bins_are_finer_close_to_1_and_have_their_confidence() {
        assert_eq!([0.0, -1.0, f64::NAN, 1.0, 2.0].map(fine_bin), [0, 0, 0, 255, 255]);
        assert!(fine_bin(0.99) < fine_bin(0.9999) && fine_bin(0.9999) < fine_bin(0.999_999));
        for place in [0.5, 100.5, 254.5, 255.5] {
            assert_eq!(length(fine_bin(fine_confidence(place))), place - 0.5);
        }
    }

    #[test]
    fn any_confidence_has_a_bin() {
        for (confidence, expected) in
            [(0.0, 0), (0.499, 1), (0.5, 2), (1.0, 3), (-5.0, 0), (f64::INFINITY, 3), (f64::NAN, 0)]
        {
            assert_eq!(bin(confidence, 4), expected, "{confidence}");
        }
    }
}
