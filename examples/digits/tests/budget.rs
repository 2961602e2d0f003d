//! What each way to choose the threshold does when the inputs become worse.
//!
//! Simulated are the order of the samples, the noise, and a cloud that answers every call. The
//! samples are the 600 held-out images, drawn with replacement; the outputs are those of the two
//! models that this example ships. 6,000 clean images are followed by 6,000 with noise on each
//! pixel (normal, standard deviation 3 of 16, cut to 0..=16) and by 6,000 clean ones. The numbers
//! are means over five seeds (agreement: six). `docs/cascade.md` shows them; `--nocapture` prints
//! them.
#![allow(clippy::unwrap_used)]

use digits::simulation::{Output, Outputs, Random, share};
use neptune_cascade::Share;
use neptune_cascade::policy::{Decision, Goal, Policy, Route, Settings, Upload};
use neptune_cascade::quantile::STEP;

const PHASE: usize = 6_000;
const WINDOW: usize = 500;
const SEEDS: u8 = 5;

fn of_phase(outputs: &Outputs, phase: usize) -> &[Output] {
    if phase == 1 { &outputs.noisy } else { &outputs.clean }
}

/// Ratios and accuracies by phase, the highest ratio of a window, and the ratio of all.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Row {
    ratio: [f64; 3],
    joint: [f64; 3],
    worst: f64,
    total: f64,
}

fn run(outputs: &Outputs, settings: Settings, is_random: bool, seed: u64) -> Row {
    let (mut policy, mut random) = (Policy::new(settings), Random::new(seed));
    let (mut uploads, mut right) = (Vec::new(), Vec::new());
    for phase in 0..3 {
        for _ in 0..PHASE {
            let output = random.choose(of_phase(outputs, phase));
            let confidence = if is_random { random.uniform() } else { output.confidence };
            let upload = policy.decide(Ok(confidence), Route::Open, random.uniform()).is_upload();
            uploads.push(upload);
            right.push(if upload { output.is_cloud_right } else { output.is_edge_right });
        }
    }
    let by_phase = |samples: &[bool]| {
        [0, 1, 2].map(|phase| share(samples[phase * PHASE..(phase + 1) * PHASE].iter().copied()))
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

fn assert_close(actual: &[f64], expected: &[f64], name: &str) {
    for (actual, expected) in actual.iter().zip(expected) {
        assert!((actual - expected).abs() <= 0.01, "{name}: {actual:.4}, expected {expected}");
    }
}

#[test]
fn upload_ratio_is_held_when_the_images_become_noisy() {
    let outputs = Outputs::of_the_shipped_models();
    for (phase, edge, cloud) in [(0, 0.893, 0.982), (1, 0.731, 0.939)] {
        let of_phase = of_phase(&outputs, phase).iter();
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
    let (mut policy, mut random) = (Policy::new(settings), Random::new(seed));
    [0, 1, 2].map(|phase| {
        let (mut disagreeing, mut uploads) = (Vec::new(), Vec::new());
        for _ in 0..PHASE {
            let output = random.choose(of_phase(outputs, phase));
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
        let last = |decisions: &[bool]| share(decisions[PHASE / 3..].iter().copied());
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
