//! The format of a model file, and inference. Pure; `model_file` reads the file.

use serde::Deserialize;

use crate::samples::Pixels;

const FORMAT: &str = "neptune-digits/1";
/// Number of classes: the digits.
pub const CLASSES: usize = 10;

/// A chain of dense layers that ends in ten probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    pool: u8,
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
struct File {
    format: String,
    pool: u8,
    layers: Vec<Layer>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Layer {
    activation: Activation,
    /// One row per output.
    weights: Vec<Vec<f64>>,
    bias: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Activation {
    Relu,
    Softmax,
}

impl Model {
    /// Reads a model file (format: README.md of this example).
    ///
    /// # Errors
    /// The reason, when the text is not such a model or its layers do not match.
    pub fn parse(json: &str) -> Result<Self, String> {
        let File { format, pool, layers } =
            serde_json::from_str(json).map_err(|error| error.to_string())?;
        if format != FORMAT {
            return Err(format!("format is {format:?}, expected {FORMAT:?}"));
        }
        Self::checked(pool, layers)
    }

    /// Makes a model of rows of weights and biases per layer. All layers are followed by a `ReLU`, the
    /// last one by a softmax. The input is not pooled.
    ///
    /// # Errors
    /// The layers do not match.
    pub fn of_layers(layers: Vec<(Vec<Vec<f64>>, Vec<f64>)>) -> Result<Self, String> {
        let last = layers.len().saturating_sub(1);
        let layers = layers.into_iter().enumerate().map(|(number, (weights, bias))| {
            let activation = if number == last { Activation::Softmax } else { Activation::Relu };
            Layer { activation, weights, bias }
        });
        Self::checked(1, layers.collect())
    }

    fn checked(pool: u8, layers: Vec<Layer>) -> Result<Self, String> {
        if !matches!(pool, 1 | 2 | 4 | 8) {
            return Err(format!("pool is {pool}, expected 1, 2, 4 or 8"));
        }
        let mut width = usize::from((8 / pool) * (8 / pool));
        for (number, layer) in layers.iter().enumerate() {
            layer.check(width).map_err(|reason| format!("layer {number}: {reason}"))?;
            width = layer.bias.len();
        }
        match layers.last() {
            Some(last) if last.activation == Activation::Softmax && width == CLASSES => {
                Ok(Self { pool, layers })
            }
            _ => Err(format!("the last layer must be a softmax over {CLASSES} classes")),
        }
    }

    /// One probability per digit. They add up to 1.
    pub fn infer(&self, pixels: &Pixels) -> Vec<f64> {
        self.layers.iter().fold(pooled(pixels, self.pool), |input, layer| layer.apply(&input))
    }
}

impl Layer {
    fn check(&self, inputs: usize) -> Result<(), String> {
        if self.bias.is_empty() || self.bias.len() != self.weights.len() {
            return Err(format!(
                "{} biases for {} rows of weights",
                self.bias.len(),
                self.weights.len()
            ));
        }
        match self.weights.iter().find(|row| row.len() != inputs) {
            Some(row) => Err(format!("a row has {} weights for {inputs} inputs", row.len())),
            None => Ok(()),
        }
    }

    fn apply(&self, input: &[f64]) -> Vec<f64> {
        let sums = self
            .weights
            .iter()
            .zip(&self.bias)
            .map(|(row, bias)| bias + row.iter().zip(input).map(|(w, x)| w * x).sum::<f64>());
        match self.activation {
            Activation::Relu => sums.map(|sum| sum.max(0.0)).collect(),
            Activation::Softmax => softmax(&sums.collect::<Vec<_>>()),
        }
    }
}

/// The class with the highest probability.
pub fn label(probabilities: &[f64]) -> usize {
    (0..probabilities.len())
        .max_by(|a, b| probabilities[*a].total_cmp(&probabilities[*b]))
        .unwrap_or(0)
}

/// Pixels scaled to 0..=1, averaged over squares of `pool` x `pool`, row by row.
fn pooled(pixels: &Pixels, pool: u8) -> Vec<f64> {
    let (square, area) = (usize::from(pool), f64::from(pool * pool));
    let side = 8 / square;
    let mut averages = vec![0.0; side * side];
    for (index, pixel) in pixels.iter().enumerate() {
        averages[(index / 8 / square) * side + (index % 8) / square] += pixel / 16.0 / area;
    }
    averages
}

/// Softmax. Sums are shifted by the greatest one, so that no exponential overflows.
fn softmax(sums: &[f64]) -> Vec<f64> {
    let greatest = sums.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = sums.iter().map(|sum| (sum - greatest).exp()).collect();
    let total: f64 = powers.iter().sum();
    powers.iter().map(|power| power / total).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn one_layer(pool: usize, inputs: usize, outputs: usize) -> serde_json::Value {
        serde_json::json!({
            "format": FORMAT, "pool": pool,
            "layers": [{"activation": "softmax", "weights": vec![vec![0.1; inputs]; outputs], "bias": vec![0.0; outputs]}],
        })
    }

    #[test]
    fn pooling_averages_squares_of_pixels_scaled_to_one() {
        let mut pixels = [0.0; 64];
        for (row, column, ink) in [(0, 0, 16.0), (0, 1, 8.0), (1, 1, 8.0), (7, 7, 16.0)] {
            pixels[row * 8 + column] = ink;
        }
        let two = pooled(&pixels, 2);
        assert_eq!((two.len(), two[0], two[1], two[15]), (16, 0.5, 0.0, 0.25));
        assert_eq!(pooled(&pixels, 8), [3.0 / 64.0]);
        assert_eq!(pooled(&pixels, 1)[0..2], [1.0, 0.5]);
    }

    #[test]
    fn layer_adds_weighted_inputs_to_its_bias() {
        let mut layer = Layer {
            activation: Activation::Relu,
            weights: vec![vec![1.0, -2.0], vec![0.5, 0.5]],
            bias: vec![0.5, 0.0],
        };
        assert_eq!(layer.apply(&[1.0, 1.0]), [0.0, 1.0]);
        layer.activation = Activation::Softmax;
        let probabilities = layer.apply(&[1000.0, 0.0]);
        assert!(
            (probabilities[0] - 1.0).abs() < 1e-12
                && (probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-12
        );
    }

    #[test]
    fn inconsistent_models_are_refused() {
        assert!(Model::parse(&one_layer(2, 16, 10).to_string()).is_ok());
        for (bad, reason) in [
            (one_layer(2, 64, 10), "64 weights for 16 inputs"),
            (one_layer(2, 16, 9), "softmax over 10 classes"),
            (one_layer(3, 4, 10), "pool is 3"),
            (serde_json::json!({"format": "onnx", "pool": 1, "layers": []}), "format is \"onnx\""),
            (
                serde_json::json!({"format": FORMAT, "pool": 1, "layers": []}),
                "softmax over 10 classes",
            ),
            (serde_json::json!([]), "invalid length"),
        ] {
            let error = Model::parse(&bad.to_string()).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn label_is_the_most_probable_class() {
        assert_eq!(label(&[0.1, 0.7, 0.2]), 1);
        assert_eq!(label(&[]), 0);
    }
}
