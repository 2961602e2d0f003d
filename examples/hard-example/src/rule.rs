//! The rules. Pure, except for the generator of the Random rule.

use neptune_cascade::boxes::{BoxSignal, scores};
use neptune_cascade::confidence::{ClassScores, ClassSignal};

use crate::generator::Generator;
use crate::parameters::{Error, list, read};

/// The small model's output for one sample. A worker sets the parts that its model has.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prediction<'a> {
    /// Detected boxes, each `[xmin, ymin, xmax, ymax, score, label]`; only the score (0..=1) is
    /// used; the label may be omitted. A classifier may use one box around the whole image with the
    /// probability of its best class as the score.
    pub boxes: &'a [Vec<f64>],
    /// One probability (0..=1) per class.
    pub probabilities: &'a [f64],
}

/// A hard-example rule with its parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule(Kind);

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Ibt { threshold_img: f64, threshold_box: f64 },
    Threshold { threshold: f64 },
    CrossEntropy { threshold: f64 },
    Random { ratio: f64, generator: Generator },
    CloudOnly,
    EdgeOnly,
}

impl Rule {
    /// The names that [`Rule::new`] accepts.
    pub const NAMES: [&str; 6] =
        ["IBT", "Threshold", "CrossEntropy", "Random", "CloudOnly", "EdgeOnly"];

    /// Creates the rule `name` (the value of `HEM_NAME`), with `parameters` (the value of
    /// `HEM_PARAMETERS`): a JSON list of `{"key", "value"}` whose values are numbers from 0 to 1,
    /// or strings with one. Empty means all defaults.
    ///
    /// # Errors
    /// An unknown name or key, or an invalid value. The message lists the known ones.
    pub fn new(name: &str, parameters: &str) -> Result<Self, Error> {
        let kind = match name {
            "IBT" => {
                let [threshold_img, threshold_box] =
                    read("IBT", parameters, [("threshold_img", 0.5), ("threshold_box", 0.5)])?;
                Kind::Ibt { threshold_img, threshold_box }
            }
            "Threshold" => {
                let [threshold] = read("Threshold", parameters, [("threshold", 0.5)])?;
                Kind::Threshold { threshold }
            }
            "CrossEntropy" => {
                let [threshold] =
                    read("CrossEntropy", parameters, [("threshold_cross_entropy", 0.5)])?;
                Kind::CrossEntropy { threshold }
            }
            "Random" => {
                let [ratio] = read("Random", parameters, [("random_ratio", 0.3)])?;
                Kind::Random { ratio, generator: Generator::from_system() }
            }
            "CloudOnly" => read("CloudOnly", parameters, []).map(|[]| Kind::CloudOnly)?,
            "EdgeOnly" => read("EdgeOnly", parameters, []).map(|[]| Kind::EdgeOnly)?,
            _ => {
                return Err(Error::UnknownRule {
                    name: name.to_owned(),
                    known: list(&Self::NAMES),
                });
            }
        };
        Ok(Self(kind))
    }

    /// Seeds the generator of the Random rule, for repeatable runs.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        if let Kind::Random { generator, .. } = &mut self.0 {
            *generator = Generator::from_seed(seed);
        }
        self
    }

    /// Whether the big model is asked about this sample. Never fails: invalid outputs are not hard.
    pub fn is_hard(&mut self, prediction: &Prediction<'_>) -> bool {
        let boxes = |signal: BoxSignal| signal.confidence(&scores(prediction.boxes)?);
        let (confidence, threshold) = match &mut self.0 {
            Kind::Ibt { threshold_img, threshold_box } => {
                (boxes(BoxSignal::Ibt { threshold_box: *threshold_box }), *threshold_img)
            }
            Kind::Threshold { threshold } => (boxes(BoxSignal::MeanScore), *threshold),
            Kind::CrossEntropy { threshold } => {
                let probabilities = prediction.probabilities;
                let signal = ClassSignal::CrossEntropy;
                (signal.confidence(probabilities, ClassScores::Probabilities), *threshold)
            }
            Kind::Random { ratio, generator } => return generator.uniform() < *ratio,
            Kind::CloudOnly => return true,
            Kind::EdgeOnly => return false,
        };
        confidence.is_ok_and(|confidence| confidence < threshold)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn rule(name: &str, parameters: &[(&str, &str)]) -> Rule {
        let list: Vec<_> = parameters
            .iter()
            .map(|(key, value)| serde_json::json!({"key": key, "value": value}))
            .collect();
        Rule::new(name, &serde_json::Value::from(list).to_string()).unwrap()
    }

    fn boxes(scores: &[f64]) -> Vec<Vec<f64>> {
        scores.iter().map(|score| vec![0.0, 0.0, 8.0, 8.0, *score, 1.0]).collect()
    }

    fn hard_boxes(mut rule: Rule, rows: &[Vec<f64>]) -> bool {
        rule.is_hard(&Prediction { boxes: rows, probabilities: &[] })
    }

    fn hard_classes(mut rule: Rule, probabilities: &[f64]) -> bool {
        rule.is_hard(&Prediction { boxes: &[], probabilities })
    }

    #[test]
    fn ibt_is_hard_when_the_share_of_low_boxes_reaches_the_limit() {
        for (img, bx, scores, hard) in [
            ("0.5", "0.5", &[0.9, 0.8][..], false),
            ("0.5", "0.5", &[0.4, 0.8], true),
            ("0.5", "0.5", &[0.4, 0.8, 0.9], false),
            ("0.75", "0.5", &[0.4, 0.8, 0.9, 0.9], true),
            ("0.5", "0.5", &[0.5], true),
            ("0.5", "0.5", &[0.500_001], false),
            ("1", "0.5", &[0.9], true),
            ("0", "0.5", &[0.4, 0.4], true),
            ("0", "0.5", &[0.4, 0.6], false),
            ("0.5", "0", &[0.0, 1.0], true),
            ("0.5", "1", &[1.0], true),
        ] {
            let rule = rule("IBT", &[("threshold_img", img), ("threshold_box", bx)]);
            assert_eq!(hard_boxes(rule, &boxes(scores)), hard, "{img} {bx} {scores:?}");
        }
    }

    #[test]
    fn threshold_is_hard_when_the_mean_score_is_below_it() {
        for (threshold, scores, hard) in [
            ("0.5", &[0.25, 0.5][..], true),
            ("0.5", &[0.25, 0.75], false),
            ("0.75", &[0.5, 0.75], true),
            ("0", &[0.0], false),
            ("1", &[1.0], false),
            ("1", &[0.999], true),
        ] {
            assert_eq!(
                hard_boxes(rule("Threshold", &[("threshold", threshold)]), &boxes(scores)),
                hard,
                "{threshold} {scores:?}"
            );
        }
    }

    #[test]
    fn cross_entropy_is_hard_when_the_probabilities_are_spread() {
        for (threshold, probabilities, hard) in [
            ("0.5", &[0.5, 0.5][..], true),
            ("0.5", &[0.99, 0.01], false),
            ("0.5", &[1.0, 0.0, 0.0], false),
            ("1", &[1.0, 0.0, 0.0], false),
            ("0.5", &[0.0, 0.0, 0.5, 0.5], false),
            ("0.51", &[0.0, 0.0, 0.5, 0.5], true),
            ("0", &[0.25, 0.25, 0.25, 0.25], false),
        ] {
            let rule = rule("CrossEntropy", &[("threshold_cross_entropy", threshold)]);
            assert_eq!(hard_classes(rule, probabilities), hard, "{threshold} {probabilities:?}");
        }
    }

    #[test]
    fn invalid_outputs_are_not_hard() {
        for name in ["IBT", "Threshold"] {
            let most = if name == "IBT" {
                rule(name, &[("threshold_img", "1"), ("threshold_box", "1")])
            } else {
                rule(name, &[("threshold", "1")])
            };
            assert!(!hard_boxes(most.clone(), &[]), "{name}: no boxes");
            for broken in [
                vec![],
                vec![0.0; 4],
                vec![0.0, 0.0, 1.0, 1.0, 1.01],
                vec![0.0, 0.0, 1.0, 1.0, -0.01],
                vec![0.0, 0.0, 1.0, 1.0, f64::NAN],
            ] {
                assert!(
                    !hard_boxes(most.clone(), std::slice::from_ref(&broken)),
                    "{name}: {broken:?}"
                );
                let mut rows = boxes(&[0.1, 0.1]);
                rows.push(broken.clone());
                assert!(
                    !hard_boxes(most.clone(), &rows),
                    "{name}: one broken box among good ones {broken:?}"
                );
            }
        }
        let most = rule("CrossEntropy", &[("threshold_cross_entropy", "1")]);
        for broken in [
            &[][..],
            &[1.0],
            &[0.3],
            &[0.5, 1.5],
            &[0.5, -0.5],
            &[0.5, f64::NAN],
            &[f64::INFINITY, 0.5],
        ] {
            assert!(!hard_classes(most.clone(), broken), "{broken:?}");
        }
    }

    #[test]
    fn box_without_label_is_valid() {
        assert!(hard_boxes(rule("Threshold", &[]), &[vec![0.0, 0.0, 1.0, 1.0, 0.4]]));
    }

    #[test]
    fn cloud_only_is_always_hard_and_edge_only_never() {
        assert!(hard_classes(rule("CloudOnly", &[]), &[]));
        assert!(!hard_classes(rule("EdgeOnly", &[]), &[0.5, 0.5]));
    }

    #[test]
    fn random_selects_about_its_ratio_and_repeats_from_a_seed() {
        for (ratio, least, most) in [
            (None, 2_800, 3_200),
            (Some("0"), 0, 0),
            (Some("1"), 10_000, 10_000),
            (Some("0.05"), 400, 600),
        ] {
            let parameters: Vec<_> =
                ratio.map(|ratio| ("random_ratio", ratio)).into_iter().collect();
            let draw = || {
                let mut rule = rule("Random", &parameters).with_seed(7);
                (0..10_000).map(|_| rule.is_hard(&Prediction::default())).collect::<Vec<_>>()
            };
            let drawn = draw();
            let hard = drawn.iter().filter(|hard| **hard).count();
            assert!((least..=most).contains(&hard), "{ratio:?}: {hard}");
            assert_eq!(drawn, draw());
        }
    }

    #[test]
    fn two_random_rules_select_different_samples() {
        let draw = || {
            let mut rule = rule("Random", &[("random_ratio", "0.5")]);
            (0..128).map(|_| rule.is_hard(&Prediction::default())).collect::<Vec<_>>()
        };
        assert_ne!(draw(), draw());
    }

    #[test]
    fn unknown_name_is_refused_with_the_known_ones() {
        for name in ["", "ibt", "Entropy"] {
            let error = Rule::new(name, "").unwrap_err().to_string();
            assert!(
                error.ends_with(
                    "known are IBT, Threshold, CrossEntropy, Random, CloudOnly, EdgeOnly"
                ),
                "{error}"
            );
        }
    }

    #[test]
    fn every_listed_name_creates_a_rule() {
        for name in Rule::NAMES {
            assert!(Rule::new(name, "").is_ok(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn raising_a_threshold_never_makes_a_hard_sample_easy(
            scores in prop::collection::vec(0.0..=1.0, 1..20), low in 0.0..=1.0, high in 0.0..=1.0,
        ) {
            let (low, high) = if low < high { (low, high) } else { (high, low) };
            let (low, high): (f64, f64) = (low, high);
            for (name, key) in [("IBT", "threshold_img"), ("IBT", "threshold_box"), ("Threshold", "threshold")] {
                let at = |value: f64| hard_boxes(rule(name, &[(key, &value.to_string())]), &boxes(&scores));
                prop_assert!(!at(low) || at(high), "{name} {key}");
            }
            let at = |value: f64| hard_classes(rule("CrossEntropy", &[("threshold_cross_entropy", &value.to_string())]), &scores);
            prop_assert!(!at(low) || at(high));
        }

        #[test]
        fn order_of_boxes_does_not_matter(scores in prop::collection::vec((0_u8..=16).prop_map(|s| f64::from(s) / 16.0), 1..20)) {
            let mut turned = scores.clone();
            turned.reverse();
            for name in ["IBT", "Threshold"] {
                prop_assert_eq!(hard_boxes(rule(name, &[]), &boxes(&scores)), hard_boxes(rule(name, &[]), &boxes(&turned)));
            }
        }

        /// Sedna's formulas, with their own comparisons.
        #[test]
        fn decisions_are_those_of_the_original_formulas(
            scores in prop::collection::vec((0_u32..=10).prop_map(|tenths| f64::from(tenths) / 10.0), 2..12),
            threshold in (0_u32..=20).prop_map(|twentieths| f64::from(twentieths) / 20.0),
            limit in (0_u32..=10).prop_map(|tenths| f64::from(tenths) / 10.0),
        ) {
            let (text, n) = (threshold.to_string(), f64::from(u32::try_from(scores.len()).unwrap()));
            let low = f64::from(u32::try_from(scores.iter().filter(|s| **s <= limit).count()).unwrap());
            let ibt = rule("IBT", &[("threshold_img", &text), ("threshold_box", &limit.to_string())]);
            prop_assert_eq!(hard_boxes(ibt, &boxes(&scores)), low / n >= 1.0 - threshold);
            let mean = scores.iter().sum::<f64>() / n;
            prop_assert_eq!(hard_boxes(rule("Threshold", &[("threshold", &text)]), &boxes(&scores)), mean < threshold);
            let sum: f64 = scores.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum();
            let entropy = rule("CrossEntropy", &[("threshold_cross_entropy", &text)]);
            prop_assert_eq!(hard_classes(entropy, &scores), 1.0 + sum / n.ln() < threshold);
        }

        #[test]
        fn no_input_makes_a_rule_fail(
            rows in prop::collection::vec(prop::collection::vec(prop::num::f64::ANY, 0..8), 0..6),
            probabilities in prop::collection::vec(prop::num::f64::ANY, 0..6),
        ) {
            for name in Rule::NAMES {
                Rule::new(name, "").unwrap().is_hard(&Prediction { boxes: &rows, probabilities: &probabilities });
            }
        }
    }
}
