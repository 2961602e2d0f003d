//! How many samples of a gateway were answered by each tier above it.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// Tiers above a gateway that are counted apart. What is above the last one counts as the last one.
pub const MAX_TIERS: usize = 8;

/// Samples that each tier above a gateway answered, the next tier first. In JSON it is a list
/// without the zeros at its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierCounts([u64; MAX_TIERS]);

impl TierCounts {
    /// Adds one sample that the tier at this distance answered; 0 is the next tier.
    pub fn add(&mut self, distance: usize) {
        let count = &mut self.0[distance.min(MAX_TIERS - 1)];
        *count = count.saturating_add(1);
    }

    /// The counts, without the zeros at their end.
    pub fn counts(&self) -> &[u64] {
        let used = self.0.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        &self.0[..used]
    }

    /// Returns whether no tier answered a sample.
    pub fn is_zero(&self) -> bool {
        self.counts().is_empty()
    }

    /// The sum over the tiers.
    pub fn sum(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The saturating sum of each tier.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.with_each(other, u64::saturating_add)
    }

    pub(crate) fn with_each(self, other: Self, combine: fn(u64, u64) -> u64) -> Self {
        Self(std::array::from_fn(|tier| combine(self.0[tier], other.0[tier])))
    }
}

impl FromIterator<u64> for TierCounts {
    fn from_iter<T: IntoIterator<Item = u64>>(counts: T) -> Self {
        let mut tiers = Self::default();
        for (tier, count) in counts.into_iter().enumerate() {
            let sum = &mut tiers.0[tier.min(MAX_TIERS - 1)];
            *sum = sum.saturating_add(count);
        }
        tiers
    }
}

impl Serialize for TierCounts {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.counts().serialize(to)
    }
}

/// Anything but a list of whole numbers counts as none, because the counters beside it count.
impl<'de> Deserialize<'de> for TierCounts {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(input)?;
        let counts: Option<Vec<u64>> = serde_json::from_value(value).ok();
        Ok(counts.unwrap_or_default().into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn counts_round_trip_without_zeros_at_the_end() {
        let mut tiers = TierCounts::default();
        assert_eq!(serde_json::to_value(tiers).unwrap(), json!([]));
        tiers.add(1);
        assert_eq!(serde_json::to_value(tiers).unwrap(), json!([0, 1]));
        let read: TierCounts = serde_json::from_value(json!([0, 1, 0])).unwrap();
        assert_eq!((read, read.sum()), (tiers, 1));
        for invalid in [json!(7), json!([-1]), json!(["many"]), json!(null)] {
            let read: TierCounts = serde_json::from_value(invalid).unwrap();
            assert!(read.is_zero());
        }
    }

    #[test]
    fn tiers_beyond_the_last_count_as_the_last() {
        let mut tiers = TierCounts::default();
        tiers.add(MAX_TIERS + 5);
        let read: TierCounts = vec![1; MAX_TIERS + 2].into_iter().collect();
        assert_eq!(tiers.counts().len(), MAX_TIERS);
        assert_eq!(read.counts()[MAX_TIERS - 1], 3);
        assert_eq!(tiers.plus(read).sum(), 11);
    }
}
