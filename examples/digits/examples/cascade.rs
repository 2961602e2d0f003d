//! Checks the goals of joint inference on the digits, with the code that the gateway runs: the share
//! of uploads for different orders of the samples, the cap, and the accuracy. `hack/bench-cascade.sh`
//! runs it.
//!
//! The samples are the 600 held-out images, and noisy copies of them; the outputs are those of the two
//! models that this example ships. Simulated are the order, the noise, and a cloud that answers every
//! call. Prints one line per goal, and exits with 1 if one is missed.

use std::process::ExitCode;

use digits::simulation::{Output, Outputs, Random, share};
use neptune_cascade::{
    Share,
    cap::DEPTH,
    policy::{Decision, Goal, Policy, Route, Settings, Upload},
};

const SAMPLES: usize = 10_000;
const PHASE: usize = 6_000;
const WINDOW: usize = 500;
const SEEDS: u64 = 20;
const RATIO: f64 = 0.2;
/// Decides the first 50 samples.
const THRESHOLD: f64 = 0.75;

/// What became of a sequence of samples.
struct Run {
    /// Whether each sample was uploaded, as a hard sample or a shadow.
    uploads: Vec<bool>,
    right: Vec<bool>,
    /// The most uploads above the rate of the cap, in any window.
    burst: f64,
}

fn settings(has_shadows: bool) -> Settings {
    let goal = Goal::UploadRatio(Share::new(RATIO).expect("a number from 0 to 1"));
    let settings = Settings::new(goal, THRESHOLD);
    if has_shadows { settings } else { Settings { shadow_ratio: Share::ZERO, ..settings } }
}

/// Decides about all samples as the gateway does. With `is_random`, random samples are uploaded.
fn run(samples: &[&Output], settings: Settings, is_random: bool, seed: u64) -> Run {
    // Other numbers than those that drew the samples.
    let (mut policy, mut random) = (Policy::new(settings), Random::new(!seed));
    let (mut uploads, mut right) = (Vec::new(), Vec::new());
    let (mut burst, mut above) = (0.0_f64, 0.0_f64);
    for sample in samples {
        let confidence = if is_random { random.uniform() } else { sample.confidence };
        let decision = policy.decide(Ok(confidence), Route::Open, random.uniform());
        let is_hard = decision.is_upload();
        let mut is_shadow = false;
        if decision == Decision::Hard {
            policy.uploaded(confidence, Upload::Answered(Some(sample.agrees)));
        } else if decision == Decision::Easy && policy.take_shadow(Route::Open, random.uniform()) {
            policy.shadowed(confidence, sample.agrees);
            is_shadow = true;
        }
        uploads.push(is_hard || is_shadow);
        right.push(if is_hard { sample.is_cloud_right } else { sample.is_edge_right });
        // The greatest sum of a window that ends here.
        let change = f64::from(u8::from(is_hard || is_shadow)) - settings.max_ratio.get();
        above = above.max(0.0) + change;
        burst = burst.max(above);
    }
    Run { uploads, right, burst }
}

impl Run {
    fn total(&self) -> f64 {
        share(self.uploads.iter().copied())
    }

    fn worst_window(&self) -> f64 {
        let windows = self.uploads.windows(WINDOW);
        windows.map(|window| share(window.iter().copied())).fold(0.0, f64::max)
    }
}

/// An order of samples, with its name.
type Order<'a> = (String, Vec<&'a Output>);

/// Orders that are no random ones.
fn orders(outputs: &Outputs) -> Vec<Order<'_>> {
    let mut sorted: Vec<&Output> = outputs.clean.iter().cycle().take(SAMPLES).collect();
    sorted.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
    let reversed: Vec<_> = sorted.iter().rev().copied().collect();
    let mut by_digit = sorted.clone();
    by_digit.sort_by_key(|output| output.label);
    let mut orders = vec![
        ("easy first".to_owned(), sorted.clone()),
        ("hard first".to_owned(), reversed),
        ("by digit, easy first".to_owned(), by_digit),
    ];
    let (easy, hard) = sorted.split_at(SAMPLES / 2);
    for size in [1, 10, 50, 100, 250, 500, 1_000, 2_500] {
        let blocks = easy.chunks(size).zip(hard.chunks(size));
        let mixed = blocks.flat_map(|(easy, hard)| easy.iter().chain(hard)).copied().collect();
        orders.push((format!("blocks of {size} easy, {size} hard"), mixed));
    }
    // The extremes: all samples of a block have one confidence.
    let (first, last) = (sorted[0], sorted[SAMPLES - 1]);
    for size in [100, 500, 1_000] {
        let image = |index: usize| if (index / size).is_multiple_of(2) { first } else { last };
        orders.push((format!("blocks of {size} equal images"), (0..SAMPLES).map(image).collect()));
    }
    orders.push(("one image".to_owned(), vec![first; SAMPLES]));
    orders
}

/// Clean images, then noisy ones, then clean ones.
fn drifting<'a>(outputs: &'a Outputs, random: &mut Random) -> Vec<&'a Output> {
    let phases = [&outputs.clean, &outputs.noisy, &outputs.clean];
    let draw =
        |items: &'a Vec<Output>| (0..PHASE).map(|_| random.choose(items)).collect::<Vec<_>>();
    phases.into_iter().flat_map(draw).collect()
}

/// The goals, and whether all are met.
struct Report {
    are_met: bool,
}

impl Report {
    fn line(&mut self, name: &str, value: f64, limit: &str, is_met: bool) {
        self.are_met &= is_met;
        let verdict = if is_met { "passed" } else { "FAILED" };
        println!("{name:<52} {value:>8.4}   {limit:<9} {verdict}");
    }

    fn at_most(&mut self, name: &str, value: f64, limit: f64) {
        self.line(name, value, &format!("<= {limit}"), value <= limit + 1e-9);
    }

    fn at_least(&mut self, name: &str, value: f64, limit: f64) {
        self.line(name, value, &format!(">= {limit}"), value >= limit);
    }
}

/// The worst of several runs.
#[derive(Default)]
struct Worst {
    deviation: f64,
    window: f64,
    burst: f64,
}

impl Worst {
    fn add(&mut self, run: &Run) {
        self.deviation = self.deviation.max((run.total() - RATIO).abs());
        self.window = self.window.max(run.worst_window());
        self.burst = self.burst.max(run.burst);
    }

    fn report(&self, report: &mut Report, name: &str) {
        println!("{name}");
        report.at_most("  |uploads - 0.20| of all samples", self.deviation, 0.002);
        report.at_most("  highest share in a window of 500", self.window, 0.23);
        report.at_most("  uploads above the cap's rate, any window", self.burst, f64::from(DEPTH));
    }
}

fn main() -> ExitCode {
    let outputs = Outputs::of_the_shipped_models();
    let mut report = Report { are_met: true };
    println!(
        "goal 0.20; the worst of each order without shadows and with 2 % of them, which are part of it"
    );
    ratios(&outputs, &mut report);
    accuracies(&outputs, &mut report);
    if report.are_met {
        println!("all goals are met");
        ExitCode::SUCCESS
    } else {
        println!("goals are missed");
        ExitCode::FAILURE
    }
}

fn ratios(outputs: &Outputs, report: &mut Report) {
    let (mut shuffled, mut drift) = (Worst::default(), Worst::default());
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let samples: Vec<_> = (0..SAMPLES).map(|_| random.choose(&outputs.clean)).collect();
        let noisy = drifting(outputs, &mut random);
        for has_shadows in [false, true] {
            shuffled.add(&run(&samples, settings(has_shadows), false, seed));
            drift.add(&run(&noisy, settings(has_shadows), false, seed));
        }
    }
    shuffled.report(report, &format!("{SAMPLES} samples at random, {SEEDS} seeds"));
    drift.report(report, &format!("{PHASE} clean, {PHASE} noisy, {PHASE} clean, {SEEDS} seeds"));
    for (name, samples) in orders(outputs) {
        let mut worst = Worst::default();
        for has_shadows in [false, true] {
            worst.add(&run(&samples, settings(has_shadows), false, 1));
        }
        worst.report(report, &name);
    }
}

/// Means over the seeds.
fn accuracies(outputs: &Outputs, report: &mut Report) {
    let count = f64::from(u32::try_from(SEEDS).expect("a small number"));
    let random_uploads = Settings::new(Goal::Threshold, RATIO);
    let mut clean = [0.0; 3];
    let mut noisy = [0.0; 3];
    for seed in 0..SEEDS {
        let samples = drifting(outputs, &mut Random::new(seed));
        let ways = [(settings(false), false), (settings(true), false), (random_uploads, true)];
        for (way, (settings, is_random)) in ways.into_iter().enumerate() {
            let run = run(&samples, settings, is_random, seed);
            clean[way] += share(run.right[..PHASE].iter().copied()) / count;
            noisy[way] += share(run.right[PHASE..2 * PHASE].iter().copied()) / count;
        }
    }
    println!("share of right answers, mean of {SEEDS} seeds");
    for (name, accuracy, limit, samples) in
        [("clean", clean, 0.95, &outputs.clean), ("noisy", noisy, 0.82, &outputs.noisy)]
    {
        let alone = |is_right: fn(&Output) -> bool| share(samples.iter().map(is_right));
        let (edge, cloud) = (alone(|s| s.is_edge_right), alone(|s| s.is_cloud_right));
        report.at_least(&format!("  {name}: joint"), accuracy[0], limit);
        println!(
            "  {name}: joint with 2 % shadows {:.4}, random uploads {:.4}, edge only {edge:.4}, cloud only {cloud:.4}",
            accuracy[1], accuracy[2]
        );
    }
}
