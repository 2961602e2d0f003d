//! What each threshold does to labelled samples that both models answered: the share of uploads, and
//! the accuracy.
//!
//! A sample without a confidence stays at the edge with any threshold, as in
//! [`crate::policy`].
//!
//! # Guarantees
//! - The threshold for a ratio depends on the confidences only, not on the labels. So the accuracy at
//!   it is not chosen among many, and its interval is valid.
//! - [`Calibration::certain`] errs with at most the stated probability, for samples that are
//!   independent and like those to come. It tests a fixed list of thresholds in a fixed order, and
//!   stops at the first that fails: fixed-sequence testing, as in "Learn then Test" (Angelopoulos,
//!   Bates, Candès, Jordan and Lei 2021, arXiv 2110.01052), with the exact binomial test, which
//!   Geifman and El-Yaniv 2017 (arXiv 1705.08500) use to select samples. Conformal risk control
//!   (arXiv 2208.02814) is not applicable: the accuracy is not monotone in the threshold, because
//!   the edge can be right where the cloud is wrong.

use crate::binomial::{lower_bound, tail};
use crate::number::{FINE_BINS, count, fine_confidence, length};
use crate::signal::Signal;
use crate::wilson::{Interval, Z_95, interval};

/// A labelled sample that both models answered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judged {
    /// The confidence in the edge's answer.
    pub signal: Signal,
    /// Whether the edge's answer is that of the label.
    pub is_edge_right: bool,
    /// Whether the cloud's answer is that of the label.
    pub is_cloud_right: bool,
}

/// An observed share: a number of hits among a number of trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proportion {
    /// Number of trials with the counted result.
    pub hits: u64,
    /// Number of all trials.
    pub trials: u64,
}

impl Proportion {
    /// The share, 0 to 1.
    pub fn share(self) -> f64 {
        if self.trials == 0 { 0.0 } else { count(self.hits) / count(self.trials) }
    }

    /// Wilson's interval of 95 %.
    pub fn interval(self) -> Interval {
        interval(count(self.hits), count(self.trials), Z_95)
    }
}

/// The uploads and the accuracy that a threshold leads to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Samples with a lower confidence are uploaded.
    pub threshold: f64,
    /// The share of uploaded samples.
    pub uploads: Proportion,
    /// The share of right answers.
    pub joint: Proportion,
    /// The expected share of right answers if as many samples are uploaded at random.
    pub random: f64,
}

/// A threshold whose accuracy is at least the demanded one, but for the stated probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Certain {
    /// The threshold, its uploads and its observed accuracy.
    pub point: Point,
    /// The lower bound of the accuracy.
    pub lower_bound: f64,
}

/// The samples, by their confidence.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// The different confidences, rising. Of each, the samples up to it.
    steps: Vec<Step>,
    samples: u64,
    unjudged: u64,
    edge: u64,
    cloud: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Step {
    confidence: f64,
    uploads: u64,
    /// Right answers with these uploads.
    right: u64,
}

impl Calibration {
    /// Sorts the samples by their confidence.
    pub fn new(samples: &[Judged]) -> Self {
        let right =
            |is_right: fn(&Judged) -> bool| samples.iter().filter(|s| is_right(s)).count() as u64;
        let (edge, cloud) = (right(|s| s.is_edge_right), right(|s| s.is_cloud_right));
        let is_judged = |sample: &&Judged| sample.signal.is_ok_and(f64::is_finite);
        let mut judged: Vec<&Judged> = samples.iter().filter(is_judged).collect();
        let confidence = |sample: &Judged| sample.signal.unwrap_or_default().clamp(0.0, 1.0);
        judged.sort_by(|a, b| confidence(a).total_cmp(&confidence(b)));
        let mut steps: Vec<Step> = Vec::new();
        let (mut uploads, mut joint) = (0, edge);
        for sample in &judged {
            uploads += 1;
            joint = joint + u64::from(sample.is_cloud_right) - u64::from(sample.is_edge_right);
            let step = Step { confidence: confidence(sample), uploads, right: joint };
            match steps.last_mut() {
                Some(last) if last.confidence.total_cmp(&step.confidence).is_eq() => *last = step,
                _ => steps.push(step),
            }
        }
        let samples = samples.len() as u64;
        Self { steps, samples, unjudged: samples - judged.len() as u64, edge, cloud }
    }

    /// The number of samples.
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// Number of samples without a confidence.
    pub const fn unjudged(&self) -> u64 {
        self.unjudged
    }

    /// The accuracy of the edge alone.
    pub const fn edge(&self) -> Proportion {
        Proportion { hits: self.edge, trials: self.samples }
    }

    /// The accuracy of the cloud alone.
    pub const fn cloud(&self) -> Proportion {
        Proportion { hits: self.cloud, trials: self.samples }
    }

    /// All that thresholds from 0 to 1 can do, with rising uploads. The first uploads nothing. A
    /// confidence of 1 is below no threshold.
    pub fn points(&self) -> Vec<Point> {
        let mut points = vec![self.point(0.0, None)];
        for (index, step) in self.steps.iter().enumerate().filter(|(_, step)| step.confidence < 1.0)
        {
            let next = self.steps.get(index + 1).map_or(1.0, |next| next.confidence);
            points.push(self.point(between(step.confidence, next), Some(step)));
        }
        points
    }

    /// What the threshold that uploads the most samples, but at most this share, does.
    pub fn at_ratio(&self, ratio: f64) -> Point {
        let points = self.points();
        let is_within = |point: &&Point| point.uploads.share() <= ratio + 1e-9;
        points.iter().rev().find(is_within).copied().unwrap_or_else(|| self.point(0.0, None))
    }

    /// The fewest uploads that reach an accuracy on these samples; `None` if no threshold does. It is
    /// chosen among many, so its accuracy on other samples is somewhat lower.
    pub fn reaching(&self, accuracy: f64) -> Option<Point> {
        self.points().into_iter().find(|point| point.joint.share() >= accuracy - 1e-9)
    }

    /// The lowest threshold that is certain to reach an accuracy, but for the probability `error`;
    /// `None` if not even the threshold 1 is.
    pub fn certain(&self, accuracy: f64, error: f64) -> Option<Certain> {
        let is_certain =
            |point: &Point| tail(point.joint.hits, point.joint.trials, accuracy) <= error;
        let listed = thresholds().map(|threshold| self.point(threshold, self.below(threshold)));
        let point = listed.take_while(is_certain).last()?;
        let lower_bound = lower_bound(point.joint.hits, point.joint.trials, error);
        Some(Certain { point, lower_bound })
    }

    /// The last step with a lower confidence.
    fn below(&self, threshold: f64) -> Option<&Step> {
        let steps = self.steps.partition_point(|step| step.confidence < threshold);
        self.steps.get(steps.checked_sub(1)?)
    }

    fn point(&self, threshold: f64, step: Option<&Step>) -> Point {
        let (uploads, right) = step.map_or((0, self.edge), |step| (step.uploads, step.right));
        let of_all = |hits| Proportion { hits, trials: self.samples };
        let (uploads, joint) = (of_all(uploads), of_all(right));
        let (edge, cloud) = (self.edge().share(), self.cloud().share());
        Point { threshold, uploads, joint, random: edge + (cloud - edge) * uploads.share() }
    }
}

/// The thresholds that are tested, falling: the bins of the budget, which are finer close to 1, with
/// six decimals.
fn thresholds() -> impl Iterator<Item = f64> {
    let bins = (0..=FINE_BINS).rev().map(|bin| fine_confidence(length(bin)));
    bins.map(|threshold| (threshold * 1e6).round() / 1e6)
}

/// The shortest decimal number above `low` and at most `high`.
fn between(low: f64, high: f64) -> f64 {
    (1..=15)
        .map(|digits| {
            let scale = 10_f64.powi(digits);
            (high * scale).floor() / scale
        })
        .find(|rounded| *rounded > low)
        .unwrap_or(high)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]
    use proptest::prelude::*;

    use super::*;
    use crate::signal::Unjudged;
    use crate::testing::Uniform;

    fn sample(confidence: f64, is_edge_right: bool, is_cloud_right: bool) -> Judged {
        Judged { signal: Ok(confidence), is_edge_right, is_cloud_right }
    }

    fn five() -> Calibration {
        let unjudged =
            Judged { signal: Err(Unjudged::Missing), is_edge_right: false, is_cloud_right: true };
        Calibration::new(&[
            sample(0.9, true, false),
            sample(0.2, false, true),
            sample(0.9, true, true),
            sample(1.0, true, true),
            unjudged,
        ])
    }

    #[test]
    fn thresholds_divide_the_different_confidences_below_1() {
        let calibration = five();
        assert_eq!((calibration.samples(), calibration.unjudged()), (5, 1));
        assert_eq!((calibration.edge().hits, calibration.cloud().hits), (3, 4));
        let points = calibration.points();
        let row = |point: &Point| (point.threshold, point.uploads.hits, point.joint.hits);
        assert_eq!(
            points.iter().map(row).collect::<Vec<_>>(),
            [(0.0, 0, 3), (0.9, 1, 4), (1.0, 3, 3)]
        );
        assert!((points[2].random - 0.72).abs() < 1e-12);
        assert_eq!(calibration.at_ratio(0.59).uploads.hits, 1);
        assert_eq!(calibration.at_ratio(0.6).uploads.hits, 3);
        assert_eq!(calibration.reaching(0.8).unwrap().uploads.hits, 1);
        assert_eq!(calibration.reaching(0.81), None);
    }

    #[test]
    fn thresholds_are_the_shortest_numbers() {
        for (low, high, expected) in [
            (0.2, 0.9, 0.9),
            (0.123, 0.129, 0.129),
            (0.7312, 0.7468, 0.74),
            (0.0, 0.000_4, 0.000_4),
            (0.999_999, 1.0, 1.0),
        ] {
            assert_eq!(between(low, high), expected);
        }
        let close = 0.1 + 0.2;
        assert_eq!(between(0.3, close), close);
    }

    #[test]
    fn without_samples_nothing_is_certain() {
        let empty = Calibration::new(&[]);
        assert_eq!(empty.points().len(), 1);
        assert_eq!((empty.at_ratio(0.5).uploads.hits, empty.certain(0.5, 0.05)), (0, None));
    }

    /// Samples of a population with known accuracies: the edge is right with its confidence, the
    /// cloud always with 0.97.
    fn drawn(samples: u32, random: &mut Uniform) -> Calibration {
        let draw = |_| {
            let confidence = random.next();
            sample(confidence, random.next() < confidence, random.next() < 0.97)
        };
        Calibration::new(&(0..samples).map(draw).collect::<Vec<_>>())
    }

    /// The accuracy of the population: below the threshold t 0.97, above it the mean of [t, 1].
    fn accuracy_of(threshold: f64) -> f64 {
        threshold * 0.97 + (1.0 - threshold * threshold) / 2.0
    }

    #[test]
    fn certain_threshold_errs_in_at_most_5_percent_of_the_draws() {
        let (mut random, mut missed, mut certified) = (Uniform::new(7), 0, 0);
        for _ in 0..400 {
            let Some(certain) = drawn(500, &mut random).certain(0.9, 0.05) else { continue };
            certified += 1;
            assert!(certain.lower_bound >= 0.9);
            missed += u32::from(accuracy_of(certain.point.threshold) < 0.9);
        }
        // 20 of 400 are permitted; the test of each threshold is exact, so it is nearly used up.
        assert!(certified > 390 && (1..=30).contains(&missed), "{missed} of {certified}");
    }

    #[test]
    fn certain_threshold_approaches_the_right_one_with_more_samples() {
        // The solution of 0.97 t + (1 - t²) / 2 = 0.9.
        let right = 0.97 - (0.97_f64 * 0.97 - 0.8).sqrt();
        for (samples, tolerance) in [(1_000, 0.2), (50_000, 0.03)] {
            let certain = drawn(samples, &mut Uniform::new(3)).certain(0.9, 0.05).unwrap();
            let above = certain.point.threshold - right;
            assert!((0.0..tolerance).contains(&above), "{samples}: {above}");
        }
    }

    proptest! {
        #[test]
        fn points_are_what_their_thresholds_do(
            samples in prop::collection::vec(
                (prop_oneof![0.0..=1.0_f64, (0_u8..5).prop_map(|c| f64::from(c) / 4.0)], any::<bool>(), any::<bool>()),
                0..60,
            ),
        ) {
            let samples: Vec<Judged> = samples.into_iter().map(|(c, edge, cloud)| sample(c, edge, cloud)).collect();
            let calibration = Calibration::new(&samples);
            for point in calibration.points() {
                let is_hard = |s: &&Judged| s.signal.is_ok_and(|c| c < point.threshold);
                let is_right = |s: &&Judged| if is_hard(s) { s.is_cloud_right } else { s.is_edge_right };
                prop_assert_eq!(samples.iter().filter(is_hard).count() as u64, point.uploads.hits);
                prop_assert_eq!(samples.iter().filter(is_right).count() as u64, point.joint.hits);
                prop_assert_eq!(calibration.at_ratio(point.uploads.share()).uploads, point.uploads);
            }
        }
    }
}
