//! A sample that the edge answered with confidence, and that the cloud answers as well, after the
//! client has its answer.

use std::sync::Arc;

use neptune_cascade::Signal;

use super::Service;
use crate::{capture::Sample, protocol::Scores, upstream::CloudRequest};

/// Samples of one request.
#[derive(Debug)]
pub struct Shadow {
    /// The configuration of the request.
    pub service: Arc<Service>,
    /// The request to the cloud.
    pub request: CloudRequest,
    /// The confidence of each sample.
    pub signals: Vec<Signal>,
    /// The edge's answers.
    pub edge: EdgeAnswer,
    /// The samples to capture with the cloud's answer.
    pub sample: Option<Sample>,
}

/// What is compared.
#[derive(Debug)]
pub enum EdgeAnswer {
    /// Rows of a batch.
    Rows(Scores),
    /// A text.
    Text(String),
}
