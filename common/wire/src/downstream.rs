//! What the cloud says to a node: objects, their end, and the index of all it should have.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    ContentHash, ModelServer, Namespace, ObjectKey, ObjectName, Revision, WorkerName,
    WorkerUpdateMode,
};

/// "This object is now so": the object as in the API, and what of it concerns this node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Insert {
    /// The order of this message among all that were said of this object.
    pub revision: Revision,
    /// The fingerprint of `content`, as its author computed it.
    pub hash: ContentHash,
    /// The object.
    #[serde(flatten)]
    pub content: ObjectContent,
}

/// An object as in the Kubernetes API, with the workers that it means for one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectContent {
    /// As in the API, such as `neptune.io/v1alpha1`.
    pub api_version: String,
    /// As in the API, such as `JointInferenceService`.
    pub kind: String,
    /// As in the API, less what changes without meaning.
    pub metadata: ObjectMetadata,
    /// As in the API.
    #[serde(default)]
    pub spec: Value,
    /// The workers of this object that this node runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<Worker>,
    /// The model server of this object that this node runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<Box<ModelServer>>,
}

/// The part of an object's metadata that a node needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectMetadata {
    /// The object's namespace.
    pub namespace: Namespace,
    /// The object's name.
    pub name: ObjectName,
    /// Tells an object from an earlier one of the same name: its counters start anew.
    pub uid: String,
}

/// Which half of a joint inference a worker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// Infers with the small model and sends on what is hard. Its counters are the service's.
    Edge,
    /// Answers with the big model.
    Cloud,
}

/// A container that a node's agent keeps running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    /// Unique on the node.
    pub name: WorkerName,
    /// Which half it is.
    pub role: Role,
    /// The image's reference, as `docker run` takes it.
    pub image: String,
    /// Replaces the image's entry point; empty leaves it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The arguments of the entry point.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// The environment, less what only the agent knows: `MODEL_URL`, `MQTT_URL`,
    /// `WORKER_INFO_TOPIC`, `WORKER_RELOAD_TOPIC`, `NODE_NAME`, and with a dataset `DATASET_URL`,
    /// `DATASET_FORMAT`, `DATA_PATH_PREFIX`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Where the scripts are on the node, mounted read-only at the same path. `None` when the
    /// image brings its program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scripts: Option<Scripts>,
    /// The model object, of the same namespace, that has to be there before the worker starts.
    pub model: ObjectName,
    /// How it takes another version of the model.
    #[serde(default, skip_serializing_if = "WorkerUpdateMode::is_restart")]
    pub model_update: WorkerUpdateMode,
    /// The dataset object, of the same namespace, that has to be there before the worker starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<ObjectName>,
    /// The port on which a cloud worker answers, on the node's own address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// What the container may use at most.
    #[serde(default)]
    pub resources: ResourceLimits,
}

/// The node's directory with a worker's scripts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scripts {
    /// An absolute path on the node.
    pub dir: String,
    /// The file in it that is started: it has to be there before the worker starts.
    pub boot_file: String,
}

/// Limits of a container. Zero or absent means none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceLimits {
    /// Thousandths of a processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    /// Bytes of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// "This object is gone."
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delete {
    /// The order of this message among all that were said of this object.
    pub revision: Revision,
}

/// Every object that a node should have. Small: no contents.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// The order of this index among all indexes of the node, on the same clock as the objects'.
    pub revision: Revision,
    /// The objects; whatever is not here and is not newer than this index is to go.
    pub objects: BTreeMap<ObjectKey, IndexEntry>,
    /// Objects of which the controller cannot say now what they mean for this node, because
    /// something that they refer to is not known. A node that has one goes on with it as it is.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub keep: BTreeSet<ObjectKey>,
}

/// An object's entry in an index or a sync.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexEntry {
    /// The revision of the object's newest insert.
    pub revision: Revision,
    /// The fingerprint of its content.
    pub hash: ContentHash,
}

impl ObjectContent {
    /// The value's fingerprint, for its author.
    pub fn hash(&self) -> ContentHash {
        ContentHash::of(self)
    }
}
