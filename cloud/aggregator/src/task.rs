//! Tasks of a run: their IDs, their seeds, and which workers take part in a round. Pure.

use neptune_transfer::Digest;
use neptune_wire::{ContentHash, ObjectName, TaskId, TaskKind, canonical_json};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// All that the result of a task depends on. Its digest is the ID of the task.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct TaskIdentity<'a> {
    /// UID of the `TrainingModel`.
    pub uid: &'a str,
    /// Number of the run.
    pub run: u32,
    /// Number of the round, from 1.
    pub round: u32,
    /// What the program does with the weights.
    pub kind: TaskKind,
    /// SHA-256 of the weights to begin with.
    pub base: Option<&'a str>,
    /// Name of the worker; empty for an evaluation.
    pub worker: &'a str,
    /// The `Dataset` with the samples of the task.
    pub dataset: &'a ObjectName,
    /// Hash of what the containers are created from.
    pub workload: &'a ContentHash,
    /// Seed of the task.
    pub seed: u64,
}

impl TaskIdentity<'_> {
    /// Returns the SHA-256 of the canonical JSON.
    pub fn id(&self) -> TaskId {
        TaskId(Digest::of_bytes(canonical_json(self).as_bytes()).to_string())
    }
}

/// Returns the seed of a worker in a round: the first 31 bits of a SHA-256. Every generator of random
/// numbers takes that many.
pub fn seed(run_seed: u64, worker: &str, round: u32) -> u64 {
    let hash = Sha256::digest(format!("{run_seed}/{worker}/{round}").as_bytes());
    let first: [u8; 8] = hash[..8].try_into().expect("a SHA-256 has 32 bytes");
    u64::from_be_bytes(first) >> 33
}

/// Returns the workers in the order in which a round draws them: by the SHA-256 of seed, round and
/// name.
pub fn ranked<'a>(
    workers: impl Iterator<Item = &'a String>,
    run_seed: u64,
    round: u32,
) -> Vec<&'a String> {
    let rank = |worker: &str| Sha256::digest(format!("{run_seed}/{round}/{worker}").as_bytes());
    let mut ranked: Vec<_> = workers.map(|worker| (rank(worker), worker)).collect();
    ranked.sort();
    ranked.into_iter().map(|(_, worker)| worker).collect()
}

/// Returns how many of all workers a round draws. At least `min` and one.
pub fn sampled(workers: usize, fraction: f64, min: usize) -> usize {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of workers times a number from 0 to 1"
    )]
    // The subtraction absorbs the rounding of products such as 0.1 * 30.
    let share = (fraction.clamp(0.0, 1.0) * workers as f64 - 1e-9).ceil() as usize;
    share.max(min).max(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn identity<'a>(dataset: &'a ObjectName, workload: &'a ContentHash) -> TaskIdentity<'a> {
        TaskIdentity {
            uid: "u",
            run: 1,
            round: 2,
            kind: TaskKind::Train,
            base: Some("77aa"),
            worker: "a",
            dataset,
            workload,
            seed: 5,
        }
    }

    #[test]
    fn id_is_the_digest_of_canonical_json() {
        let (dataset, workload) = ("digits-a".parse().unwrap(), ContentHash::compute(&"workload"));
        let identity = identity(&dataset, &workload);
        let json = format!(
            r#"{{"base":"77aa","dataset":"digits-a","kind":"train","round":2,"run":1,"seed":5,"uid":"u","worker":"a","workload":"{workload}"}}"#
        );
        assert_eq!(identity.id().0, Digest::of_bytes(json.as_bytes()).to_string());
    }

    #[test]
    fn id_depends_on_each_part() {
        let (dataset, workload) = ("digits-a".parse().unwrap(), ContentHash::compute(&"workload"));
        let (other, new) = ("digits-b".parse().unwrap(), ContentHash::compute(&"other"));
        let first = identity(&dataset, &workload);
        let ids: BTreeSet<_> = [
            first,
            TaskIdentity { uid: "v", ..first },
            TaskIdentity { run: 2, ..first },
            TaskIdentity { round: 3, ..first },
            TaskIdentity { kind: TaskKind::Evaluate, ..first },
            TaskIdentity { base: None, ..first },
            TaskIdentity { worker: "b", ..first },
            TaskIdentity { dataset: &other, ..first },
            TaskIdentity { workload: &new, ..first },
            TaskIdentity { seed: 6, ..first },
        ]
        .map(|it| it.id().0)
        .into();
        assert_eq!(ids.len(), 10);
    }

    #[test]
    fn seed_is_stable_between_versions() {
        // printf 1/a/1 | sha256sum: the first 31 bits.
        let hash = Digest::of_bytes(b"1/a/1").to_string();
        let expected = u64::from_str_radix(&hash[..8], 16).unwrap() >> 1;
        assert_eq!(seed(1, "a", 1), expected);
        assert_ne!(seed(1, "a", 1), seed(1, "a", 2));
        assert_ne!(seed(1, "a", 1), seed(2, "a", 1));
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|at| format!("w{at}")).collect()
    }

    #[test]
    fn fraction_is_rounded_up_and_bounded() {
        for (workers, fraction, min, expected) in [
            (10, 0.3, 1, 3),
            (30, 0.1, 1, 3),
            (10, 0.31, 1, 4),
            (10, 0.1, 4, 4),
            (3, 1.0, 1, 3),
            (3, 0.5, 9, 3),
            (3, 0.0, 0, 1),
            (0, 1.0, 1, 0),
        ] {
            let names = names(workers);
            let drawn = sampled(names.len(), fraction, min).min(names.len());
            assert_eq!(drawn, expected, "{workers} {fraction} {min}");
        }
    }

    #[test]
    fn every_worker_is_selected_in_some_round() {
        let names = names(9);
        let all: BTreeSet<_> =
            (1..40).flat_map(|round| ranked(names.iter(), 7, round).into_iter().take(3)).collect();
        assert_eq!(all.len(), 9);
    }

    proptest! {
        #[test]
        fn selection_does_not_depend_on_the_order(seed: u64, round: u32, by in 0..12_usize) {
            let mut names = names(12);
            let draw = |names: &[String]| {
                ranked(names.iter(), seed, round).into_iter().cloned().collect::<Vec<_>>()
            };
            let first = draw(&names);
            names.rotate_left(by);
            prop_assert_eq!(draw(&names), first);
        }

        #[test]
        fn seeds_fit_a_signed_integer_of_32_bits(seed_: u64, worker in "[a-z]{0,8}", round: u32) {
            prop_assert!(i32::try_from(seed(seed_, &worker, round)).is_ok());
        }
    }
}
