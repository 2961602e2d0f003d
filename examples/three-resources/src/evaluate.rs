//! Evaluates the app: runs joint inference on the held-out samples and computes the accuracies.

use digits::{
    evaluate::{images, share},
    samples::{Sample, held_out},
};
use serde::Serialize;

use crate::{
    client::Client,
    error::Error,
    joint::{Joint, Source},
};

/// Samples per call of the cloud-only measurement.
const BATCH: usize = 100;

/// Accuracies are 0 to 1. A hard example counts if the cloud answered.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    pub edge_only: f64,
    /// `None` when the cloud did not answer for every sample.
    pub cloud_only: Option<f64>,
    pub joint: f64,
    pub inference_number: usize,
    pub hard_example_number: usize,
    pub upload_cloud_ratio: f64,
}

/// One pass over the 600 held-out samples.
///
/// # Errors
/// When the edge's model does not answer.
pub async fn evaluate(joint: &Joint) -> Result<Summary, Error> {
    let samples = held_out();
    let (mut edge, mut right, mut hard) = (0, 0, 0);
    for sample in &samples {
        let decision = joint.infer(&sample.pixels).await?;
        edge += usize::from(decision.edge_label == sample.label);
        right += usize::from(decision.label == sample.label);
        hard += usize::from(decision.answered_by == Source::Cloud);
    }
    let cloud_only = match joint.cloud() {
        Some(cloud) => accuracy(cloud, &samples).await.map_or_else(
            |error| {
                eprintln!("cannot measure the cloud-only accuracy: {error}");
                None
            },
            Some,
        ),
        None => None,
    };
    Ok(Summary {
        edge_only: share(edge, samples.len()),
        cloud_only,
        joint: share(right, samples.len()),
        inference_number: samples.len(),
        hard_example_number: hard,
        upload_cloud_ratio: share(hard, samples.len()),
    })
}

async fn accuracy(model: &Client, samples: &[Sample]) -> Result<f64, Error> {
    let mut right = 0;
    for batch in samples.chunks(BATCH) {
        let answer = model.infer(&images(batch)).await?;
        let both = batch.iter().zip(&answer.classifications);
        right +=
            both.filter(|(sample, classification)| sample.label == classification.label).count();
    }
    Ok(share(right, samples.len()))
}
