//! Confidence of a detector, from the scores of its boxes.

use crate::number::length;
use crate::signal::{Signal, Unjudged, check_units};

/// Which confidence is computed from the scores of the boxes of one image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BoxSignal {
    /// `KubeEdge` Sedna's rule `IBT`: hard when count(score <= `threshold_box`) / n is at least
    /// 1 - `threshold_img`. The confidence is the share of the other boxes, so that `threshold_img`
    /// is the threshold.
    Ibt {
        /// Boxes with at most this score, 0 to 1, are low.
        threshold_box: f64,
    },
    /// The mean score. Sedna's rule `Threshold`.
    MeanScore,
}

impl BoxSignal {
    /// The confidence of one image, from one score (0 to 1) per box.
    ///
    /// # Errors
    /// No boxes, or a score that is not a number or out of range.
    pub fn confidence(self, scores: &[f64]) -> Signal {
        check_units(scores)?;
        let boxes = length(scores.len());
        Ok(match self {
            Self::Ibt { threshold_box } => {
                let low = scores.iter().filter(|score| **score <= threshold_box).count();
                ibt_confidence(length(low) / boxes)
            }
            Self::MeanScore => scores.iter().sum::<f64>() / boxes,
        })
    }
}

/// The scores of boxes `[xmin, ymin, xmax, ymax, score, label]`; the label may be omitted.
///
/// # Errors
/// [`Unjudged::Malformed`] when a box has fewer than five numbers.
pub fn scores<Row: AsRef<[f64]>>(boxes: &[Row]) -> Result<Vec<f64>, Unjudged> {
    let score = |row: &Row| row.as_ref().get(4).copied().ok_or(Unjudged::Malformed);
    boxes.iter().map(score).collect()
}

/// The greatest number below every `threshold_img` with `low_share` >= 1 - `threshold_img`: 1 -
/// `low_share` up to rounding. The rule is evaluated with the rounding of the original, so that
/// "confidence < threshold" decides exactly like it, also when both are equal.
fn ibt_confidence(low_share: f64) -> f64 {
    // Numbers from 0 to 1 are ordered like their bits, and the rule is monotone in the threshold.
    let (mut easy, mut hard) = (None, 1.0_f64.to_bits());
    let mut low = 0;
    while low < hard {
        let middle = low + (hard - low) / 2;
        if low_share >= 1.0 - f64::from_bits(middle) {
            hard = middle;
        } else {
            easy = Some(middle);
            low = middle + 1;
        }
    }
    // Hard at every threshold, also at 0.
    easy.map_or(0.0_f64.next_down(), f64::from_bits)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ibt_is_the_share_of_boxes_above_the_limit() {
        let ibt = BoxSignal::Ibt { threshold_box: 0.5 };
        for (scores, expected) in [
            (&[0.9, 0.8][..], 1.0),
            (&[0.5, 0.8], 0.5),
            (&[0.1], 0.0),
            (&[0.1, 0.9, 0.9], 2.0 / 3.0),
        ] {
            assert!((ibt.confidence(scores).unwrap() - expected).abs() < 1e-9, "{scores:?}");
        }
    }

    #[test]
    fn mean_score_is_the_mean() {
        assert_eq!(BoxSignal::MeanScore.confidence(&[0.25, 0.75]), Ok(0.5));
    }

    #[test]
    fn invalid_boxes_are_unjudged_with_their_reason() {
        for signal in [BoxSignal::MeanScore, BoxSignal::Ibt { threshold_box: 0.5 }] {
            for (scores, reason) in [
                (&[][..], Unjudged::Empty),
                (&[0.5, f64::NAN], Unjudged::NotFinite),
                (&[0.5, f64::NEG_INFINITY], Unjudged::NotFinite),
                (&[0.5, 1.01], Unjudged::OutOfRange),
                (&[-0.01], Unjudged::OutOfRange),
            ] {
                assert_eq!(signal.confidence(scores), Err(reason), "{scores:?}");
            }
        }
        assert_eq!(scores(&[vec![0.0; 4]]), Err(Unjudged::Malformed));
        assert_eq!(scores(&[[0.0, 0.0, 1.0, 1.0, 0.4]]), Ok(vec![0.4]));
        assert_eq!(scores::<Vec<f64>>(&[]), Ok(vec![]));
    }

    proptest! {
        /// The comparison of Sedna's rule, for shares and thresholds that a manifest can have.
        #[test]
        fn ibt_decides_like_the_original_rule(
            low in 0_usize..=50, high in 0_usize..=50, hundredths in 0_u32..=100, limit in 0.0..=1.0_f64,
        ) {
            prop_assume!(low + high > 0);
            let scores = [vec![0.4; low], vec![0.6; high]].concat();
            let confidence = BoxSignal::Ibt { threshold_box: 0.5 }.confidence(&scores).unwrap();
            let low_share = length(low) / length(low + high);
            for threshold in [f64::from(hundredths) / 100.0, limit, low_share, 1.0 - low_share] {
                prop_assert_eq!(
                    confidence < threshold,
                    low_share >= 1.0 - threshold,
                    "{} {}", low_share, threshold
                );
            }
        }

        #[test]
        fn no_scores_fail(scores in prop::collection::vec(prop::num::f64::ANY, 0..6)) {
            for signal in [BoxSignal::MeanScore, BoxSignal::Ibt { threshold_box: 0.5 }] {
                if let Ok(confidence) = signal.confidence(&scores) {
                    prop_assert!((-1e-9..=1.0).contains(&confidence));
                }
            }
        }
    }
}
