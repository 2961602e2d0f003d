//! What the last service of a chain sends up, so that all samples of the chain together meet
//! `goal.totalUploadRatio`.
//!
//! The share of all samples that arrives at a tier is the product of the shares that the tiers below
//! send up: `R = r1 * r2 * ...`. So the last tier sends up `total / R` of its own samples.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::jiff::Timestamp;

/// Bounds of the share that the last tier sends up.
const BOUNDS: (f64, f64) = (0.01, 1.0);

/// The most that the share changes in one step.
const STEP: f64 = 0.1;

/// The least time between two steps, in seconds.
const STEP_SECONDS: i64 = 3_600;

/// The relative change of the ratio below which the ratio stays as it is.
const DEAD_BAND: f64 = 0.02;

/// Samples of a tier from which on its counters are used instead of its goal.
const MEASURED: u64 = 1_000;

/// A service whose hard samples go to the next tier.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tier {
    /// Name of the service.
    pub name: String,
    /// The `goal.uploadRatio` of the service, if it has one.
    pub goal: Option<f64>,
    /// Number of samples that the tier counted.
    pub samples: u64,
    /// Number of those samples that a tier above answered.
    pub sent_up: u64,
    /// The services that name it, sorted by name.
    pub below: Vec<Tier>,
}

/// What a controller keeps of the last service of a chain between two statuses. A change of the chain
/// or of a goal drops it; a change of counters is marked, and only what is marked is read again.
#[derive(Debug, Default)]
pub struct TotalMemory {
    tiers: Option<Arc<Vec<Tier>>>,
    changed: BTreeSet<String>,
}

impl TotalMemory {
    /// The counters of a service below changed.
    pub fn mark(&mut self, service: &str) {
        self.changed.insert(service.to_owned());
    }

    /// Takes the tiers, if some were put, and the services whose counters have to be read again.
    pub fn take(&mut self) -> (Option<Arc<Vec<Tier>>>, BTreeSet<String>) {
        (self.tiers.take(), std::mem::take(&mut self.changed))
    }

    /// Puts the tiers back.
    pub fn put(&mut self, tiers: Arc<Vec<Tier>>) {
        self.tiers = Some(tiers);
    }
}

/// Sets the counters of a tier. `path` has the names from the service next to the last one down to
/// the tier. A tier that is not there is left out: then the chain differs, and is read again.
pub fn set_counters(tiers: &mut [Tier], path: &[String], (samples, sent_up): (u64, u64)) {
    let Some((name, rest)) = path.split_first() else { return };
    let Ok(at) = tiers.binary_search_by(|tier| tier.name.cmp(name)) else { return };
    let tier = &mut tiers[at];
    if rest.is_empty() {
        (tier.samples, tier.sent_up) = (samples, sent_up);
    } else {
        set_counters(&mut tier.below, rest, (samples, sent_up));
    }
}

/// The share that is set for the last tier, and since when.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Held {
    /// The goal for the chain: `goal.totalUploadRatio`, from 0 to 1.
    pub total: f64,
    /// The share of its samples that the last tier sends up.
    pub ratio: f64,
    /// When `ratio` was set.
    pub since: Timestamp,
}

/// What the last service of a chain sends up.
#[derive(Debug, Clone, PartialEq)]
pub struct TotalUpload {
    /// The share that is set now.
    pub held: Held,
    /// Why the goal cannot be reached.
    pub unreachable: Option<String>,
    /// The services below the last one, as a tree.
    pub tiers: Arc<Vec<Tier>>,
}

impl Tier {
    /// The share of its samples that it sends up, if it is known.
    fn share(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a ratio of counters below 2^53")]
        let measured = || (self.sent_up as f64 / self.samples as f64).min(1.0);
        if self.samples >= MEASURED { Some(measured()) } else { self.goal }
    }
}

/// The share of the samples of the first tiers that arrives above these tiers; 1 without any.
/// `None` while one of them is not known.
fn reach(tiers: &[Tier]) -> Option<f64> {
    arriving(tiers).map(|(_, reach)| reach)
}

/// The samples that enter the chain below, and the share of them that arrives above these tiers.
fn arriving(tiers: &[Tier]) -> Option<(f64, f64)> {
    let (mut entered, mut arrived) = (0.0, 0.0);
    for tier in tiers {
        let (samples, reach) = if tier.below.is_empty() {
            #[expect(clippy::cast_precision_loss, reason = "a weight")]
            let samples = tier.samples as f64;
            // Without samples all first tiers count the same.
            (samples.max(1.0), 1.0)
        } else {
            arriving(&tier.below)?
        };
        entered += samples;
        arrived += samples * reach * tier.share()?;
    }
    Some(if tiers.is_empty() { (1.0, 1.0) } else { (entered, arrived / entered) })
}

/// What the last tier sends up now, with these tiers below it.
pub fn next_total(total: f64, tiers: &[Tier], held: Option<Held>, now: Timestamp) -> Held {
    // A clock that was ahead stored it. It would delay the next step until then.
    let held = held.map(|held| Held { since: held.since.min(now), ..held });
    // Until something is measured, only specs changed.
    let is_same = |held: &Held| (held.total - total).abs() < f64::EPSILON;
    let (planned, held) = match held.filter(is_same) {
        Some(held) if !is_measured(tiers) => (Some(held), None),
        held => (None, held),
    };
    let after = step(total, reach(tiers), held, now);
    let is_unchanged = |planned: &Held| planned.ratio.to_bits() == after.ratio.to_bits();
    planned.filter(is_unchanged).unwrap_or(after)
}

/// Whether the counters of a tier are used.
fn is_measured(tiers: &[Tier]) -> bool {
    tiers.iter().any(|tier| tier.samples >= MEASURED || is_measured(&tier.below))
}

fn step(total: f64, reach: Option<f64>, held: Option<Held>, now: Timestamp) -> Held {
    let wanted = reach.map(|reach| (total / reach).clamp(BOUNDS.0, BOUNDS.1));
    let new = |ratio: f64| Held { total, ratio: (ratio * 1e4).round() / 1e4, since: now };
    match (held, wanted) {
        (None, Some(wanted)) => new(wanted),
        // As if every sample came here: never too much.
        (None, None) => new(total.clamp(BOUNDS.0, BOUNDS.1)),
        (Some(held), None) => held,
        (Some(held), Some(wanted)) => {
            let change = wanted / held.ratio - 1.0;
            let is_due = now.as_second().saturating_sub(held.since.as_second()) >= STEP_SECONDS;
            if change.abs() < DEAD_BAND || !is_due {
                return held;
            }
            // Rounded towards the present ratio, so that no step is larger.
            let ratio = held.ratio * (1.0 + change.clamp(-STEP, STEP));
            let round = if change > 0.0 { f64::floor } else { f64::ceil };
            Held { total, ratio: round(ratio * 1e4) / 1e4, since: now }
        }
    }
}

/// Why the goal cannot be reached: the tiers below send up less.
pub fn unreachable_total(total: f64, tiers: &[Tier]) -> Option<String> {
    let reach = reach(tiers).filter(|reach| *reach < total)?;
    let least = least(tiers)?;
    let share = if tiers.len() == 1 && tiers[0].below.is_empty() {
        reach
    } else {
        least.share().unwrap_or_default()
    };
    Some(format!(
        "totalUploadRatio {total} cannot be reached: service {:?} sends up only {} of its samples",
        least.name,
        (share * 1e3).round() / 1e3
    ))
}

/// The tier that sends up the least.
fn least(tiers: &[Tier]) -> Option<&Tier> {
    let all = tiers.iter().flat_map(|tier| [Some(tier), least(&tier.below)]).flatten();
    let share = |tier: &Tier| tier.share().unwrap_or(1.0);
    all.min_by(|a, b| share(a).total_cmp(&share(b)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn tier(name: &str, samples: u64, sent_up: u64, below: Vec<Tier>) -> Tier {
        Tier { name: name.to_owned(), goal: None, samples, sent_up, below }
    }

    #[test]
    fn held_ratio_of_the_future_counts_as_of_now() {
        let held = Held { total: 0.1, ratio: 0.1, since: at(7200) };
        assert_eq!(next_total(0.1, &[], Some(held), at(0)), Held { since: at(0), ..held });
    }

    #[expect(clippy::float_cmp, reason = "rounded to four decimals")]
    #[test]
    fn last_tier_sends_up_what_is_missing() {
        let ratio = |total, tiers: &[Tier]| next_total(total, tiers, None, at(0)).ratio;
        let cam = tier("cam", 10_000, 2_000, Vec::new());
        assert_eq!(ratio(0.05, std::slice::from_ref(&cam)), 0.25);
        let middle = tier("box", 2_000, 1_000, vec![cam]);
        assert_eq!(ratio(0.05, &[middle]), 0.5);
        assert_eq!(ratio(0.05, &[]), 0.05, "a chain of one");
        let planned = Tier { goal: Some(0.2), samples: MEASURED - 1, ..Tier::default() };
        assert_eq!(ratio(0.05, &[planned]), 0.25);
        let unknown = tier("cam", 10, 1, Vec::new());
        assert_eq!(ratio(0.05, &[unknown]), 0.05, "never too much");
    }

    #[test]
    fn counters_of_one_tier_are_set_by_its_path() {
        let below = vec![tier("cam-a", 10, 1, Vec::new()), tier("cam-b", 20, 2, Vec::new())];
        let mut tiers = vec![tier("box", 3, 1, below), tier("cam-b", 30, 3, Vec::new())];
        let before = tiers.clone();
        let path = |names: &[&str]| -> Vec<_> { names.iter().map(ToString::to_string).collect() };
        set_counters(&mut tiers, &path(&["box", "cam-b"]), (40, 4));
        let counters = |tier: &Tier| (tier.samples, tier.sent_up);
        assert_eq!(counters(&tiers[0].below[1]), (40, 4));
        assert_eq!((&tiers[0].below[0], &tiers[1]), (&before[0].below[0], &before[1]));
        let set = tiers.clone();
        for unknown in [&["box", "cam-c"][..], &["cam-b", "box"], &[]] {
            set_counters(&mut tiers, &path(unknown), (50, 5));
            assert_eq!(tiers, set, "{unknown:?}");
        }
    }

    #[test]
    fn several_first_tiers_count_by_their_samples() {
        let (busy, idle) = (tier("a", 9_000, 900, Vec::new()), tier("b", 1_000, 1_000, Vec::new()));
        assert!((reach(&[busy, idle]).unwrap() - 0.19).abs() < 1e-9);
    }

    #[test]
    fn goal_above_what_arrives_is_named() {
        let cam = tier("cam", 10_000, 500, Vec::new());
        assert_eq!(
            unreachable_total(0.2, std::slice::from_ref(&cam)).unwrap(),
            "totalUploadRatio 0.2 cannot be reached: service \"cam\" sends up only 0.05 of its \
     samples"
        );
        assert_eq!(unreachable_total(0.05, std::slice::from_ref(&cam)), None);
        let cam = tier("cam", 100_000, 5_000, Vec::new());
        let middle = tier("box", 5_000, 4_000, vec![cam]);
        assert!(unreachable_total(0.2, &[middle]).unwrap().contains("\"cam\" sends up only 0.05"));
    }

    #[test]
    fn another_goal_takes_effect_at_once() {
        let cam = |sent_up| [tier("cam", 10_000, sent_up, Vec::new())];
        let held = next_total(0.05, &cam(2_000), None, at(0));
        assert_eq!(
            next_total(0.1, &cam(2_000), Some(held), at(1)),
            Held { total: 0.1, ratio: 0.5, since: at(1) }
        );
        assert_eq!(
            next_total(0.05, &cam(1_000), Some(held), at(1)),
            held,
            "the tiers below changed"
        );
    }

    #[test]
    fn service_that_joins_before_its_first_samples_takes_effect_at_once() {
        let alone = next_total(0.1, &[], None, at(0));
        let cam = [Tier { goal: Some(0.4), ..Tier::default() }];
        let joined = next_total(0.1, &cam, Some(alone), at(1));
        assert_eq!(joined, Held { total: 0.1, ratio: 0.25, since: at(1) });
        assert_eq!(next_total(0.1, &cam, Some(joined), at(9)), joined, "its time stays");
    }

    proptest! {
        /// However the tiers below change and whenever it is asked.
        #[test]
        fn share_changes_at_most_a_tenth_an_hour_within_its_bounds(
            total in 0.0_f64..=1.0,
            steps in prop::collection::vec((prop::option::of(0.0_f64..=1.0), 0_i64..8_000), 1..60),
        ) {
            let mut held: Option<Held> = None;
            let mut now = 0;
            for (reach, wait) in steps {
                now += wait;
                let after = step(total, reach, held, at(now));
                prop_assert!((BOUNDS.0..=BOUNDS.1).contains(&after.ratio), "{after:?}");
                if let Some(before) = held && before.ratio.to_bits() != after.ratio.to_bits() {
                    prop_assert!((after.ratio / before.ratio - 1.0).abs() <= STEP + 1e-9);
                    prop_assert!(now - before.since.as_second() >= STEP_SECONDS);
                }
                held = Some(after);
            }
        }

        /// Tiers that do not change: the total is met after enough hours, if that is possible.
        #[test]
        fn total_is_held_if_the_tiers_below_send_up_enough(
            total in 0.02_f64..0.3,
            first in 0.3_f64..=1.0,
            later in 0.3_f64..=1.0,
        ) {
            let mut held = step(total, Some(first), None, at(0));
            for hour in 1..40 {
                held = step(total, Some(later), Some(held), at(hour * STEP_SECONDS));
            }
            // The band is a share of the ratio that is set.
            let arrives = held.ratio * later;
            prop_assert!((arrives - total).abs() <= arrives * DEAD_BAND + 1e-4);
        }

        /// Each tier sends up at most its cap: then at most the product arrives above.
        #[test]
        fn product_of_caps_bounds_what_arrives(
            caps in prop::collection::vec((0.0_f64..=1.0, 0.0_f64..=1.0), 1..7),
            samples in 1_000_u64..100_000_000,
        ) {
            let (mut below, mut arriving, mut product) = (Vec::new(), samples, 1.0);
            for (cap, used) in caps {
                #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a test")]
                let sent_up = (arriving as f64 * cap * used) as u64;
                if arriving < MEASURED {
                    break;
                }
                below = vec![tier("t", arriving, sent_up, std::mem::take(&mut below))];
                arriving = sent_up;
                product *= cap;
            }
            prop_assert!(reach(&below).unwrap() <= product + 1e-12);
        }
    }
}
