//! Which samples are hard: the fields of `hardExample`, and what they mean for the cascade.

use neptune_cascade::{
    Share,
    boxes::BoxSignal,
    confidence::{ClassScores, ClassSignal},
    policy::{self, Settings},
    tokens::TokenSignal,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Algorithm, ConfigError, Protocol, Reads, ScoreKind, TokenRule};

/// Which samples are hard, and how many of them may go to the cloud.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct HardExample {
    /// How the confidence of a sample is computed. Defaults to one for the protocol.
    pub algorithm: Option<Algorithm>,
    /// The goal that the gateway controls. Without one, the threshold decides.
    pub goal: Goal,
    /// A sample with a lower confidence is hard. With a goal, only for the first samples.
    pub threshold: f64,
    /// Maximum share of samples that go to the cloud, 0 to 1.
    pub max_upload_ratio: Option<f64>,
    /// Share of easy samples that the cloud answers too, for comparison, 0 to 1.
    pub shadow_ratio: Option<f64>,
    /// Name of the output with the scores. Defaults to the first output that fits.
    pub output: Option<String>,
    /// Kind of the scores. Defaults to the kind that the algorithm reads.
    pub kind: Option<ScoreKind>,
    /// The combination of the tokens, for `LogProb`.
    pub tokens: TokenRule,
    /// The quantile that `LogProb` uses with the rule `quantile`, 0 to 1.
    pub quantile: f64,
    /// The answers that `LogProb` compares with the rule `choice`.
    pub labels: Vec<String>,
    /// Maximum score of a low box, for `IBT`.
    pub threshold_box: f64,
}

impl Default for HardExample {
    fn default() -> Self {
        Self {
            algorithm: None,
            goal: Goal::default(),
            threshold: 0.5,
            max_upload_ratio: None,
            shadow_ratio: None,
            output: None,
            kind: None,
            tokens: TokenRule::default(),
            quantile: 0.1,
            labels: Vec::new(),
            threshold_box: 0.5,
        }
    }
}

/// The goal that the gateway controls. At most one field.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Goal {
    /// Share of samples that the cloud answers, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upload_ratio: Option<f64>,
    /// Share of answers that are the cloud's, or equal to it, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agreement: Option<f64>,
}

/// What gives the confidence of a sample.
#[derive(Debug, Clone, PartialEq)]
pub enum Rule {
    /// The tokens of an answer.
    Tokens(TokenSignal),
    /// The scores of classes.
    Classes(ClassSignal, ClassScores),
    /// The scores of boxes.
    Boxes(BoxSignal),
    /// A random number from 0 to 1 is the confidence.
    Random,
    /// The same confidence for all samples.
    Constant,
}

impl HardExample {
    fn algorithm(&self, protocol: Protocol) -> Algorithm {
        self.algorithm.unwrap_or(match protocol {
            Protocol::Openai => Algorithm::LogProb,
            Protocol::Oip | Protocol::Tfserving => Algorithm::MaxProbability,
        })
    }

    /// What gives the confidence.
    ///
    /// # Errors
    /// The algorithm does not fit the protocol or the kind of the scores.
    pub fn rule(&self, protocol: Protocol) -> Result<Rule, ConfigError> {
        let algorithm = self.algorithm(protocol);
        let is_tensor = protocol != Protocol::Openai;
        let fits = match algorithm.reads() {
            Reads::Tokens => !is_tensor,
            Reads::Classes | Reads::Boxes => is_tensor,
            Reads::Nothing => true,
        };
        if !fits {
            return Err(ConfigError::Algorithm { algorithm, protocol });
        }
        let scores = match self.kind {
            Some(ScoreKind::Logits) => ClassScores::Logits,
            _ => ClassScores::Probabilities,
        };
        let are_boxes = self.kind == Some(ScoreKind::Boxes);
        Ok(match algorithm {
            Algorithm::LogProb => Rule::Tokens(self.token_signal()?),
            Algorithm::CrossEntropy | Algorithm::MaxProbability | Algorithm::Margin
                if are_boxes =>
            {
                return Err(ConfigError::Kind { algorithm, kind: ScoreKind::Boxes });
            }
            Algorithm::CrossEntropy => Rule::Classes(ClassSignal::CrossEntropy, scores),
            Algorithm::MaxProbability => Rule::Classes(ClassSignal::MaxProbability, scores),
            Algorithm::Margin => Rule::Classes(ClassSignal::Margin, scores),
            Algorithm::Ibt | Algorithm::Threshold if !are_boxes && self.kind.is_some() => {
                return Err(ConfigError::Kind { algorithm, kind: ScoreKind::Probabilities });
            }
            Algorithm::Ibt => Rule::Boxes(BoxSignal::Ibt { threshold_box: self.threshold_box }),
            Algorithm::Threshold => Rule::Boxes(BoxSignal::MeanScore),
            Algorithm::Random => Rule::Random,
            Algorithm::CloudOnly | Algorithm::EdgeOnly => Rule::Constant,
        })
    }

    fn token_signal(&self) -> Result<TokenSignal, ConfigError> {
        share("hardExample.quantile", self.quantile)?;
        Ok(match self.tokens {
            TokenRule::Mean => TokenSignal::Mean,
            TokenRule::Min => TokenSignal::Min,
            TokenRule::Quantile => TokenSignal::Quantile(self.quantile),
            TokenRule::Margin => TokenSignal::Margin,
            TokenRule::Choice if self.labels.len() < 2 => return Err(ConfigError::Labels),
            TokenRule::Choice => TokenSignal::Choice(self.labels.clone()),
        })
    }

    /// What the policy holds.
    ///
    /// # Errors
    /// A number out of range, or two goals.
    pub fn settings(&self, protocol: Protocol) -> Result<Settings, ConfigError> {
        let threshold = share("hardExample.threshold", self.threshold)?.get();
        let goal = match (self.goal.upload_ratio, self.goal.agreement) {
            (Some(_), Some(_)) => return Err(ConfigError::TwoGoals),
            (Some(ratio), None) => {
                policy::Goal::UploadRatio(share("hardExample.goal.uploadRatio", ratio)?)
            }
            (None, Some(agreement)) => {
                policy::Goal::Agreement(share("hardExample.goal.agreement", agreement)?)
            }
            (None, None) => policy::Goal::Threshold,
        };
        let mut settings = match (self.algorithm(protocol), goal) {
            // A uniform random number is below the ratio in that share of the cases.
            (Algorithm::Random, policy::Goal::UploadRatio(ratio)) => {
                Settings::new(policy::Goal::Threshold, ratio.get())
            }
            (Algorithm::Random, _) => return Err(ConfigError::RandomWithoutRatio),
            (Algorithm::CloudOnly, _) => Settings::new(policy::Goal::Threshold, 1.0),
            (Algorithm::EdgeOnly, _) => Settings::new(policy::Goal::Threshold, 0.0),
            (_, goal) => Settings::new(goal, threshold),
        };
        if let Some(max) = self.max_upload_ratio {
            settings.max_ratio = share("hardExample.maxUploadRatio", max)?;
        }
        if protocol == Protocol::Openai && self.labels.is_empty() {
            if self.goal.agreement.is_some() {
                return Err(ConfigError::AgreementWithoutLabels);
            }
            // Free texts are not compared.
            settings.shadow_ratio = Share::ZERO;
        }
        if let Some(shadows) = self.shadow_ratio {
            settings.shadow_ratio = share("hardExample.shadowRatio", shadows)?;
        }
        if let Some(ratio) = self.goal.upload_ratio
            && settings.max_ratio.get() < ratio - 1e-9
        {
            return Err(ConfigError::CapBelowGoal { cap: settings.max_ratio.get(), ratio });
        }
        Ok(settings)
    }
}

fn share(field: &'static str, value: f64) -> Result<Share, ConfigError> {
    Share::new(value).ok_or(ConfigError::Share { field, value })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde::de::DeserializeOwned;

    use super::*;

    fn check<T: DeserializeOwned + PartialEq + std::fmt::Debug>(names: &[(&str, T)]) {
        for (name, value) in names {
            assert_eq!(serde_json::from_value::<T>((*name).into()).unwrap(), *value);
        }
    }

    #[test]
    fn names_are_those_of_the_file() {
        check(&Algorithm::NAMES);
        check(&ScoreKind::NAMES);
        check(&TokenRule::NAMES);
    }
}
