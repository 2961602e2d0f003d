//! Samples that a gateway records for training.

use kube::KubeSchema;
use neptune_gateway_config::{Format, Labels, What};
use serde::{Deserialize, Serialize};

use crate::{rules, schema};

/// Capture records samples of the gateway in a directory of its node, with the answers of both
/// models. A Dataset counts them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capture {
    /// dataset is the name of a Dataset (edgeai.io) in the namespace of the service, on the node of
    /// the edge worker. Its format is jsonl, and its dataUrl the path of a directory in one that
    /// the agent of the node allows (--allow-capture-dir). The agent creates the directory.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub dataset: String,
    /// maxBytes is the maximum size of all records, at least 1Mi: a Kubernetes quantity in quotes.
    /// The oldest records are removed first. Defaults to "1Gi".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = rules::above_zero())]
    pub max_bytes: Option<String>,
    /// maxSamples is the maximum number of records; 0 for no bound. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_samples: Option<i64>,
    /// share is the share of the samples to record, 0 to 1, chosen at random. Defaults to "1".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = schema::SHARE))]
    pub share: Option<String>,
    /// what is which samples are recorded. Hard: hard samples that both models answered. Uploaded:
    /// samples that the cloud answered, also while the model server of the node is down. All: every
    /// sample, with the answer of the cloud if there is one. Defaults to Hard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<What>,
    /// labels is what the label of a record is. Cloud: the class or text that the model of the
    /// cloud answers. None: records have no label. Defaults to Cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<Labels>,
    /// format is the format of the records: jsonl, one JSON object per line. Defaults to jsonl.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// pinned: true records also requests that their client keeps at the edge (neverUpload), with
    /// what All. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
}
