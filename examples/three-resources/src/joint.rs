//! Asks the edge's model, decides whether that is good enough, and else asks the cloud's.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use digits::{breaker::Breaker, evaluate::is_hard, predict::Judgement, samples::Pixels};
use hard_example::Rule;
use serde::Serialize;

use crate::{client::Client, error::Error};

/// The two models, and what decides between them.
pub struct Joint {
    edge: Client,
    cloud: Option<Client>,
    judge: Mutex<Judge>,
}

struct Judge {
    rule: Rule,
    breaker: Breaker,
}

/// Whose answer it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    Edge,
    Cloud,
}

/// An answer, and how it came about.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// 0..=9.
    pub label: usize,
    /// Ten, one a digit.
    pub probabilities: Vec<f64>,
    /// Whose answer it is. A hard sample's is the edge's when the cloud did not answer.
    pub answered_by: Source,
    /// The version of the model that gave it, if its server says so.
    pub model_version: Option<String>,
    /// Whether the rule found the edge's answer not good enough.
    pub hard: bool,
    /// The edge's own label.
    pub edge_label: usize,
}

impl Joint {
    /// Without a cloud every answer is the edge's.
    pub fn new(edge: Client, cloud: Option<Client>, rule: Rule) -> Self {
        let judge = Mutex::new(Judge { rule, breaker: Breaker::default() });
        Self { edge, cloud, judge }
    }

    /// The cloud's model, apart from joint inference.
    pub fn cloud(&self) -> Option<&Client> {
        self.cloud.as_ref()
    }

    /// The answer for one image.
    ///
    /// # Errors
    /// When the edge's model does not answer. That the cloud's does not is no error.
    pub async fn infer(&self, image: &Pixels) -> Result<Decision, Error> {
        let (edge, edge_version) = ask(&self.edge, image).await?;
        let edge_label = edge.label;
        let hard = self.judge(|judge| is_hard(&mut judge.rule, &edge.probabilities));
        let cloud = if hard { self.ask_cloud(image).await } else { None };
        let (answered_by, (judgement, model_version)) = match cloud {
            Some(answer) => (Source::Cloud, answer),
            None => (Source::Edge, (edge, edge_version)),
        };
        let Judgement { label, probabilities } = judgement;
        Ok(Decision { label, probabilities, answered_by, model_version, hard, edge_label })
    }

    async fn ask_cloud(&self, image: &Pixels) -> Option<(Judgement, Option<String>)> {
        let cloud = self.cloud.as_ref()?;
        if !self.judge(|judge| judge.breaker.allows(Instant::now())) {
            return None;
        }
        let answer = ask(cloud, image).await;
        self.judge(|judge| match answer {
            Ok(answer) => {
                judge.breaker.succeeded();
                Some(answer)
            }
            Err(error) => {
                eprintln!("the edge's answer is used: {error}");
                judge.breaker.failed(Instant::now());
                None
            }
        })
    }

    fn judge<T>(&self, with: impl FnOnce(&mut Judge) -> T) -> T {
        // A rule that panicked has changed nothing that the next sample needs.
        with(&mut self.judge.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn ask(model: &Client, image: &Pixels) -> Result<(Judgement, Option<String>), Error> {
    let answer = model.infer(std::slice::from_ref(image)).await?;
    let judgement = answer.judgements.into_iter().next().expect("one a sample was checked");
    Ok((judgement, answer.version))
}
