//! Accuracies of both models and of joint inference, without a network. Pure. Used to choose a
//! threshold and to check the worker's numbers.

use hard_example::{Prediction, Rule};

use crate::model::{CLASSES, Model, label};
use crate::samples::{Pixels, Sample};

/// Accuracies and the upload ratio, each 0..=1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    pub edge_only: f64,
    pub cloud_only: f64,
    pub joint: f64,
    /// Share of hard samples.
    pub upload_ratio: f64,
}

/// Applies `rule` to a classifier's output. Rules for boxes get one box around the whole image,
/// with the probability of the best class as its score.
pub fn is_hard(rule: &mut Rule, probabilities: &[f64]) -> bool {
    let best = label(probabilities);
    let digit = f64::from(u32::try_from(best).expect("there are ten classes"));
    let boxes = [vec![0.0, 0.0, 8.0, 8.0, probabilities.get(best).copied().unwrap_or(0.0), digit]];
    rule.is_hard(&Prediction { boxes: &boxes, probabilities })
}

/// The result of joint inference on `samples` if the cloud worker answers every call.
pub fn evaluate(samples: &[Sample], small: &Model, big: &Model, rule: &mut Rule) -> Evaluation {
    let outputs: Vec<_> =
        samples.iter().map(|sample| SampleOutputs::compute(sample, small, big)).collect();
    evaluate_outputs(&outputs, rule)
}

/// The outputs of both models for one sample. They are computed once and evaluated with many
/// thresholds.
pub struct SampleOutputs {
    edge: Vec<f64>,
    edge_right: bool,
    cloud_right: bool,
}

impl SampleOutputs {
    pub fn compute(sample: &Sample, small: &Model, big: &Model) -> Self {
        let right = |probabilities: &[f64]| label(probabilities) == sample.label;
        let edge = small.infer(&sample.pixels);
        Self { edge_right: right(&edge), cloud_right: right(&big.infer(&sample.pixels)), edge }
    }
}

pub fn evaluate_outputs(outputs: &[SampleOutputs], rule: &mut Rule) -> Evaluation {
    let hard: Vec<bool> = outputs.iter().map(|answer| is_hard(rule, &answer.edge)).collect();
    let joint = outputs
        .iter()
        .zip(&hard)
        .filter(|(answer, hard)| if **hard { answer.cloud_right } else { answer.edge_right });
    Evaluation {
        edge_only: share(outputs.iter().filter(|answer| answer.edge_right).count(), outputs.len()),
        cloud_only: share(
            outputs.iter().filter(|answer| answer.cloud_right).count(),
            outputs.len(),
        ),
        joint: share(joint.count(), outputs.len()),
        upload_ratio: share(hard.iter().filter(|hard| **hard).count(), outputs.len()),
    }
}

/// The metrics of one model, each 0..=1, which the worker reports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quality {
    /// Number of labelled samples that were evaluated.
    pub samples: usize,
    pub accuracy: f64,
    /// Mean precision over the digits: correct answers among the answers with a digit.
    pub precision: f64,
    /// Mean recall over the digits: correct answers among the samples with a digit.
    pub recall: f64,
}

/// Evaluates a model on labelled samples.
pub fn quality(samples: &[Sample], model: &Model) -> Quality {
    let (mut right, mut named, mut meant) = ([0; CLASSES], [0; CLASSES], [0; CLASSES]);
    for sample in samples {
        let answer = label(&model.infer(&sample.pixels));
        named[answer] += 1;
        meant[sample.label] += 1;
        right[sample.label] += usize::from(answer == sample.label);
    }
    let mean = |wholes: [usize; CLASSES]| {
        let shares = right.iter().zip(wholes).map(|(right, whole)| share(*right, whole));
        shares.sum::<f64>() / 10.0
    };
    Quality {
        samples: samples.len(),
        accuracy: share(right.iter().sum(), samples.len()),
        precision: mean(named),
        recall: mean(meant),
    }
}

/// `part / whole`, or 0 if `whole` is 0.
#[expect(clippy::cast_precision_loss, reason = "counts of samples stay far below 2^52")]
pub fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The images without labels, for a request to the cloud worker.
pub fn images(samples: &[Sample]) -> Vec<Pixels> {
    samples.iter().map(|sample| sample.pixels).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::samples::{held_out, training};

    fn models() -> (Model, Model) {
        let [small, big] =
            [include_str!("../models/small.json"), include_str!("../models/big.json")]
                .map(|json| Model::parse(json).unwrap());
        (small, big)
    }

    fn rule(name: &str, key: &str, value: &str) -> Rule {
        Rule::new(name, &format!(r#"[{{"key":"{key}","value":"{value}"}}]"#)).unwrap()
    }

    #[test]
    fn shipped_models_have_the_documented_accuracies() {
        let (small, big) = models();
        let mut never = Rule::new("EdgeOnly", "").unwrap();
        let evaluation = evaluate(&held_out(), &small, &big, &mut never);
        assert!((0.85..0.93).contains(&evaluation.edge_only), "{evaluation:?}");
        assert!((0.97..1.0).contains(&evaluation.cloud_only), "{evaluation:?}");
        assert_eq!((evaluation.joint, evaluation.upload_ratio), (evaluation.edge_only, 0.0));
    }

    /// The thresholds that README.md and the manifest use: the lowest with a joint accuracy of 0.99
    /// on training samples.
    #[test]
    fn joint_beats_edge_only_and_uploads_a_minority() {
        let (small, big) = models();
        for (name, key, threshold) in
            [("CrossEntropy", "threshold_cross_entropy", "0.75"), ("Threshold", "threshold", "0.8")]
        {
            let mut rule = rule(name, key, threshold);
            let train = evaluate(&training(), &small, &big, &mut rule);
            assert!(train.joint >= 0.99 && train.upload_ratio < 0.25, "{name} {train:?}");
            let test = evaluate(&held_out(), &small, &big, &mut rule);
            assert!(test.joint > test.edge_only + 0.05, "{name} {test:?}");
            assert!((0.1..0.3).contains(&test.upload_ratio), "{name} {test:?}");
        }
    }

    #[test]
    fn quality_matches_the_evaluation() {
        let (small, big) = models();
        let samples = held_out();
        let mut never = Rule::new("EdgeOnly", "").unwrap();
        let evaluation = evaluate(&samples, &small, &big, &mut never);
        let (small, big) = (quality(&samples, &small), quality(&samples, &big));
        assert_eq!(
            (small.samples, small.accuracy, big.accuracy),
            (600, evaluation.edge_only, evaluation.cloud_only)
        );
        for (small, big) in [(small.precision, big.precision), (small.recall, big.recall)] {
            assert!(small > 0.85 && small < big && big < 1.0, "{small} {big}");
        }
        let first: Vec<_> = samples.into_iter().filter(|sample| sample.label == 0).collect();
        assert!(quality(&first, &models().1).recall <= 0.1, "nine digits have no samples");
    }

    #[test]
    fn cloud_only_rule_has_the_cloud_accuracy() {
        let (small, big) = models();
        let mut always = Rule::new("CloudOnly", "").unwrap();
        let evaluation = evaluate(&held_out(), &small, &big, &mut always);
        assert_eq!((evaluation.joint, evaluation.upload_ratio), (evaluation.cloud_only, 1.0));
    }

    #[test]
    fn box_rules_get_one_box_with_the_best_probability() {
        let probabilities = [0.2, 0.7, 0.1];
        assert!(!is_hard(&mut rule("Threshold", "threshold", "0.7"), &probabilities));
        assert!(is_hard(&mut rule("Threshold", "threshold", "0.71"), &probabilities));
        assert!(is_hard(&mut rule("IBT", "threshold_box", "0.7"), &probabilities));
        assert!(!is_hard(&mut rule("IBT", "threshold_box", "0.69"), &probabilities));
    }
}
