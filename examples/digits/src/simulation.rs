//! What the decisions of joint inference need of an image, for simulations of many samples: the
//! outputs of both shipped models on the held-out images, clean and with noise. Pure.

use neptune_cascade::{
    compare::same_class,
    confidence::{ClassScores, ClassSignal},
};

use crate::{
    model::{Model, label},
    samples::{Pixels, Sample, held_out},
};

/// Noisy images per held-out image.
const NOISY: usize = 20;
/// Standard deviation of the noise on each pixel of 0..=16.
const NOISE: f64 = 3.0;

/// Repeatable random numbers: `SplitMix64` by Steele, Lea and Flood, 2014.
pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a random number in [0, 1), uniformly distributed.
    pub fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let high = u32::try_from((mixed ^ (mixed >> 31)) >> 32).expect("the upper half of 64 bits");
        f64::from(high) / (f64::from(u32::MAX) + 1.0)
    }

    /// Standard normal (Box and Muller 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Returns a random one of the items.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "from 0 to the number of items, which is small"
    )]
    pub fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[(self.uniform() * items.len() as f64) as usize]
    }
}

/// What both models make of an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Output {
    /// The digit that the image shows.
    pub label: usize,
    /// The confidence `CrossEntropy` of the edge's answer.
    pub confidence: f64,
    pub is_edge_right: bool,
    pub is_cloud_right: bool,
    pub agrees: bool,
}

/// The outputs for all images.
pub struct Outputs {
    pub clean: Vec<Output>,
    /// Outputs with noise on each pixel: normal, cut to 0..=16.
    pub noisy: Vec<Output>,
}

impl Outputs {
    /// Returns the outputs of the shipped models. Takes a second.
    pub fn of_the_shipped_models() -> Self {
        let [small, big] =
            [include_str!("../models/small.json"), include_str!("../models/big.json")]
                .map(|json| Model::parse(json).expect("the shipped models are tested"));
        let output = |pixels: &Pixels, sample: &Sample| {
            let (edge, cloud) = (small.infer(pixels), big.infer(pixels));
            let confidence =
                ClassSignal::CrossEntropy.confidence(&edge, ClassScores::Probabilities);
            Output {
                label: sample.label,
                confidence: confidence.expect("a softmax gives probabilities"),
                is_edge_right: label(&edge) == sample.label,
                is_cloud_right: label(&cloud) == sample.label,
                agrees: same_class(&edge, &cloud).expect("both models have ten classes"),
            }
        };
        let (samples, mut random) = (held_out(), Random::new(1));
        let mut with_noise =
            |pixels: &Pixels| pixels.map(|p| (p + NOISE * random.normal()).clamp(0.0, 16.0));
        let noisy = samples.iter().flat_map(|sample| std::iter::repeat_n(sample, NOISY));
        Self {
            noisy: noisy.map(|sample| output(&with_noise(&sample.pixels), sample)).collect(),
            clean: samples.iter().map(|sample| output(&sample.pixels, sample)).collect(),
        }
    }
}

/// The share of true values.
pub fn share(values: impl IntoIterator<Item = bool>) -> f64 {
    let (mut hits, mut all) = (0, 0);
    for is_true in values {
        hits += usize::from(is_true);
        all += 1;
    }
    crate::evaluate::share(hits, all)
}
