//! How the confidence of a sample is computed: the names in `hardExample`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the confidence of a sample is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Algorithm {
    /// For a language model: from the log-probabilities of its tokens. The default with `openai`.
    LogProb,
    /// For a classifier: one minus the normalised entropy.
    CrossEntropy,
    /// For a classifier: the greatest probability. The default with `oip` and `tfserving`.
    MaxProbability,
    /// For a classifier: the greatest probability minus the second.
    Margin,
    /// For a detector: the share of boxes with a high score.
    #[serde(rename = "IBT")]
    Ibt,
    /// For a detector: the mean score of the boxes.
    Threshold,
    /// A random share, `goal.uploadRatio`.
    Random,
    /// Every sample is hard.
    CloudOnly,
    /// No sample is hard.
    EdgeOnly,
}

impl Algorithm {
    /// Every algorithm with its name.
    pub const NAMES: [(&str, Self); 9] = [
        ("LogProb", Self::LogProb),
        ("CrossEntropy", Self::CrossEntropy),
        ("MaxProbability", Self::MaxProbability),
        ("Margin", Self::Margin),
        ("IBT", Self::Ibt),
        ("Threshold", Self::Threshold),
        ("Random", Self::Random),
        ("CloudOnly", Self::CloudOnly),
        ("EdgeOnly", Self::EdgeOnly),
    ];

    /// What the algorithm reads of the edge's answer.
    pub const fn reads(self) -> Reads {
        match self {
            Self::LogProb => Reads::Tokens,
            Self::CrossEntropy | Self::MaxProbability | Self::Margin => Reads::Classes,
            Self::Ibt | Self::Threshold => Reads::Boxes,
            Self::Random | Self::CloudOnly | Self::EdgeOnly => Reads::Nothing,
        }
    }
}

/// What an algorithm reads of the edge's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Tokens with their log-probabilities.
    Tokens,
    /// The scores of classes.
    Classes,
    /// Boxes with their scores.
    Boxes,
    /// The algorithm does not read the answer.
    Nothing,
}

/// What the numbers of an output are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScoreKind {
    /// The numbers are probabilities, 0 to 1.
    Probabilities,
    /// The numbers are logits, before the softmax.
    Logits,
    /// `[xmin, ymin, xmax, ymax, score, label]` per box.
    Boxes,
}

impl ScoreKind {
    /// Every kind with its name.
    pub const NAMES: [(&str, Self); 3] =
        [("probabilities", Self::Probabilities), ("logits", Self::Logits), ("boxes", Self::Boxes)];
}

/// How the log-probabilities of an answer's tokens are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TokenRule {
    /// Geometric mean of the probabilities.
    #[default]
    Mean,
    /// The least probability of a token.
    Min,
    /// A quantile of the probabilities.
    Quantile,
    /// Mean difference of the two most probable tokens.
    Margin,
    /// The share of the best label at the first token.
    Choice,
}

impl TokenRule {
    /// Every rule with its name.
    pub const NAMES: [(&str, Self); 5] = [
        ("mean", Self::Mean),
        ("min", Self::Min),
        ("quantile", Self::Quantile),
        ("margin", Self::Margin),
        ("choice", Self::Choice),
    ];
}
