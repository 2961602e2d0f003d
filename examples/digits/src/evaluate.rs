//! Accuracies of both models and of the two together, without any network. Pure; used to choose a threshold and to check the worker's numbers.

use hard_example::{Prediction, Rule};

use crate::model::{CLASSES, Model, label};
use crate::samples::{Pixels, Sample};

/// Shares of samples, each 0..=1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    pub edge_only: f64,
    pub cloud_only: f64,
    pub joint: f64,
    /// Hard samples among all.
    pub upload_ratio: f64,
}

/// Asks `rule` about a classifier's answer. A rule that looks at boxes sees one around the whole image,
/// scored with the best class's probability.
pub fn is_hard(rule: &mut Rule, probabilities: &[f64]) -> bool {
    let best = label(probabilities);
    let digit = f64::from(u32::try_from(best).expect("there are ten classes"));
    let boxes = [vec![0.0, 0.0, 8.0, 8.0, probabilities.get(best).copied().unwrap_or(0.0), digit]];
    rule.is_hard(&Prediction { boxes: &boxes, probabilities })
}

/// What joint inference gives on `samples` when every call to the cloud is answered.
pub fn evaluate(samples: &[Sample], small: &Model, big: &Model, rule: &mut Rule) -> Evaluation {
    let answers: Vec<_> = samples.iter().map(|sample| Answer::of(sample, small, big)).collect();
    judge(&answers, rule)
}

/// What both models say of one sample: inferring is slow, judging with many thresholds is not.
pub struct Answer {
    edge: Vec<f64>,
    edge_right: bool,
    cloud_right: bool,
}

impl Answer {
    pub fn of(sample: &Sample, small: &Model, big: &Model) -> Self {
        let right = |probabilities: &[f64]| label(probabilities) == sample.label;
        let edge = small.infer(&sample.pixels);
        Self { edge_right: right(&edge), cloud_right: right(&big.infer(&sample.pixels)), edge }
    }
}

pub fn judge(answers: &[Answer], rule: &mut Rule) -> Evaluation {
    let hard: Vec<bool> = answers.iter().map(|answer| is_hard(rule, &answer.edge)).collect();
    let joint = answers
        .iter()
        .zip(&hard)
        .filter(|(answer, hard)| if **hard { answer.cloud_right } else { answer.edge_right });
    Evaluation {
        edge_only: share(answers.iter().filter(|answer| answer.edge_right).count(), answers.len()),
        cloud_only: share(
            answers.iter().filter(|answer| answer.cloud_right).count(),
            answers.len(),
        ),
        joint: share(joint.count(), answers.len()),
        upload_ratio: share(hard.iter().filter(|hard| **hard).count(), answers.len()),
    }
}

/// How good one model is alone, each 0..=1: what the worker reports of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quality {
    /// Samples that it was asked about.
    pub samples: usize,
    pub accuracy: f64,
    /// The mean over the digits of right answers among those that named the digit.
    pub precision: f64,
    /// The mean over the digits of right answers among the digit's samples.
    pub recall: f64,
}

/// Asks a model about samples whose digits are known.
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

/// `part` of `whole`, 0 when there is nothing.
#[expect(clippy::cast_precision_loss, reason = "counts of samples stay far below 2^52")]
pub fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The images alone, as a cloud worker is sent them.
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
    fn the_shipped_models_are_a_weak_and_a_strong_one() {
        let (small, big) = models();
        let mut never = Rule::new("EdgeOnly", "").unwrap();
        let found = evaluate(&held_out(), &small, &big, &mut never);
        assert!((0.85..0.93).contains(&found.edge_only), "{found:?}");
        assert!((0.97..1.0).contains(&found.cloud_only), "{found:?}");
        assert_eq!((found.joint, found.upload_ratio), (found.edge_only, 0.0));
    }

    /// The thresholds that README.md and the manifest use: the lowest with a joint accuracy of 0.99 on training samples.
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
    fn a_models_quality_is_that_of_its_answers() {
        let (small, big) = models();
        let samples = held_out();
        let mut never = Rule::new("EdgeOnly", "").unwrap();
        let found = evaluate(&samples, &small, &big, &mut never);
        let (small, big) = (quality(&samples, &small), quality(&samples, &big));
        assert_eq!(
            (small.samples, small.accuracy, big.accuracy),
            (600, found.edge_only, found.cloud_only)
        );
        for (small, big) in [(small.precision, big.precision), (small.recall, big.recall)] {
            assert!(small > 0.85 && small < big && big < 1.0, "{small} {big}");
        }
        let first: Vec<_> = samples.into_iter().filter(|sample| sample.label == 0).collect();
        assert!(quality(&first, &models().1).recall <= 0.1, "nine digits were not asked for");
    }

    #[test]
    fn asking_always_gives_the_clouds_accuracy() {
        let (small, big) = models();
        let mut always = Rule::new("CloudOnly", "").unwrap();
        let found = evaluate(&held_out(), &small, &big, &mut always);
        assert_eq!((found.joint, found.upload_ratio), (found.cloud_only, 1.0));
    }

    #[test]
    fn a_rule_for_boxes_sees_one_box_with_the_best_probability() {
        let probabilities = [0.2, 0.7, 0.1];
        assert!(!is_hard(&mut rule("Threshold", "threshold", "0.7"), &probabilities));
        assert!(is_hard(&mut rule("Threshold", "threshold", "0.71"), &probabilities));
        assert!(is_hard(&mut rule("IBT", "threshold_box", "0.7"), &probabilities));
        assert!(!is_hard(&mut rule("IBT", "threshold_box", "0.69"), &probabilities));
    }
}
