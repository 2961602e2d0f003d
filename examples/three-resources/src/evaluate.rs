//! Measures joint inference: sends the held-out samples through a gateway, and to the model servers
//! behind it.

use digits::{
    evaluate::{images, share},
    samples::{Sample, held_out},
};
use serde::Serialize;

use crate::{client::Client, error::Error, source::Source};

/// Samples per call of a measurement of one model.
const BATCH: usize = 100;

/// A gateway, and the model servers that are measured beside it.
pub struct Targets {
    pub gateway: Client,
    pub edge: Option<Client>,
    pub cloud: Option<Client>,
}

/// Accuracies are 0 to 1. `inferenceNumber` and `hardExampleNumber` are what the gateway counts.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// `None` without a model server to measure.
    pub edge_only: Option<f64>,
    /// `None` without a model server to measure.
    pub cloud_only: Option<f64>,
    /// As many uploads of random samples; `None` without both model servers.
    pub random: Option<f64>,
    pub joint: f64,
    pub inference_number: usize,
    pub hard_example_number: usize,
    pub upload_cloud_ratio: f64,
}

/// Passes over the 600 held-out samples, one sample per request, and one pass for each model
/// server.
///
/// # Errors
/// When one of them does not answer, or the gateway is none.
pub async fn evaluate(targets: &Targets, passes: usize) -> Result<Summary, Error> {
    let samples = held_out();
    let (mut sent, mut right, mut hard) = (0, 0, 0);
    for sample in (0..passes).flat_map(|_| &samples) {
        let answer = targets.gateway.infer(std::slice::from_ref(&sample.pixels)).await?;
        let sources = answer.sources.as_deref();
        let sources = sources.ok_or_else(|| Error::NoGateway { url: targets.gateway.url() })?;
        sent += 1;
        right += usize::from(answer.classifications[0].label == sample.label);
        hard += usize::from(sources == [Source::Cloud]);
    }
    let edge_only = accuracy(targets.edge.as_ref(), &samples).await?;
    let cloud_only = accuracy(targets.cloud.as_ref(), &samples).await?;
    let upload_cloud_ratio = share(hard, sent);
    let random = |(edge, cloud): (f64, f64)| edge + upload_cloud_ratio * (cloud - edge);
    Ok(Summary {
        edge_only,
        cloud_only,
        random: edge_only.zip(cloud_only).map(random),
        joint: share(right, sent),
        inference_number: sent,
        hard_example_number: hard,
        upload_cloud_ratio,
    })
}

async fn accuracy(model: Option<&Client>, samples: &[Sample]) -> Result<Option<f64>, Error> {
    let Some(model) = model else { return Ok(None) };
    let mut right = 0;
    for batch in samples.chunks(BATCH) {
        let answer = model.infer(&images(batch)).await?;
        let both = batch.iter().zip(&answer.classifications);
        right +=
            both.filter(|(sample, classification)| sample.label == classification.label).count();
    }
    Ok(Some(share(right, samples.len())))
}
