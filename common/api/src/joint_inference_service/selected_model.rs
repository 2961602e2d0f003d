//! The model that `edgeWorker.model.selector` chose.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// SelectedModel is the Model that edgeWorker.model.selector chose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SelectedModel {
    /// name is the name of the Model.
    pub name: String,
    /// cause is why it was chosen.
    pub cause: SelectionCause,
    /// reason is why it was chosen, with the values at that time.
    pub reason: String,
    /// since is when it was chosen.
    pub since: Time,
    /// candidates is the number of Models that the labels select.
    pub candidates: i32,
    /// failed are the Models that are no candidates because their file failed; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedModel>,
    /// notCompared lists the Models whose metric counts as not measured, because it was measured
    /// with other data than the metrics that decide; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_compared: Vec<NotComparedModel>,
}

/// NotComparedModel is a Model whose metric was measured with other data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotComparedModel {
    /// name is the name of the Model.
    pub name: String,
    /// message is a human-readable explanation, and the remedy.
    pub message: String,
}

/// FailedModel is a Model whose file failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailedModel {
    /// name is the name of the Model.
    pub name: String,
    /// version is the version of the model server that failed. Another file has another version.
    pub version: String,
    /// until is when it is a candidate again.
    pub until: Time,
}

/// SelectionCause is why a Model was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum SelectionCause {
    /// No model was selected before.
    First,
    /// The metric of the model is better than that of the previous one.
    Better,
    /// The previous model is no candidate any more.
    Missing,
    /// The previous model failed to load.
    Failed,
}

impl fmt::Display for SelectionCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "First",
            Self::Better => "Better",
            Self::Missing => "Missing",
            Self::Failed => "Failed",
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn causes_are_shown_as_they_are_stored() {
        use SelectionCause::{Better, Failed, First, Missing};
        for cause in [First, Better, Missing, Failed] {
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.to_string());
        }
    }
}
