//! Exact bounds of a proportion, from the binomial distribution (C. J. Clopper and E. S. Pearson
//! 1934).
//!
//! ```text
//! P(X >= k) = I(p; k, n - k + 1),  X binomial with n trials of probability p
//! ```
//!
//! I is the regularised incomplete beta function, computed by its continued fraction (DLMF 8.17.22).
//! [`crate::wilson`] is closer to 95 % on average; these bounds never err more often than stated.

use crate::number::count;

/// Steps of the bisection: the error of a bound is below 1e-15.
const BISECTIONS: u32 = 50;
/// Terms of the continued fraction. It needs about the root of the number of trials.
const TERMS: u32 = 100_000;
/// Stands for 0 in a denominator.
const TINY: f64 = 1e-300;

/// The probability of at least `hits` of `trials`, each with the probability `p`.
pub fn tail(hits: u64, trials: u64, p: f64) -> f64 {
    if hits == 0 {
        return 1.0;
    }
    if hits > trials || p.is_nan() || p <= 0.0 {
        return 0.0;
    }
    if p >= 1.0 {
        return 1.0;
    }
    let (a, b) = (count(hits), count(trials - hits) + 1.0);
    // The fraction converges fast below the mean; above it, the complement does.
    if p < (a + 1.0) / (a + b + 2.0) { beta(p, a, b) } else { 1.0 - beta(1.0 - p, b, a) }
}

/// The greatest p that `hits` of `trials` show not to be the probability, so that a probability of
/// at most the bound gives that many hits with at most the probability `error`. 0 without hits.
pub fn lower_bound(hits: u64, trials: u64, error: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(low, high);
        if tail(hits, trials, middle) <= error { low = middle } else { high = middle }
    }
    low
}

/// I(x; a, b), for x below about a / (a + b).
fn beta(x: f64, a: f64, b: f64) -> f64 {
    let logarithm = a * x.ln() + b * (-x).ln_1p() + ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b);
    (logarithm.exp() / (a * fraction(x, a, b))).clamp(0.0, 1.0)
}

/// The continued fraction by W. J. Lentz's method (1976).
fn fraction(x: f64, a: f64, b: f64) -> f64 {
    let not_0 = |value: f64| if value.abs() < TINY { TINY } else { value };
    let (mut value, mut upper, mut lower) = (1.0, 1.0, 0.0);
    for term in 1..TERMS {
        let half = f64::from(term / 2);
        let factor = if term % 2 == 0 {
            half * (b - half) * x / ((a + 2.0 * half - 1.0) * (a + 2.0 * half))
        } else {
            -(a + half) * (a + b + half) * x / ((a + 2.0 * half) * (a + 2.0 * half + 1.0))
        };
        lower = 1.0 / not_0(1.0 + factor * lower);
        upper = not_0(1.0 + factor / upper);
        value *= upper * lower;
        if (upper * lower - 1.0).abs() < 1e-15 {
            break;
        }
    }
    value
}

/// ln Γ(x) for x >= 1, by C. Lanczos 1964 with g = 7 and nine terms.
fn ln_gamma(x: f64) -> f64 {
    const TERMS: [f64; 8] = [
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let x = x - 1.0;
    let terms = TERMS.iter().zip(1_u32..).map(|(term, index)| term / (x + f64::from(index)));
    let sum = 0.999_999_999_999_809_9 + terms.sum::<f64>();
    let t = x + 7.5;
    (std::f64::consts::TAU.sqrt() * sum).ln() + (x + 0.5) * t.ln() - t
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Table I, method 5 of R. G. Newcombe: Two-sided confidence intervals for the single
    /// proportion. Statistics in Medicine 17 (1998), 857-872. The upper bound is one minus the
    /// lower bound of the misses.
    #[test]
    fn bounds_are_those_of_the_published_table() {
        for (hits, trials, low, high) in [
            (81, 263, 0.2527, 0.3676),
            (15, 148, 0.0578, 0.1617),
            (0, 20, 0.0, 0.1684),
            (1, 29, 0.0009, 0.1776),
        ] {
            let bound = lower_bound(hits, trials, 0.025);
            assert!((bound - low).abs() < 5e-5, "{hits}/{trials}: {bound}");
            let bound = 1.0 - lower_bound(trials - hits, trials, 0.025);
            assert!((bound - high).abs() < 5e-5, "{hits}/{trials}: {bound}");
        }
    }

    #[test]
    fn tail_of_many_trials_is_that_of_the_normal_distribution() {
        // Half of a million trials or more, and one standard deviation above it.
        assert!((tail(500_000, 1_000_000, 0.5) - 0.500_399).abs() < 1e-5);
        assert!((tail(500_500, 1_000_000, 0.5) - 0.158_9).abs() < 5e-4);
    }

    #[test]
    fn impossible_and_certain_counts_have_their_probability() {
        assert!((tail(0, 0, 0.3) - 1.0).abs() < 1e-15);
        assert!(tail(1, 0, 0.3).abs() < 1e-15 && tail(1, 5, f64::NAN).abs() < 1e-15);
        assert!((tail(5, 5, 1.0) - 1.0).abs() < 1e-15);
        assert!(lower_bound(0, 10, 0.05).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn tail_is_the_sum_of_its_terms(trials in 1_u64..60, part in 0.0..=1.0_f64, p in 0.001..0.999_f64) {
            let mut terms = vec![(1.0 - p).powi(i32::try_from(trials).unwrap_or(0))];
            for k in 1..=trials {
                let last = terms.last().copied().unwrap_or_default();
                terms.push(last * count(trials - k + 1) / count(k) * p / (1.0 - p));
            }
            let hits = crate::number::bin(part, usize::try_from(trials).unwrap_or(0) + 1);
            let expected: f64 = terms[hits..].iter().sum();
            let probability = tail(hits as u64, trials, p);
            prop_assert!((probability - expected).abs() < 1e-10, "{probability} {expected}");
        }

        #[test]
        fn bound_is_below_the_share_and_rises_with_the_hits(hits in 0_u64..200, others in 1_u64..200) {
            let trials = hits + others;
            let bound = lower_bound(hits, trials, 0.05);
            prop_assert!(bound <= count(hits) / count(trials) + 1e-12);
            prop_assert!(lower_bound(hits + 1, trials, 0.05) > bound);
            prop_assert!(hits == 0 || (tail(hits, trials, bound) - 0.05).abs() < 1e-9);
        }
    }
}
