//! What edge and cloud say to each other: `{"data": [[64 numbers], ...]}` and `{"result": [...]}`, one result a sample in the same order. Pure.

use serde::{Deserialize, Serialize};

use crate::model::{Model, label};
use crate::samples::{Pixels, pixels};

#[derive(Debug, Serialize, Deserialize)]
pub struct Question {
    pub data: Vec<Vec<f64>>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    pub result: Vec<Judgement>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Judgement {
    /// 0..=9.
    pub label: usize,
    /// Ten, one a digit.
    pub probabilities: Vec<f64>,
}

impl Question {
    pub fn new(images: &[Pixels]) -> Self {
        Self { data: images.iter().map(|image| image.to_vec()).collect() }
    }

    /// What `model` makes of each sample.
    ///
    /// # Errors
    /// Which sample is no image, and why; then none is answered.
    pub fn answer(&self, model: &Model) -> Result<Answer, String> {
        let judge = |(number, sample): (usize, &Vec<f64>)| {
            let image = pixels(sample).map_err(|reason| format!("data[{number}]: {reason}"))?;
            let probabilities = model.infer(&image);
            Ok(Judgement { label: label(&probabilities), probabilities })
        };
        Ok(Answer {
            result: self.data.iter().enumerate().map(judge).collect::<Result<_, String>>()?,
        })
    }
}

impl Answer {
    /// The digits in the answer to `asked` samples.
    ///
    /// # Errors
    /// Another number of results, or a label that is no digit.
    pub fn labels(&self, asked: usize) -> Result<Vec<usize>, String> {
        if self.result.len() != asked {
            return Err(format!("{} results for {asked} samples", self.result.len()));
        }
        match self.result.iter().find(|judgement| judgement.label > 9) {
            Some(judgement) => Err(format!("label {} is no digit", judgement.label)),
            None => Ok(self.result.iter().map(|judgement| judgement.label).collect()),
        }
    }
}
