//! Checks one worker's update against the weights it was trained from.

use serde::{Deserialize, Serialize};

use crate::{
    CHUNK,
    weights::{Columns, Tensor, Weights, WeightsError},
};

/// Why an update cannot be used. The text continues `worker "b" sent ...`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A tensor has another type or shape, is missing, or is not in the base.
    #[error("{0}")]
    ShapeMismatch(String),
    /// A number is infinite or not a number.
    #[error("{value} in \"{tensor}\" (first at {at})")]
    NotFinite {
        /// Name of the tensor.
        tensor: String,
        /// Index of the first such element, in the order of the data.
        at: u64,
        /// The value: `NaN` or an infinity.
        value: String,
    },
}

/// What is known of an update that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct UpdateSummary {
    /// The Euclidean norm of the difference to the base, over all floating-point tensors. Summed in
    /// f64, in the order of the base's tensors.
    pub norm: f64,
}

/// Compares an update with its base.
///
/// # Errors
/// A file cannot be read.
pub fn check(
    base: &Weights,
    update: &Weights,
) -> Result<Result<UpdateSummary, Refusal>, WeightsError> {
    if let Err(refusal) = compare(base, update) {
        return Ok(Err(refusal));
    }
    let mut squares = 0.0;
    let (mut chunks, mut before, mut after) = (Vec::new(), Vec::new(), Vec::new());
    for tensor in base.tensors().iter().filter(|it| it.data_type.is_float()) {
        let mut columns = Columns::open(&[base, update], tensor, CHUNK)?;
        let mut at = 0;
        while columns.next(&mut chunks)? {
            tensor.data_type.decode(&chunks[0], &mut before);
            tensor.data_type.decode(&chunks[1], &mut after);
            if let Some(index) = after.iter().position(|it| !it.is_finite()) {
                let tensor = tensor.name.clone();
                let value = after[index].to_string();
                return Ok(Err(Refusal::NotFinite { tensor, at: at + index as u64, value }));
            }
            squares += before.iter().zip(&after).map(|(b, x)| (x - b) * (x - b)).sum::<f64>();
            at += after.len() as u64;
        }
    }
    Ok(Ok(UpdateSummary { norm: squares.sqrt() }))
}

fn compare(base: &Weights, update: &Weights) -> Result<(), Refusal> {
    for expected in base.tensors() {
        let name = &expected.name;
        let Some(sent) = update.tensor(name) else {
            return Err(Refusal::ShapeMismatch(format!("no tensor \"{name}\"")));
        };
        let text = if sent.shape != expected.shape {
            let (sent, expected) = (shape(sent), shape(expected));
            format!("tensor \"{name}\" with shape {sent}, the base has {expected}")
        } else if sent.data_type != expected.data_type {
            let (sent, expected) = (sent.data_type, expected.data_type);
            format!("tensor \"{name}\" with type {sent}, the base has {expected}")
        } else if sent.fortran_order != expected.fortran_order {
            format!("tensor \"{name}\" in another order of dimensions than the base")
        } else {
            continue;
        };
        return Err(Refusal::ShapeMismatch(text));
    }
    let unknown = update.tensors().iter().find(|it| base.tensor(&it.name).is_none());
    unknown.map_or(Ok(()), |tensor| {
        Err(Refusal::ShapeMismatch(format!(
            "tensor \"{}\", which the base does not have",
            tensor.name
        )))
    })
}

fn shape(tensor: &Tensor) -> String {
    let sizes: Vec<_> = tensor.shape.iter().map(u64::to_string).collect();
    format!("[{}]", sizes.join(","))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::{one, open, safetensors};
    use crate::weights::DataType;

    #[test]
    fn norm_is_that_of_the_difference() {
        let summary = check(&one(&[1.0, 2.0, 0.0]), &one(&[4.0, 2.0, 4.0])).unwrap();
        assert_eq!(summary, Ok(UpdateSummary { norm: 5.0 }));
    }

    #[test]
    fn each_difference_of_shape_is_named() {
        let tensor = |name: &str, data_type: DataType, shape: &[u64]| {
            let elements = usize::try_from(shape.iter().product::<u64>()).unwrap();
            (name.to_owned(), data_type, shape.to_vec(), vec![0; elements * data_type.size()])
        };
        let base = [tensor("w1", DataType::F32, &[64, 32]), tensor("b1", DataType::F32, &[64])];
        let base = open(&safetensors(&base)).unwrap();
        let b1 = || tensor("b1", DataType::F32, &[64]);
        for (sent, expected) in [
            (
                vec![tensor("w1", DataType::F32, &[64, 16]), b1()],
                "tensor \"w1\" with shape [64,16], the base has [64,32]",
            ),
            (
                vec![tensor("w1", DataType::F64, &[64, 32]), b1()],
                "tensor \"w1\" with type F64, the base has F32",
            ),
            (vec![b1()], "no tensor \"w1\""),
            (
                vec![tensor("w1", DataType::F32, &[64, 32]), b1(), tensor("x", DataType::U8, &[1])],
                "tensor \"x\", which the base does not have",
            ),
        ] {
            let refusal = check(&base, &open(&safetensors(&sent)).unwrap()).unwrap().unwrap_err();
            assert!(matches!(refusal, Refusal::ShapeMismatch(_)));
            assert_eq!(refusal.to_string(), expected);
        }
    }

    #[test]
    fn first_number_that_is_not_finite_is_named() {
        let base = one(&vec![0.0; 200_000]);
        let mut values = vec![0.0; 200_000];
        values[130_000] = f32::NAN;
        values[130_001] = f32::INFINITY;
        let refusal = check(&base, &one(&values)).unwrap().unwrap_err();
        assert_eq!(refusal.to_string(), "NaN in \"w\" (first at 130000)");
    }
}
