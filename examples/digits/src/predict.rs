//! Requests and responses between edge and cloud: `{"data": [[64 numbers], ...]}` and `{"result":
//! [...]}`, one result per sample in the same order. Pure.

use serde::{Deserialize, Serialize};

use crate::model::{Model, label};
use crate::samples::{Pixels, pixels};

#[derive(Debug, Serialize, Deserialize)]
pub struct PredictRequest {
    pub data: Vec<Vec<f64>>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct PredictResponse {
    pub result: Vec<Classification>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Classification {
    /// The most probable digit, 0 to 9.
    pub label: usize,
    /// The probability of each digit.
    pub probabilities: Vec<f64>,
}

impl PredictRequest {
    pub fn new(images: &[Pixels]) -> Self {
        Self { data: images.iter().map(|image| image.to_vec()).collect() }
    }

    /// Classifies each sample with `model`.
    ///
    /// # Errors
    /// The first invalid sample and the reason.
    pub fn answer(&self, model: &Model) -> Result<PredictResponse, String> {
        let judge = |(number, sample): (usize, &Vec<f64>)| {
            let image = pixels(sample).map_err(|reason| format!("data[{number}]: {reason}"))?;
            let probabilities = model.infer(&image);
            Ok(Classification { label: label(&probabilities), probabilities })
        };
        Ok(PredictResponse {
            result: self.data.iter().enumerate().map(judge).collect::<Result<_, String>>()?,
        })
    }
}

impl PredictResponse {
    /// The labels in the response for this number of samples.
    ///
    /// # Errors
    /// Another number of results, or a label that is not a digit.
    pub fn labels(&self, samples: usize) -> Result<Vec<usize>, String> {
        if self.result.len() != samples {
            return Err(format!("{} results for {samples} samples", self.result.len()));
        }
        match self.result.iter().find(|classification| classification.label > 9) {
            Some(classification) => Err(format!("label {} is not a digit", classification.label)),
            None => Ok(self.result.iter().map(|classification| classification.label).collect()),
        }
    }
}
