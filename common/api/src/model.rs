//! `Model` of `edgeai.io/v1alpha1`: a model file or directory that workers load.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{KeyValue, ModelMetadata, SecretReference, rules, schema};

/// ModelSpec describes the location and format of a model.
#[derive(
    CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema,
)]
#[kube(
    group = "edgeai.io",
    version = "v1alpha1",
    kind = "Model",
    plural = "models",
    namespaced,
    status = "ModelStatus",
    derive = "PartialEq",
    doc = "Model is a machine learning model that workers of a JointInferenceService use. A change is delivered to every node that uses the model.",
    printcolumn(
        name = "updateAGE",
        type_ = "date",
        description = "Time since the last update of the metrics",
        json_path = ".status.updateTime"
    ),
    printcolumn(
        name = "metrics",
        type_ = "string",
        description = "Quality metrics of the model",
        json_path = ".status.metrics"
    ),
    printcolumn(
        name = "Nodes",
        type_ = "string",
        description = "Number of nodes that have the model, of those that use it",
        json_path = ".status.presentOn"
    ),
    printcolumn(
        name = "Placed",
        type_ = "string",
        description = "Number of nodes of the placement that have the model, of all of them",
        json_path = ".status.placed"
    ),
    printcolumn(
        name = "UsedBy",
        type_ = "string",
        description = "Objects that use the model",
        json_path = ".status.usedBy"
    ),
    printcolumn(
        name = "Task",
        type_ = "string",
        description = "What the model is for",
        json_path = ".spec.metadata.task",
        priority = 1
    ),
    printcolumn(
        name = "Version",
        type_ = "string",
        description = "Version of the model, as its maker names it",
        json_path = ".spec.metadata.version",
        priority = 1
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        description = "Whether every node that uses the model has it",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        priority = 1
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        description = "Reason of the Ready condition",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::never_null)]
#[x_kube(validation = rules::mirrors_verified())]
pub struct ModelSpec {
    /// modelUrl is the location of the model. Either an absolute path on the node of the worker
    /// ("/model/frozen.pb" or "file:///model/frozen.pb"), which is mounted in place if the
    /// agent's --allow-model-dir or, for a Pod, the controller's --allow-host-path contains it. Or
    /// an http(s) or s3 URL (s3://bucket/key), a file or repository of a model hub
    /// (hf://organization/repository@revision/path), or an artifact of a registry
    /// (oci://registry/repository:tag@sha256:digest), which is downloaded to the node before the worker
    /// starts. Workers cannot use a model without it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    #[x_kube(validation = rules::artifact_address())]
    pub model_url: String,
    /// format is the format of the model, such as pb, onnx or json.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub format: String,
    /// files select the files of a repository by patterns such as *.json or weights/**, if modelUrl
    /// has no path. An asterisk matches within a name, two match across directories. Without
    /// patterns, all files but Markdown, images and .gitattributes are downloaded. The model is a
    /// directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        inner(length(min = 1, max = 256), regex(pattern = schema::FILE_PATTERN)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub files: Vec<String>,
    /// sha256sum is the SHA-256 of the file as 64 hex digits, as printed by sha256sum. If it is
    /// set, the worker does not start with a file that has another digest. Agents also check paths
    /// on the node; Pods mount them unchecked. Of files of a repository it is the SHA-256 of the
    /// output of sha256sum for all of them, sorted by path; neptune-cloud resolve prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::SHA256))]
    pub sha256sum: Option<String>,
    /// mirrors are further addresses of the same content, http(s), s3, hf or oci URLs. They are tried in
    /// order after modelUrl fails, and need sha256sum. Of a repository they are repositories. A change
    /// of mirrors restarts no worker of an agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 8),
        inner(length(max = schema::MAX_ADDRESS_LENGTH), regex(pattern = schema::MIRROR))
    )]
    pub mirrors: Vec<String>,
    /// credentialsSecret is the Secret with the credentials for an s3, hf or oci URL in Pods: the keys
    /// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and optionally AWS_SESSION_TOKEN, AWS_REGION
    /// and AWS_ENDPOINT_URL; or HF_TOKEN and optionally HF_ENDPOINT; or .dockerconfigjson, as in a Secret
    /// of the type kubernetes.io/dockerconfigjson. An agent uses the credentials of its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret: Option<SecretReference>,
    /// placement keeps the model on nodes before anything on them uses it. Their agents download
    /// and verify it. Without placement, only the nodes of the objects that use the model have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Box<ModelPlacement>>,
    /// metadata describes the model. It is not sent to nodes, and its changes restart nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Box<ModelMetadata>>,
}

/// ModelPlacement selects the nodes that keep a model. Either nodeNames or nodeSelector is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::placement_once(),
    validation = rules::placement_given(),
    validation = rules::placement_names_not_reserved()
)]
pub struct ModelPlacement {
    /// nodeNames are the names of edge nodes: Nodes with the label node-role.kubernetes.io/edge or
    /// neptune.io/runtime=agent, on which neptune-edge runs. A node may be added later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 256),
        inner(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub node_names: Vec<String>,
    /// nodeSelector selects every edge node with these labels. A node that gets the labels
    /// downloads the model, and one that loses them may delete it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
}

/// ModelStatus is the observed state of a Model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelStatus {
    /// updateTime is when the metrics were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_time: Option<Time>,
    /// metrics are the quality metrics: those that a TrainingModel measured for the file in the spec,
    /// or else those of the last worker that evaluated the model, or of kubectl neptune
    /// record-metrics.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<KeyValue>,
    /// reportedBy is the source of the metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_by: Option<MetricsSource>,
    /// usedBy lists the objects in the namespace that use the model, as resource/name; at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub used_by: Vec<String>,
    /// users is the number of objects that use the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<i32>,
    /// resolved is what modelUrl names, as the first node reported it that had the model. It is
    /// decided once per change of the spec: a branch or tag that moves later changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<ResolvedModel>,
    /// nodes lists the nodes whose agents use the model or that spec.placement selects, those
    /// without it first; at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<ModelNode>,
    /// wantedOn is the number of nodes whose agents use the model or that spec.placement selects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_on: Option<i32>,
    /// presentOn is the number of those nodes that have the model, such as 2/3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present_on: Option<String>,
    /// placed is the number of nodes of spec.placement that have the model, such as 2/3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed: Option<String>,
    /// conditions of the model. Ready: every node that needs the model has it. Evaluated: the
    /// metrics were measured with the file in the spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// observedGeneration is the metadata.generation that this status refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// ResolvedModel is the content that the modelUrl of a Model names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedModel {
    /// revision is the commit of the model hub, or the digest of the registry's manifest
    /// (sha256:...). It is empty for other addresses, and if the node did not ask hub or registry:
    /// for a file with sha256sum, and for files from a mirror or another node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// sha256sum is the SHA-256 of the content, a valid value for spec.sha256sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256sum: Option<String>,
    /// files is the number of files. It is empty for an archive and for a path of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<i32>,
    /// bytes is the size of the download, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
}

/// MetricsSource is the source of the metrics of a Model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricsSource {
    /// node is the name of the node on which the model was evaluated. It is empty if that is not
    /// known: for metrics of a calibration, and of a service on several nodes.
    pub node: String,
    /// object is the TrainingModel, or the owner of the worker, that evaluated the model, as
    /// resource/name; or calibrate/SERVICE for what neptune-gateway calibrate measured.
    pub object: String,
    /// modelUrl is the location of the evaluated file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model_url: String,
    /// sha256sum is the sha256sum of the Model at the time of the evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256sum: Option<String>,
    /// dataset is the data with which the metrics were measured. It is set if a TrainingModel
    /// measured them or kubectl neptune record-metrics names it, and unknown for workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<MeasuredDataset>,
    /// time is when the metrics were reported, by the clock of the node; or when a TrainingModel
    /// chose the weights, by the clock of the controller.
    pub time: String,
}

/// MeasuredDataset is the data with which metrics were measured. Metrics are comparable if they have
/// the same sha256, or the same state. Without both, the data changed during the measurement, or
/// was not counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredDataset {
    /// name is the name of the Dataset, in the namespace of the Model.
    pub name: String,
    /// sha256 is the hash of the data: status.root of a Dataset with replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// state identifies the data of a Dataset without replicas, which has no hash: its counts, when
    /// they last changed, and its UID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

impl ModelSpec {
    /// The digest of the file, in lower case as in reports of agents.
    pub fn digest(&self) -> Option<String> {
        self.sha256sum.as_ref().map(|sum| sum.trim().to_ascii_lowercase())
    }
}

impl MeasuredDataset {
    /// What identifies the data; `None` if it is not known.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        self.sha256.as_deref().or(self.state.as_deref())
    }
}

/// ModelNode is the state of a Model on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelNode {
    /// node is the name of the node.
    pub node: String,
    /// state is the state of the model on the node.
    pub state: ModelNodeState,
    /// sha256sum is the SHA-256 of the file on the node, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256sum: Option<String>,
    /// bytes is the size of the model on the node, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
    /// source is where the node downloaded the model from: `Origin` for the modelUrl, `Mirror:<n>`
    /// for the nth of mirrors, or `Peer:<node>`. It is empty for a path of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// rejectedPeers are the nodes that sent this node other bytes than those of the model. Their
    /// bytes are not used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected_peers: Vec<String>,
    /// reason is a machine-readable CamelCase reason why the model is not present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// message is a human-readable explanation why the model is not present, and the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// ModelNodeState is the state of a Model on a node.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum ModelNodeState {
    /// The model is present and matches the spec.
    Present,
    /// The model is being downloaded.
    Downloading,
    /// The model is not available; reason and message explain it.
    Failed,
    /// An earlier version is present.
    Outdated,
    /// The node has not reported a state yet.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_identified_by_its_hash_or_else_by_its_state() {
        let text = |text: &str| Some(text.to_owned());
        let both =
            MeasuredDataset { sha256: text("hash"), state: text("state"), ..Default::default() };
        assert_eq!(both.identity(), Some("hash"));
        assert_eq!(MeasuredDataset { sha256: None, ..both }.identity(), Some("state"));
        assert_eq!(MeasuredDataset::default().identity(), None);
    }
}
