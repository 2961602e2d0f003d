//! Computes the new weights of a round, chunk by chunk: the same part of all updates at a time, in
//! the order of the [record](CloseRecord).

use std::{fs::File, io::Write};

use crate::{
    CHUNK,
    close::{AggregationStrategy, CloseRecord},
    weights::{Columns, DataType, Tensor, Weights, WeightsError, WeightsWriter},
};

/// Memory for the chunks of all updates.
const MAX_CHUNKS: usize = 64 * 1024 * 1024;

/// Why there are no new weights.
#[derive(Debug, thiserror::Error)]
pub enum AggregateError {
    /// A file cannot be read or written.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The new weights cannot be written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The record and the files do not belong together.
    #[error("the round has {expected} updates, {given} files were given")]
    Count {
        /// Number of updates in the record.
        expected: usize,
        /// Number of given files.
        given: usize,
    },
    /// The new weights do not fit into their type.
    #[error("the new weights of \"{tensor}\" exceed the range of {data_type}")]
    Overflow {
        /// Name of the tensor.
        tensor: String,
        /// The type of the tensor's elements.
        data_type: DataType,
    },
}

/// The files of a round.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// The weights that the round began with.
    pub base: &'a Weights,
    /// The updates, in the order of the record's entries, each
    /// [checked](crate::update::check) against the base.
    pub updates: &'a [&'a Weights],
    /// The momentum after the round before: a file with the layout of the base. `None` in the first
    /// round and without momentum.
    pub velocity: Option<&'a Weights>,
}

/// Writes the new weights, and the momentum for the next round if `velocity` is given. The bytes are
/// a function of the record and the inputs.
///
/// Values are added in f64 and rounded once. Tensors of integers are not averaged: they are the
/// base's if all updates have them unchanged, else those of the update with the largest weight.
///
/// # Errors
/// A file cannot be read or written, or a value exceeds its type.
pub fn aggregate(
    record: &CloseRecord,
    inputs: Inputs<'_>,
    output: File,
    velocity: Option<File>,
) -> Result<(), AggregateError> {
    aggregate_in_chunks(record, inputs, output, velocity, CHUNK)
}

fn aggregate_in_chunks(
    record: &CloseRecord,
    inputs: Inputs<'_>,
    output: File,
    velocity: Option<File>,
    chunk: usize,
) -> Result<(), AggregateError> {
    let Inputs { base, updates, .. } = inputs;
    if updates.len() != record.entries.len() || updates.is_empty() {
        return Err(AggregateError::Count { expected: record.entries.len(), given: updates.len() });
    }
    let files = [base].into_iter().chain(updates.iter().copied()).chain(inputs.velocity);
    let files: Vec<_> = files.collect();
    let mut output = WeightsWriter::create(output, base)?;
    let mut velocity = velocity.map(|file| WeightsWriter::create(file, base)).transpose()?;
    for tensor in base.tensors() {
        output.begin(tensor)?;
        if let Some(velocity) = &mut velocity {
            velocity.begin(tensor)?;
        }
        if tensor.data_type.is_float() {
            let columns = Columns::open(&files, tensor, bounded(chunk, files.len()))?;
            floats(record, tensor, columns, &mut output, velocity.as_mut())?;
        } else {
            integers(record, tensor, &inputs, &mut output, velocity.as_mut())?;
        }
    }
    output.finish()?;
    velocity.map(WeightsWriter::finish).transpose()?;
    Ok(())
}

/// The columns are the base, the updates, and the momentum if there is one.
fn floats(
    record: &CloseRecord,
    tensor: &Tensor,
    mut columns: Columns<'_>,
    output: &mut WeightsWriter,
    mut velocity_output: Option<&mut WeightsWriter>,
) -> Result<(), AggregateError> {
    let (mut chunks, mut bytes) = (Vec::new(), Vec::new());
    let mut values: Vec<Vec<f64>> = Vec::new();
    let updates = 1..=record.entries.len();
    while columns.next(&mut chunks)? {
        values.resize_with(chunks.len(), Vec::new);
        for (values, chunk) in values.iter_mut().zip(&chunks) {
            tensor.data_type.decode(chunk, values);
        }
        let base = &values[0];
        let mut mean = match record.rule.strategy {
            AggregationStrategy::FedAvg => weighted_mean(record, base, &values[updates.clone()]),
            AggregationStrategy::TrimmedMean(trim) => {
                trimmed_mean(record, base, &values[updates.clone()], trim)
            }
        };
        if let Some(velocity) = values.get(files_with_velocity(record)) {
            let momentum = record.rule.server_momentum;
            mean.iter_mut().zip(velocity).for_each(|(it, before)| *it += momentum * before);
        }
        if let Some(output) = velocity_output.as_deref_mut() {
            write(tensor, &mean, &mut bytes, output)?;
        }
        let rate = record.rule.server_learning_rate;
        mean.iter_mut().zip(base).for_each(|(it, base)| *it = base + rate * *it);
        write(tensor, &mean, &mut bytes, output)?;
    }
    Ok(())
}

/// The index of the momentum behind the base and the updates.
fn files_with_velocity(record: &CloseRecord) -> usize {
    record.entries.len() + 1
}

fn bounded(chunk: usize, files: usize) -> usize {
    let limit = MAX_CHUNKS / files.max(1);
    chunk.min(limit - limit % 8).max(8)
}

fn weighted_mean(record: &CloseRecord, base: &[f64], updates: &[Vec<f64>]) -> Vec<f64> {
    let mut sums = vec![0.0; base.len()];
    for (entry, update) in record.entries.iter().zip(updates) {
        let share = entry.weight * entry.factor;
        for ((sum, value), base) in sums.iter_mut().zip(update).zip(base) {
            *sum += share * (value - base);
        }
    }
    sums
}

fn trimmed_mean(record: &CloseRecord, base: &[f64], updates: &[Vec<f64>], trim: f64) -> Vec<f64> {
    let count = updates.len();
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of workers times a number from 0 to 0.5"
    )]
    let share = (trim.clamp(0.0, 0.5) * count as f64) as usize;
    // Of three or more, a share above 0 drops at least one: a small round is trimmed too.
    let dropped = share.max(usize::from(trim > 0.0)).min((count - 1) / 2);
    let mut column = vec![0.0; count];
    let element = |at: usize| {
        for ((value, update), entry) in column.iter_mut().zip(updates).zip(&record.entries) {
            *value = entry.factor * (update[at] - base[at]);
        }
        column.sort_by(f64::total_cmp);
        let kept = &column[dropped..count - dropped];
        #[allow(clippy::cast_precision_loss, reason = "a number of workers")]
        let mean = kept.iter().sum::<f64>() / kept.len() as f64;
        mean
    };
    (0..base.len()).map(element).collect()
}

fn write(
    tensor: &Tensor,
    values: &[f64],
    bytes: &mut Vec<u8>,
    output: &mut WeightsWriter,
) -> Result<(), AggregateError> {
    let data_type = tensor.data_type;
    data_type.encode(values, bytes);
    let mut rounded = Vec::new();
    data_type.decode(bytes, &mut rounded);
    if rounded.iter().any(|it| !it.is_finite()) {
        return Err(AggregateError::Overflow { tensor: tensor.name.clone(), data_type });
    }
    Ok(output.write_all(bytes)?)
}

fn integers(
    record: &CloseRecord,
    tensor: &Tensor,
    inputs: &Inputs<'_>,
    output: &mut WeightsWriter,
    mut velocity_output: Option<&mut WeightsWriter>,
) -> Result<(), AggregateError> {
    let files: Vec<_> = [inputs.base].into_iter().chain(inputs.updates.iter().copied()).collect();
    let heaviest = || {
        let entries = record.entries.iter().enumerate();
        // The first of equal ones.
        let heaviest = entries.rev().max_by(|(_, a), (_, b)| a.weight.total_cmp(&b.weight));
        heaviest.map_or(0, |(at, _)| at + 1)
    };
    let source = if is_unchanged(tensor, &files)? { 0 } else { heaviest() };
    let mut columns = Columns::open(&files[source..=source], tensor, CHUNK)?;
    let mut chunks = Vec::new();
    while columns.next(&mut chunks)? {
        output.write_all(&chunks[0])?;
        if let Some(output) = velocity_output.as_deref_mut() {
            output.write_all(&vec![0; chunks[0].len()])?;
        }
    }
    Ok(())
}

fn is_unchanged(tensor: &Tensor, files: &[&Weights]) -> Result<bool, WeightsError> {
    let mut columns = Columns::open(files, tensor, bounded(CHUNK, files.len()))?;
    let mut chunks = Vec::new();
    while columns.next(&mut chunks)? {
        if chunks.iter().any(|it| *it != chunks[0]) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
