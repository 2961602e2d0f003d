//! References to other objects in the namespace of the service.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;
use crate::schema;

/// ModelReference refers to a Model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelReference {
    /// name is the name of a Model (edgeai.io) in the namespace of the service. It may be created
    /// later.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub name: String,
}

/// EdgeModel is the small model: a Model by name, or the best of the Models that labels select.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::edge_model_once(),
    validation = rules::selector_has_best(),
    validation = rules::selection_has_selector()
)]
pub struct EdgeModel {
    /// name is the name of a Model (edgeai.io) in the namespace of the service. It may be created
    /// later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub name: Option<String>,
    /// selector selects Models in the namespace of the service by their labels, instead of name.
    /// The best of them is used. spec.placement of the Models keeps them on the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<ModelSelector>,
    /// best is the key of the metric in status.metrics of the Models that decides, such as
    /// accuracy. Required with selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub best: Option<String>,
    /// mode is whether the highest (Max) or the lowest (Min) value is the best. Defaults to Max.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<SelectionMode>,
    /// margin is the minimum difference for which another model replaces the present one, in the
    /// unit of the metric, such as "0.005". Defaults to "0".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^[0-9]+(\.[0-9]+)?$"))]
    pub margin: Option<String>,
    /// dwellSeconds is the minimum time between two replacements for a better metric, in seconds. A
    /// model that is deleted or has failed is replaced at once. Defaults to 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub dwell_seconds: Option<i32>,
}

/// ModelSelector selects Models by their labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::selector_has_labels())]
pub struct ModelSelector {
    /// matchLabels are labels that each selected Model has, at least one.
    #[schemars(extend("maxProperties" = 64))]
    pub match_labels: BTreeMap<String, String>,
}

/// SelectionMode selects the best value of a metric.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectionMode {
    /// The highest value is the best.
    #[default]
    Max,
    /// The lowest value is the best.
    Min,
}

/// DatasetReference refers to a Dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatasetReference {
    /// name is the name of a Dataset (edgeai.io) in the namespace of the service. It may be created
    /// later.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub name: String,
}

/// InferenceModelReference refers to an InferenceModel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InferenceModelReference {
    /// name is the name of an InferenceModel (sedna.io) in the namespace of the service. It may
    /// be created later.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub name: String,
}

/// JointInferenceServiceReference refers to another JointInferenceService.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JointInferenceServiceReference {
    /// name is the name of another JointInferenceService in the namespace of the service. It may
    /// be created later.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub name: String,
    /// address is Node, to call the gateway at the address of its node, or Service, to call the
    /// Service of the gateway, which EdgeMesh routes, also to several nodes. By default, Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<TierAddress>,
    /// tokenFile is the name of a file with the key of this service, as a client of the other
    /// gateway, in the directory of secrets of the edge node: --secret-dir of its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH), regex(pattern = schema::FILE_NAME))]
    pub token_file: Option<String>,
    /// caFile is the name of a PEM file with certificates to trust in addition to those of the
    /// system, in the same directory. The certificate of the other gateway has to name its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH), regex(pattern = schema::FILE_NAME))]
    pub ca_file: Option<String>,
}

/// TierAddress selects the address at which the gateway of another service is called.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TierAddress {
    /// The gateway is called at the address of its node.
    #[default]
    Node,
    /// The gateway is called at its Service.
    Service,
}
