//! Which samples are hard: the algorithm, its parameters and its goal.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;
use crate::{KeyValue, schema};

/// HardExampleAlgorithm is the algorithm that detects hard samples.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HardExampleAlgorithm {
    /// name is the name of the algorithm: IBT, Threshold, CrossEntropy, Random, CloudOnly,
    /// EdgeOnly, for a gateway also LogProb, MaxProbability and Margin, or one that the program of
    /// the worker implements. The worker receives it in HEM_NAME.
    #[schemars(length(min = 1, max = schema::MAX_TOKEN_LENGTH))]
    pub name: String,
    /// parameters are the parameters of the algorithm, such as threshold_img for IBT. The worker
    /// receives them in HEM_PARAMETERS, a JSON list of keys and values. Those of a gateway are
    /// threshold, output, kind, signal, quantile, labels (separated by commas) and threshold_box.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::unique_keys)]
    pub parameters: Vec<KeyValue>,
    /// goal is the goal that a gateway controls, instead of a fixed threshold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<Box<Goal>>,
}

/// Goal is the goal that a gateway controls. One of uploadRatio, totalUploadRatio and agreement is
/// set, or none of them for a cap on the uploads of a fixed threshold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::one_goal(),
    validation = rules::one_ratio(),
    validation = rules::cap_above_goal()
)]
pub struct Goal {
    /// uploadRatio is the share of samples that the cloud answers, 0 to 1 in quotes: "0.2".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = schema::SHARE))]
    pub upload_ratio: Option<String>,
    /// totalUploadRatio is for the last service of a chain: the share of the samples of the first
    /// services that the cloud of the last one answers, 0 to 1 in quotes: "0.05". Neptune sets the
    /// uploadRatio of the service from the counters of the services below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = schema::SHARE))]
    pub total_upload_ratio: Option<String>,
    /// agreement is the share of answers that equal those of the cloud, 0 to 1 in quotes: "0.97".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = schema::SHARE))]
    pub agreement: Option<String>,
    /// maxUploadRatio is the maximum share of samples that is sent to the cloud, 0 to 1 in quotes.
    /// Defaults to 1.5 times uploadRatio, or to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = schema::SHARE))]
    pub max_upload_ratio: Option<String>,
    /// shadowRatio is the share of easy samples that the cloud answers as well, for comparison, 0
    /// to 1 in quotes. Defaults to a tenth of uploadRatio, at most "0.02", to "0.02" with agreement,
    /// and to "0" without a goal. Answers of a language model are compared by the parameter labels;
    /// without it the default is "0".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = schema::SHARE))]
    pub shadow_ratio: Option<String>,
}
