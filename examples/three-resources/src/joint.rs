//! Joint inference: the edge's model answers, and the cloud's model answers hard samples.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use digits::{call::BREAKER, evaluate::is_hard, predict::Classification, samples::Pixels};
use hard_example::Rule;
use neptune_cascade::breaker::{Breaker, Failure};
use serde::Serialize;

use crate::{client::Client, error::Error};

/// The two models, and the rule that decides between them.
pub struct Joint {
    edge: Client,
    cloud: Option<Client>,
    judge: Mutex<Judge>,
}

struct Judge {
    rule: Rule,
    breaker: Breaker,
}

/// Which model answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    Edge,
    Cloud,
}

/// An answer and its origin.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// 0..=9.
    pub label: usize,
    /// One per digit.
    pub probabilities: Vec<f64>,
    /// Which model answered. The edge's answers a hard sample if the cloud does not.
    pub answered_by: Source,
    /// The version of the model that answered, if its server reports it.
    pub model_version: Option<String>,
    /// Whether the rule classified the sample as hard.
    pub hard: bool,
    /// The label of the edge's model.
    pub edge_label: usize,
}

impl Joint {
    /// Without a cloud, the edge's model answers all samples.
    pub fn new(edge: Client, cloud: Option<Client>, rule: Rule) -> Self {
        let judge = Mutex::new(Judge { rule, breaker: Breaker::new(BREAKER) });
        Self { edge, cloud, judge }
    }

    /// The cloud's model, for the cloud-only measurement.
    pub fn cloud(&self) -> Option<&Client> {
        self.cloud.as_ref()
    }

    /// Answers one image.
    ///
    /// # Errors
    /// When the edge's model does not answer. A missing answer of the cloud's is not an error.
    pub async fn infer(&self, image: &Pixels) -> Result<Decision, Error> {
        let (edge, edge_version) = infer_one(&self.edge, image).await?;
        let edge_label = edge.label;
        let hard = self.judge(|judge| is_hard(&mut judge.rule, &edge.probabilities));
        let cloud = if hard { self.call_cloud(image).await } else { None };
        let (answered_by, (classification, model_version)) = match cloud {
            Some(answer) => (Source::Cloud, answer),
            None => (Source::Edge, (edge, edge_version)),
        };
        let Classification { label, probabilities } = classification;
        Ok(Decision { label, probabilities, answered_by, model_version, hard, edge_label })
    }

    async fn call_cloud(&self, image: &Pixels) -> Option<(Classification, Option<String>)> {
        let cloud = self.cloud.as_ref()?;
        let permit = self.judge(|judge| judge.breaker.permit(Instant::now())).ok()?;
        let answer = infer_one(cloud, image).await;
        self.judge(|judge| match answer {
            Ok(answer) => {
                judge.breaker.succeeded(permit);
                Some(answer)
            }
            Err(error) => {
                eprintln!("using the edge model's answer: {error}");
                judge.breaker.failed(permit, Failure::NoAnswer, Instant::now(), 0.0);
                None
            }
        })
    }

    fn judge<T>(&self, with: impl FnOnce(&mut Judge) -> T) -> T {
        // The state of a rule that panicked is still valid.
        with(&mut self.judge.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn infer_one(
    model: &Client,
    image: &Pixels,
) -> Result<(Classification, Option<String>), Error> {
    let answer = model.infer(std::slice::from_ref(image)).await?;
    let classification = answer
        .classifications
        .into_iter()
        .next()
        .expect("one classification per sample was checked");
    Ok((classification, answer.version))
}
