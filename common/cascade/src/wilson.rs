//! Wilson's score interval of a proportion (E. B. Wilson 1927).
//!
//! ```text
//! (p + z²/2n ± z sqrt(p(1 - p)/n + z²/4n²)) / (1 + z²/n),  p = k/n
//! ```
//!
//! Unlike p ± z sqrt(p(1 - p)/n), it is right for few observations and for p near 0 and 1.

use serde::Serialize;

/// z of a two-sided interval of 95 %.
pub const Z_95: f64 = 1.959_964;

/// Bounds of a share, each 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// The lower bound of the share.
    pub low: f64,
    /// The upper bound of the share.
    pub high: f64,
}

/// The interval of a share of which `hits` of `trials` were observed. Without trials, or with
/// numbers that are no counts, it is 0 to 1: nothing is known.
pub fn interval(hits: f64, trials: f64, z: f64) -> Interval {
    let is_count = trials > 0.0 && trials.is_finite() && (0.0..=trials).contains(&hits);
    if !is_count || !z.is_finite() {
        return Interval { low: 0.0, high: 1.0 };
    }
    let share = hits / trials;
    let squared = z * z / trials;
    let middle = share + squared / 2.0;
    let half = z.abs() * (share * (1.0 - share) / trials + squared / (4.0 * trials)).sqrt();
    let scale = 1.0 + squared;
    Interval {
        low: ((middle - half) / scale).clamp(0.0, 1.0),
        high: ((middle + half) / scale).clamp(0.0, 1.0),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Table I, method 3 of R. G. Newcombe: Two-sided confidence intervals for the single
    /// proportion. Statistics in Medicine 17 (1998), 857-872.
    #[test]
    fn intervals_are_those_of_the_published_table() {
        for (hits, trials, low, high) in [
            (81.0, 263.0, 0.2553, 0.3662),
            (15.0, 148.0, 0.0624, 0.1605),
            (0.0, 20.0, 0.0000, 0.1611),
            (1.0, 29.0, 0.0061, 0.1718),
        ] {
            let bounds = interval(hits, trials, Z_95);
            assert!((bounds.low - low).abs() < 5e-5, "{hits}/{trials}: {bounds:?}");
            assert!((bounds.high - high).abs() < 5e-5, "{hits}/{trials}: {bounds:?}");
        }
    }

    #[test]
    fn nothing_is_known_without_trials() {
        for (hits, trials) in [
            (0.0, 0.0),
            (1.0, 0.0),
            (2.0, 1.0),
            (-1.0, 3.0),
            (f64::NAN, 3.0),
            (1.0, f64::NAN),
            (1.0, f64::INFINITY),
        ] {
            let bounds = interval(hits, trials, Z_95);
            assert_eq!(bounds, Interval { low: 0.0, high: 1.0 }, "{hits}/{trials}");
        }
    }

    proptest! {
        #[test]
        fn interval_contains_the_share_and_shrinks(hits in 0_u32..1_000, others in 0_u32..1_000) {
            prop_assume!(hits + others > 0);
            let (hits, trials) = (f64::from(hits), f64::from(hits + others));
            let bounds = interval(hits, trials, Z_95);
            let share = hits / trials;
            prop_assert!(bounds.low <= share + 1e-12 && share <= bounds.high + 1e-12);
            let more = interval(hits * 4.0, trials * 4.0, Z_95);
            prop_assert!(more.high - more.low < bounds.high - bounds.low);
        }
    }
}
