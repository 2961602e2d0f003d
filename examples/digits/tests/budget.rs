//! What each way to choose the threshold does when the inputs become worse.
//!
//! Simulated are the order of the samples, the noise, and a cloud that answers every call. The
//! samples are the 600 held-out images, drawn with replacement; the outputs are those of the two
//! models that this example ships. 6,000 clean images are followed by 6,000 with noise on each
//! pixel (normal, standard deviation 3 of 16, cut to 0..=16) and by 6,000 clean ones. The numbers
//! are means over five seeds (agreement: six). `docs/cascade.md` shows them; `--nocapture` prints
//! them.
#![allow(clippy::unwrap_used)]

use digits::model::{Model, label};
use digits::samples::{Pixels, Sample, held_out};
use neptune_cascade::Share;
use neptune_cascade::compare::same_class;
use neptune_cascade::confidence::{ClassScores, ClassSignal};
use neptune_cascade::policy::{Decision, Goal, Policy, Route, Settings, Upload};
use neptune_cascade::quantile::STEP;

const PHASE: usize = 6_000;
const WINDOW: usize = 500;
const SEEDS: u8 = 5;
/// Noisy images per held-out image.
const NOISY: usize = 20;

/// `SplitMix64` by Steele, Lea and Flood, 2014.
struct Random(u64);

impl Random {
    /// Uniform in [0, 1).
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let high = u32::try_from((mixed ^ (mixed >> 31)) >> 32).unwrap();
        f64::from(high) / (f64::from(u32::MAX) + 1.0)
    }

    /// Standard normal (Box and Muller 1958).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 0 to the number of items"
    )]
    fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        let length = f64::from(u32::try_from(items.len()).unwrap());
        &items[(self.uniform() * length) as usize]
    }
}

/// What the simulation needs of an image.
struct Output {
    confidence: f64,
    is_edge_right: bool,
    is_cloud_right: bool,
    agrees: bool,
}

struct Outputs {
    clean: Vec<Output>,
    noisy: Vec<Output>,
}

impl Outputs {
    fn of_the_shipped_models() -> Self {
        let [small, big] =
            [include_str!("../models/small.json"), include_str!("../models/big.json")]
                .map(|json| Model::parse(json).unwrap());
        let output = |pixels: &Pixels, sample: &Sample| {
            let (edge, cloud) = (small.infer(pixels), big.infer(pixels));
            let confidence = ClassSignal::CrossEntropy.of(&edge, ClassScores::Probabilities);
            Output {
                confidence: confidence.unwrap(),
                is_edge_right: label(&edge) == sample.label,
                is_cloud_right: label(&cloud) == sample.label,
                agrees: same_class(&edge, &cloud).unwrap(),
            }
        };
        let (samples, mut random) = (held_out(), Random(1));
        let mut with_noise =
            |pixels: &Pixels| pixels.map(|p| (p + 3.0 * random.normal()).clamp(0.0, 16.0));
        let noisy = samples.iter().flat_map(|sample| std::iter::repeat_n(sample, NOISY));
        Self {
            noisy: noisy.map(|sample| output(&with_noise(&sample.pixels), sample)).collect(),
            clean: samples.iter().map(|sample| output(&sample.pixels, sample)).collect(),
        }
    }

    fn of_phase(&self, phase: usize) -> &[Output] {
        if phase == 1 { &self.noisy } else { &self.clean }
    }
}

/// Ratios and accuracies by phase, the highest ratio of a window, and the ratio of all.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Row {
    ratio: [f64; 3],
    joint: [f64; 3],
    worst: f64,
    total: f64,
}

fn share(of: impl Iterator<Item = bool> + Clone) -> f64 {
    let count = |n: usize| f64::from(u32::try_from(n).unwrap());
    count(of.clone().filter(|is_true| *is_true).count()) / count(of.count())
}

fn run(outputs: &Outputs, settings: Settings, is_random: bool, seed: u64) -> Row {
    let (mut policy, mut random) = (Policy::new(settings), Random(seed));
    let (mut uploads, mut right) = (Vec::new(), Vec::new());
    for phase in 0..3 {
        for _ in 0..PHASE {
            let output = random.choose(outputs.of_phase(phase));
            let confidence = if is_random { random.uniform() } else { output.confidence };
            let upload = policy.decide(Ok(confidence), Route::Open, random.uniform()).is_upload();
            uploads.push(upload);
            right.push(if upload { output.is_cloud_right } else { output.is_edge_right });
        }
    }
    let by_phase = |of: &[bool]| {
        [0, 1, 2].map(|phase| share(of[phase * PHASE..(phase + 1) * PHASE].iter().copied()))
    };
    let windows = uploads.windows(WINDOW).map(|window| share(window.iter().copied()));
    Row {
        ratio: by_phase(&uploads),
        joint: by_phase(&right),
        worst: windows.fold(0.0, f64::max),
        total: share(uploads.iter().copied()),
    }
}

fn mean(outputs: &Outputs, name: &str, settings: Settings, is_random: bool) -> Row {
    let rows: Vec<Row> =
        (0..SEEDS).map(|seed| run(outputs, settings, is_random, 100 + u64::from(seed))).collect();
    let mean = |part: &dyn Fn(&Row) -> f64| rows.iter().map(part).sum::<f64>() / f64::from(SEEDS);
    let row = Row {
        ratio: [0, 1, 2].map(|phase| mean(&|row| row.ratio[phase])),
        joint: [0, 1, 2].map(|phase| mean(&|row| row.joint[phase])),
        worst: rows.iter().map(|row| row.worst).fold(0.0, f64::max),
        total: mean(&|row| row.total),
    };
    println!("{name}: {row:.4?}");
    row
}

fn assert_close(found: &[f64], expected: &[f64], name: &str) {
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 0.01, "{name}: {found:.4}, expected {expected}");
    }
}

#[test]
fn upload_ratio_is_held_when_the_images_become_noisy() {
    let outputs = Outputs::of_the_shipped_models();
    for (phase, edge, cloud) in [(0, 0.893, 0.982), (1, 0.731, 0.939)] {
        let of_phase = outputs.of_phase(phase).iter();
        let alone = [
            share(of_phase.clone().map(|output| output.is_edge_right)),
            share(of_phase.map(|output| output.is_cloud_right)),
        ];
        println!("edge and cloud alone: {alone:.4?}");
        assert_close(&alone, &[edge, cloud], "alone");
    }
    let ratio = Share::percent(20);
    let fixed = |threshold| Settings::new(Goal::Threshold, threshold);
    let tracked = Settings::new(Goal::TrackedRatio { ratio, step: STEP }, 0.75);
    let budget = Settings::new(Goal::UploadRatio(ratio), 0.75);
    let capped = Settings { max_ratio: ratio, ..fixed(0.75) };
    #[rustfmt::skip]
    let table = [
        ("threshold 0.75", fixed(0.75), false, [0.233, 0.367, 0.229], [0.960, 0.887, 0.961], 0.44, 0.2765),
        ("budget", budget, false, [0.200; 3], [0.951, 0.830, 0.953], 0.23, 0.2),
        ("tracker", tracked, false, [0.200; 3], [0.950, 0.829, 0.951], 0.22, 0.2),
        ("threshold with cap", capped, false, [0.208, 0.200, 0.200], [0.953, 0.817, 0.952], 0.26, 0.2025),
        ("random", fixed(0.2), true, [0.2; 3], [0.908, 0.775, 0.910], 0.26, 0.2),
    ];
    for (name, settings, is_random, ratios, joint, worst, total) in table {
        let row = mean(&outputs, name, settings, is_random);
        assert_close(&row.ratio, &ratios, name);
        assert_close(&row.joint, &joint, name);
        assert_close(&[row.total], &[total], name);
        assert!(row.worst <= worst, "{name}: {}", row.worst);
        let is_exact = matches!(settings.goal, Goal::UploadRatio(_));
        assert!(!is_exact || (row.total - 0.2).abs() <= 0.002, "{name}: {}", row.total);
    }
}

/// The shares of disagreeing answers and of uploads in the last two thirds of each phase.
fn run_agreement(outputs: &Outputs, settings: Settings, seed: u64) -> [(f64, f64); 3] {
    let (mut policy, mut random) = (Policy::new(settings), Random(seed));
    [0, 1, 2].map(|phase| {
        let (mut disagreeing, mut uploads) = (Vec::new(), Vec::new());
        for _ in 0..PHASE {
            let output = random.choose(outputs.of_phase(phase));
            let confidence = output.confidence;
            let decision = policy.decide(Ok(confidence), Route::Open, random.uniform());
            if decision == Decision::Hard {
                policy.uploaded(confidence, Upload::Answered(Some(output.agrees)));
            } else if policy.take_shadow(Route::Open, random.uniform()) {
                policy.shadowed(confidence, output.agrees);
            }
            uploads.push(decision.is_upload());
            disagreeing.push(!decision.is_upload() && !output.agrees);
        }
        let last = |of: &[bool]| share(of[PHASE / 3..].iter().copied());
        (last(&disagreeing), last(&uploads))
    })
}

#[test]
fn agreement_is_held_when_the_images_become_noisy() {
    let outputs = Outputs::of_the_shipped_models();
    let goal = Goal::Agreement(Share::percent(95));
    let settings = Settings { shadow_ratio: Share::percent(5), ..Settings::new(goal, 0.75) };
    let runs: Vec<_> = (200..206).map(|seed| run_agreement(&outputs, settings, seed)).collect();
    println!("agreement 0.95: {runs:.3?}");
    for phase in 0..3 {
        let all = runs.iter().map(|phases| phases[phase]);
        let mean = all.clone().map(|(disagreeing, _)| disagreeing).sum::<f64>() / 6.0;
        assert!(mean <= 0.05, "{phase}: {mean}");
        for (disagreeing, uploads) in all {
            assert!(disagreeing <= 0.065 && uploads <= 0.55, "{phase}: {disagreeing} {uploads}");
        }
    }
}
