//! The worker at the edge, which receives every sample.

use std::collections::BTreeMap;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::{
    DatasetReference, EdgeModel, HardExampleAlgorithm, InferenceModelReference, ModelServer,
    WorkerSpec, rules,
};
use crate::{Placement, schema};

/// EdgeWorker is the worker on the edge node. It infers with the small model and decides which
/// samples are hard. Either nodeName or nodeSelector is set, and one of workerSpec, server and
/// inferenceModel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::edge_worker_placed(),
    validation = rules::edge_worker_placed_once(),
    validation = rules::one_edge_worker_kind(),
    validation = rules::edge_model_required(),
    validation = rules::edge_model_refused(),
    validation = rules::goal_needs_gateway(),
    validation = rules::dataset_needs_worker()
)]
pub struct EdgeWorker {
    /// name is the name of the worker: letters, digits, '-' and '.'. It is part of the name of the
    /// container.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = "^[A-Za-z0-9.-]+$"))]
    pub name: String,
    /// model refers to the small model. Required with workerSpec and server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<EdgeModel>,
    /// nodeName is the name of the edge node that runs the worker: a Node with the label
    /// node-role.kubernetes.io/edge or neptune.io/runtime=agent, on which neptune-edge runs with
    /// this node name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    #[x_kube(validation = crate::rules::node_name_not_reserved())]
    pub node_name: Option<String>,
    /// nodeSelector selects the edge nodes that run the worker by their labels, instead of
    /// nodeName.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// placement is on how many of the edge nodes that match nodeSelector the worker runs. One: on
    /// one of them, which is chosen and kept. All: on each of them, at most 10000; nodes may join and
    /// leave, and the counters of all are summed. Defaults to One.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// hardExampleAlgorithm is the algorithm by which the worker detects hard samples.
    pub hard_example_algorithm: HardExampleAlgorithm,
    /// silentAfterSeconds is the time without a sample after which the worker of a node is degraded with
    /// the reason NoSamples, such as with a frozen camera: 60 to 86400 seconds. It ends with the next
    /// sample. A rollout counts such a node as failed. Absent: no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 86_400))]
    pub silent_after_seconds: Option<i32>,
    /// dataset refers to a Dataset on the node of the worker, as input of the inference. It is
    /// mounted read-only, with its path in DATASET_URL and its format in DATASET_FORMAT. Only with
    /// workerSpec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<DatasetReference>,
    /// workerSpec describes a program of your own, which decides which samples are hard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_spec: Option<WorkerSpec>,
    /// server is a model server for model, instead of workerSpec. Neptune runs it as an
    /// InferenceModel, and a gateway in front of it that decides which samples are hard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<Box<ModelServer>>,
    /// inferenceModel refers to an InferenceModel on the nodes of the worker, instead of
    /// workerSpec. A gateway in front of it decides which samples are hard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference_model: Option<InferenceModelReference>,
}
