#![allow(clippy::unwrap_used)]

use std::os::unix::fs::FileExt;

use proptest::prelude::*;

use super::*;
use crate::{
    close::{CloseEntry, Rule, WeightBy},
    testing::{TestTensor, file, one, open, safetensors},
};

fn record(strategy: AggregationStrategy, shares: &[(f64, f64)], momentum: f64) -> CloseRecord {
    let entries = shares.iter().enumerate().map(|(at, (weight, factor))| CloseEntry {
        worker: format!("{at:02}"),
        sha256: String::new(),
        weight: *weight,
        factor: *factor,
    });
    let rule = Rule {
        strategy,
        weights: WeightBy::Samples,
        max_weight: 1.0,
        clip: None,
        refuse: None,
        server_learning_rate: 0.5,
        server_momentum: momentum,
    };
    CloseRecord { rule, entries: entries.collect(), refused: Vec::new() }
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn values(file: &File) -> Vec<f32> {
    let bytes = content(file);
    let data = &bytes[bytes.iter().rposition(|it| *it == b'}').unwrap() + 1..];
    data.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect()
}

fn new_weights(record: &CloseRecord, inputs: Inputs<'_>) -> Vec<f32> {
    let output = file();
    aggregate(record, inputs, output.try_clone().unwrap(), None).unwrap();
    values(&output)
}

#[test]
fn mean_is_weighted_clipped_and_scaled_by_the_rate() {
    let base = one(&[1.0, 10.0]);
    let updates = [one(&[3.0, 10.0]), one(&[1.0, 6.0])];
    let record = record(AggregationStrategy::FedAvg, &[(0.75, 1.0), (0.25, 0.5)], 0.0);
    let updates: Vec<_> = updates.iter().collect();
    let inputs = Inputs { base: &base, updates: &updates, velocity: None };
    // 1 + 0.5 * 0.75 * 2, and 10 + 0.5 * 0.25 * 0.5 * -4.
    assert_eq!(new_weights(&record, inputs), [1.75, 9.75]);
}

#[test]
fn trimmed_mean_ignores_one_extreme_worker() {
    let base = one(&[0.0]);
    let updates = [one(&[1.0]), one(&[2.0]), one(&[3.0]), one(&[-1e9]), one(&[2.0])];
    let updates: Vec<_> = updates.iter().collect();
    let record = record(AggregationStrategy::TrimmedMean(0.2), &[(0.2, 1.0); 5], 0.0);
    let inputs = Inputs { base: &base, updates: &updates, velocity: None };
    let mean = f64::from(1 + 2 + 2) / 3.0;
    #[allow(clippy::cast_possible_truncation)]
    let expected = (0.5 * mean) as f32;
    assert_eq!(new_weights(&record, inputs), [expected]);
}

#[test]
fn trimmed_mean_of_three_drops_one_at_each_end() {
    let base = one(&[0.0]);
    let updates = [one(&[1e9]), one(&[4.0]), one(&[-1e9])];
    let updates: Vec<_> = updates.iter().collect();
    let inputs = Inputs { base: &base, updates: &updates, velocity: None };
    for (trim, expected) in [(0.2, 2.0), (0.0, 0.5 * 4.0 / 3.0)] {
        let record = record(AggregationStrategy::TrimmedMean(trim), &[(0.3, 1.0); 3], 0.0);
        assert_eq!(new_weights(&record, inputs), [expected]);
    }
}

#[test]
fn trimmed_mean_is_of_the_differences_from_a_base_that_is_not_zero() {
    let base = one(&[10.0]);
    let updates = [one(&[11.0]), one(&[14.0]), one(&[90.0])];
    let updates: Vec<_> = updates.iter().collect();
    let inputs = Inputs { base: &base, updates: &updates, velocity: None };
    let record = record(AggregationStrategy::TrimmedMean(0.2), &[(0.3, 1.0); 3], 0.0);
    // 14 is in the middle: 10 + 0.5 * 4.
    assert_eq!(new_weights(&record, inputs), [12.0]);
}

#[test]
fn trimmed_mean_keeps_the_middle_of_any_number_of_updates_with_the_largest_trim() {
    let base = one(&[0.0]);
    let all = [8.0, -80.0, 4.0, 800.0, 6.0].map(|value| one(&[value]));
    for (count, expected) in [(1, 8.0), (2, -36.0), (3, 4.0), (4, 6.0), (5, 6.0)] {
        let updates: Vec<_> = all[..count].iter().collect();
        let inputs = Inputs { base: &base, updates: &updates, velocity: None };
        let shares = vec![(0.2, 1.0); count];
        let record = record(AggregationStrategy::TrimmedMean(0.5), &shares, 0.0);
        assert_eq!(new_weights(&record, inputs), [0.5 * expected], "{count}");
    }
}

#[test]
fn trimmed_mean_takes_clipped_differences() {
    let base = one(&[0.0]);
    let updates = [one(&[8.0]), one(&[2.0]), one(&[6.0])];
    let updates: Vec<_> = updates.iter().collect();
    let shares = [(0.3, 0.5), (0.3, 1.0), (0.4, 1.0)];
    let record = record(AggregationStrategy::TrimmedMean(0.2), &shares, 0.0);
    let inputs = Inputs { base: &base, updates: &updates, velocity: None };
    // The differences are 4, 2 and 6: the middle one is left.
    assert_eq!(new_weights(&record, inputs), [0.5 * 4.0]);
}

#[test]
fn momentum_carries_over_to_the_next_round() {
    let base = one(&[0.0]);
    let update = one(&[4.0]);
    let record = record(AggregationStrategy::FedAvg, &[(1.0, 1.0)], 0.5);
    let inputs = Inputs { base: &base, updates: &[&update], velocity: None };
    let (first, velocity) = (file(), file());
    let clone = |file: &File| file.try_clone().unwrap();
    aggregate(&record, inputs, clone(&first), Some(clone(&velocity))).unwrap();
    assert_eq!(values(&first), [2.0]);
    assert_eq!(values(&velocity), [4.0]);
    let (base, velocity) = (Weights::open(first).unwrap(), Weights::open(velocity).unwrap());
    let inputs = Inputs { base: &base, updates: &[&update], velocity: Some(&velocity) };
    // v = 0.5 * 4 + (4 - 2) and w = 2 + 0.5 v.
    assert_eq!(new_weights(&record, inputs), [4.0]);
}

#[test]
fn momentum_is_a_share_of_the_velocity_before() {
    let (base, update, velocity) = (one(&[0.0]), one(&[10.0]), one(&[4.0]));
    let record = record(AggregationStrategy::FedAvg, &[(1.0, 1.0)], 0.25);
    let inputs = Inputs { base: &base, updates: &[&update], velocity: Some(&velocity) };
    // v = 0.25 * 4 + 10 and w = 0.5 v.
    assert_eq!(new_weights(&record, inputs), [5.5]);
}

#[test]
fn chunks_are_256_kib_and_of_many_files_at_most_64_mib_together() {
    for (files, bytes) in [(0, 262_144), (1, 262_144), (256, 262_144), (1024, 65_536)] {
        assert_eq!(bounded(CHUNK, files), bytes, "{files}");
    }
    assert_eq!(bounded(CHUNK, 1000), 67_104, "a multiple of 8");
    assert_eq!(bounded(CHUNK, 100_000_000), 8);
    assert_eq!(bounded(64, 3), 64);
}

#[test]
fn changed_integers_are_those_of_the_heaviest_update() {
    let steps = |value: i64| {
        let bytes = value.to_le_bytes().to_vec();
        open(&safetensors(&[("n".to_owned(), DataType::I64, vec![], bytes)])).unwrap()
    };
    let base = steps(7);
    let result = |updates: [i64; 3]| {
        let updates = updates.map(steps);
        let updates: Vec<_> = updates.iter().collect();
        let record =
            record(AggregationStrategy::FedAvg, &[(0.3, 1.0), (0.4, 1.0), (0.3, 1.0)], 0.0);
        let inputs = Inputs { base: &base, updates: &updates, velocity: None };
        let output = file();
        aggregate(&record, inputs, output.try_clone().unwrap(), None).unwrap();
        let bytes = content(&output);
        i64::from_le_bytes(*bytes.last_chunk().unwrap())
    };
    assert_eq!(result([7, 7, 7]), 7);
    assert_eq!(result([8, 9, 10]), 9);
}

#[test]
fn sum_beyond_the_range_is_an_error() {
    let base = one(&[-f32::MAX]);
    let update = one(&[f32::MAX]);
    let mut record = record(AggregationStrategy::FedAvg, &[(1.0, 1.0)], 0.0);
    record.rule.server_learning_rate = 2.0;
    let inputs = Inputs { base: &base, updates: &[&update], velocity: None };
    let error = aggregate(&record, inputs, file(), None).unwrap_err();
    assert_eq!(error.to_string(), "the new weights of \"w\" exceed the range of F32");
}

/// The same computation with whole tensors, element by element.
fn reference(record: &CloseRecord, base: &[TestTensor], updates: &[Vec<TestTensor>]) -> Vec<u8> {
    let tensors = base.iter().enumerate().map(|(at, (name, data_type, shape, base))| {
        let decode = |bytes: &[u8]| {
            let mut values = Vec::new();
            data_type.decode(bytes, &mut values);
            values
        };
        let (base, mut new) = (decode(base), Vec::new());
        let updates: Vec<_> = updates.iter().map(|it| decode(&it[at].3)).collect();
        for (element, base) in base.iter().enumerate() {
            let mut mean = 0.0;
            for (entry, update) in record.entries.iter().zip(&updates) {
                mean += entry.weight * entry.factor * (update[element] - base);
            }
            new.push(base + record.rule.server_learning_rate * mean);
        }
        let mut bytes = Vec::new();
        data_type.encode(&new, &mut bytes);
        (name.clone(), *data_type, shape.clone(), bytes)
    });
    safetensors(&tensors.collect::<Vec<_>>())
}

fn float_type() -> impl Strategy<Value = DataType> {
    prop_oneof![Just(DataType::F64), Just(DataType::F32), Just(DataType::F16), Just(DataType::Bf16)]
}

fn tensors(
    layout: Vec<(DataType, usize)>,
    files: usize,
) -> impl Strategy<Value = Vec<Vec<TestTensor>>> {
    let elements: usize = layout.iter().map(|(_, length)| *length).sum();
    prop::collection::vec(prop::collection::vec(-8.0..8.0_f64, elements), files).prop_map(
        move |files| {
            let file = |values: Vec<f64>| {
                let mut values = &values[..];
                let tensors = layout.iter().enumerate().map(|(at, (data_type, length))| {
                    let (own, rest) = values.split_at(*length);
                    values = rest;
                    let mut bytes = Vec::new();
                    data_type.encode(own, &mut bytes);
                    (format!("t{at}"), *data_type, vec![*length as u64], bytes)
                });
                tensors.collect()
            };
            files.into_iter().map(file).collect()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn bytes_equal_the_reference_for_any_chunk_size(
        (files, shares, chunk) in (
            prop::collection::vec((float_type(), 0..40_usize), 1..4),
            prop::collection::vec((0.0..1.0, 0.1..1.0), 1..20),
            1..30_usize,
        ).prop_flat_map(|(layout, shares, chunk)| {
            (tensors(layout, shares.len() + 1), Just(shares), Just(8 * chunk))
        })
    ) {
        let (base, updates) = files.split_first().unwrap();
        let record = record(AggregationStrategy::FedAvg, &shares, 0.0);
        let opened: Vec<_> = updates.iter().map(|it| open(&safetensors(it)).unwrap()).collect();
        let opened: Vec<_> = opened.iter().collect();
        let base_file = open(&safetensors(base)).unwrap();
        let inputs = Inputs { base: &base_file, updates: &opened, velocity: None };
        let output = file();
        aggregate_in_chunks(&record, inputs, output.try_clone().unwrap(), None, chunk).unwrap();
        prop_assert_eq!(content(&output), reference(&record, base, updates));
    }
}
