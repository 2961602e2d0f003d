//! Reads model files: the JSON of this example, and the `.npz` of `examples/federated`. `model` checks
//! what they contain.

use std::fs::File;

use neptune_aggregate::weights::{Weights, WeightsError};

use crate::error::Error;
use crate::model::Model;

/// Values of a tensor. The models of this example have some thousands.
const MAX_VALUES: usize = 1 << 20;

/// Reads the model in the file at `path`.
///
/// # Errors
/// [`Error::ModelFile`] when it cannot be read, [`Error::Model`] when it is not a model of this
/// example.
pub fn read(path: &str) -> Result<Model, Error> {
    let unreadable = |source| Error::ModelFile { path: path.to_owned(), source };
    let content = std::fs::read(path).map_err(unreadable)?;
    let model = if content.starts_with(b"PK") {
        weights(File::open(path).map_err(unreadable)?).map_err(|error| error.to_string())
    } else {
        let text = std::str::from_utf8(&content).map_err(|error| error.to_string());
        text.and_then(Model::parse)
    };
    model.map_err(|reason| Error::Model { path: path.to_owned(), reason })
}

fn weights(file: File) -> Result<Model, WeightsOrModel> {
    let weights = Weights::open(file)?;
    let mut layers = Vec::new();
    for number in 1.. {
        let named = |kind: char| weights.tensor(&format!("{kind}{number}"));
        let Some((matrix, bias)) = named('w').zip(named('b')) else { break };
        let outputs = matrix.shape.last().copied().unwrap_or_default();
        let outputs = usize::try_from(outputs).unwrap_or(usize::MAX).max(1);
        let (matrix, bias) =
            (weights.values(matrix, MAX_VALUES)?, weights.values(bias, MAX_VALUES)?);
        let row = |output: usize| matrix.iter().skip(output).step_by(outputs).copied().collect();
        layers.push(((0..bias.len()).map(row).collect(), bias));
    }
    Model::of_layers(layers).map_err(WeightsOrModel::Model)
}

/// Why a `.npz` file is not a model.
#[derive(Debug, thiserror::Error)]
enum WeightsOrModel {
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error("{0}")]
    Model(String),
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::samples::Pixels;

    /// What examples/federated/train.py writes with `TASK=initialize HIDDEN=4 SEED=7`, and the
    /// probabilities that it computes for an image whose pixel i is i modulo 17.
    const NPZ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/federated.npz");
    const PROBABILITIES: [f64; 10] = [
        0.100_000_000,
        0.100_000_000,
        0.100_000_000,
        0.100_000_000,
        0.100_000_000,
        0.100_000_000,
        0.100_000_000,
        0.100_000_000,
        0.100_000_000,
        0.100_000_000,
    ];

    #[test]
    fn weights_of_numpy_give_the_probabilities_of_numpy() {
        let model = read(NPZ).unwrap();
        let mut pixels: Pixels = [0.0; 64];
        for (at, pixel) in (0_u8..).zip(&mut pixels) {
            *pixel = f64::from(at % 17);
        }
        let probabilities = model.infer(&pixels);
        assert_eq!(probabilities.len(), PROBABILITIES.len());
        for (computed, expected) in probabilities.iter().zip(PROBABILITIES) {
            assert!((computed - expected).abs() < 1e-6, "{computed} {expected}");
        }
    }

    #[test]
    fn file_that_is_no_model_is_refused_with_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.npz");
        for content in [&b"PK\x03\x04"[..], b"\xff\xfe", b"{}"] {
            std::fs::write(&path, content).unwrap();
            let error = read(path.to_str().unwrap()).unwrap_err().to_string();
            assert!(error.contains("model.npz is not a usable model: "), "{error}");
        }
    }
}
