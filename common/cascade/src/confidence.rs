//! Confidence of a classifier, from its probabilities or logits.

use crate::number::length;
use crate::signal::{Signal, Unjudged, check_units};

/// Which confidence is computed from the probabilities p of K classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassSignal {
    /// 1 + Σ(p ln p) / ln K: one minus the normalised entropy. `KubeEdge` Sedna's rule
    /// `CrossEntropy`.
    CrossEntropy,
    /// The greatest p. Hendrycks and Gimpel 2017, arXiv 1610.02136.
    MaxProbability,
    /// The greatest p minus the second. Scheffer, Decomain and Wrobel 2001.
    Margin,
}

/// What the numbers of a classifier are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassScores {
    /// Each from 0 to 1. They are used as they are.
    Probabilities,
    /// Any numbers, before the softmax. Minus infinity excludes a class.
    Logits,
}

impl ClassSignal {
    /// The confidence of one sample.
    ///
    /// # Errors
    /// No values, one class, a value that is not a number or out of range.
    pub fn confidence(self, values: &[f64], scores: ClassScores) -> Signal {
        match scores {
            ClassScores::Probabilities => self.of_probabilities(values),
            ClassScores::Logits => self.of_probabilities(&softmax(values)?),
        }
    }

    fn of_probabilities(self, probabilities: &[f64]) -> Signal {
        check_units(probabilities)?;
        if probabilities.len() == 1 {
            return Err(Unjudged::SingleClass);
        }
        let [first, second] = two_greatest(probabilities);
        Ok(match self {
            Self::CrossEntropy => cross_entropy(probabilities),
            Self::MaxProbability => first,
            Self::Margin => first - second,
        })
    }
}

/// p ln p is 0 at p = 0, its limit.
fn cross_entropy(probabilities: &[f64]) -> f64 {
    let sum: f64 = probabilities.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum();
    1.0 + sum / length(probabilities.len()).ln()
}

/// The two greatest values, the greater one first.
fn two_greatest(values: &[f64]) -> [f64; 2] {
    values.iter().fold([f64::NEG_INFINITY; 2], |[first, second], value| {
        if *value > first { [*value, first] } else { [first, second.max(*value)] }
    })
}

/// exp(x) / Σ exp(x), shifted by the greatest x so that nothing overflows.
///
/// # Errors
/// No logits, a logit that is plus infinity or not a number, or no finite one.
pub fn softmax(logits: &[f64]) -> Result<Vec<f64>, Unjudged> {
    if logits.is_empty() {
        return Err(Unjudged::Empty);
    }
    let greatest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if !greatest.is_finite() || logits.iter().any(|logit| logit.is_nan()) {
        return Err(Unjudged::NotFinite);
    }
    let powers: Vec<f64> = logits.iter().map(|logit| (logit - greatest).exp()).collect();
    let total: f64 = powers.iter().sum();
    Ok(powers.into_iter().map(|power| power / total).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]
    use proptest::prelude::*;

    use super::*;
    use ClassScores::{Logits, Probabilities};

    const ALL: [ClassSignal; 3] =
        [ClassSignal::CrossEntropy, ClassSignal::MaxProbability, ClassSignal::Margin];

    #[test]
    fn confidences_of_known_distributions() {
        for (probabilities, [entropy, max, margin]) in [
            (&[1.0, 0.0, 0.0][..], [1.0, 1.0, 1.0]),
            (&[0.25; 4], [0.0, 0.25, 0.0]),
            (&[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 0.0]),
            // 1 - (0.9 ln(1/0.9) + 0.1 ln 10) / ln 2 = 1 - 0.468996 (binary entropy of 0.1).
            (&[0.9, 0.1], [0.531_004_406, 0.9, 0.8]),
        ] {
            for (signal, expected) in ALL.into_iter().zip([entropy, max, margin]) {
                let confidence = signal.confidence(probabilities, Probabilities).unwrap();
                assert!(
                    (confidence - expected).abs() < 1e-9,
                    "{signal:?} {probabilities:?}: {confidence}"
                );
            }
        }
    }

    #[test]
    fn invalid_outputs_are_unjudged_with_their_reason() {
        for signal in ALL {
            for (values, scores, reason) in [
                (&[][..], Probabilities, Unjudged::Empty),
                (&[], Logits, Unjudged::Empty),
                (&[1.0], Probabilities, Unjudged::SingleClass),
                (&[7.0], Logits, Unjudged::SingleClass),
                (&[0.5, f64::NAN], Probabilities, Unjudged::NotFinite),
                (&[0.5, f64::NAN], Logits, Unjudged::NotFinite),
                (&[0.5, f64::INFINITY], Probabilities, Unjudged::NotFinite),
                (&[0.5, f64::INFINITY], Logits, Unjudged::NotFinite),
                (&[f64::NEG_INFINITY; 3], Logits, Unjudged::NotFinite),
                (&[0.5, 1.5], Probabilities, Unjudged::OutOfRange),
                (&[0.5, -0.5], Probabilities, Unjudged::OutOfRange),
            ] {
                assert_eq!(signal.confidence(values, scores), Err(reason), "{signal:?} {values:?}");
            }
        }
    }

    #[test]
    fn excluded_class_has_probability_0() {
        assert_eq!(softmax(&[0.0, f64::NEG_INFINITY, 0.0]).unwrap(), [0.5, 0.0, 0.5]);
    }

    #[test]
    fn great_logits_do_not_overflow() {
        assert_eq!(softmax(&[1e308, -1e308]).unwrap(), [1.0, 0.0]);
    }

    proptest! {
        #[test]
        fn confidence_of_logits_is_from_0_to_1(
            logits in prop::collection::vec(-1e3..1e3_f64, 2..20),
        ) {
            for signal in ALL {
                let confidence = signal.confidence(&logits, Logits).unwrap();
                prop_assert!((-1e-9..=1.0 + 1e-9).contains(&confidence), "{confidence}");
            }
        }

        #[test]
        fn order_of_classes_does_not_matter(
            values in prop::collection::vec((0_u8..=16).prop_map(|s| f64::from(s) / 16.0), 2..20),
        ) {
            let mut turned = values.clone();
            turned.reverse();
            for signal in [ClassSignal::MaxProbability, ClassSignal::Margin] {
                prop_assert_eq!(
                    signal.confidence(&values, Probabilities),
                    signal.confidence(&turned, Probabilities)
                );
            }
        }

        #[test]
        fn no_input_fails(values in prop::collection::vec(prop::num::f64::ANY, 0..6)) {
            for signal in ALL {
                for scores in [Probabilities, Logits] {
                    if let Ok(confidence) = signal.confidence(&values, scores) {
                        prop_assert!(confidence.is_finite());
                    }
                }
            }
        }
    }
}
