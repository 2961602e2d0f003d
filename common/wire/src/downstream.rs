//! Messages from the cloud to a node: an object, its deletion, and the index of all objects of the
//! node.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    ContentHash, ModelServer, Namespace, ObjectKey, ObjectName, Revision, WorkerName,
    WorkerUpdateMode,
};

/// The current content of an object: the object as in the API, and its workloads on this node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Insert {
    /// Orders this message among all messages about this object.
    pub revision: Revision,
    /// The hash of `content`, as the sender computed it.
    pub hash: ContentHash,
    /// The object.
    #[serde(flatten)]
    pub content: ObjectContent,
}

/// An object as in the Kubernetes API, with the workloads that it requires on one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectContent {
    /// As in the API, such as `neptune.io/v1alpha1`.
    pub api_version: String,
    /// As in the API, such as `JointInferenceService`.
    pub kind: String,
    /// Identity of the object: the part of its `metadata` that a node needs.
    pub metadata: ObjectMetadata,
    /// The spec as in the API, for people who inspect the messages with an MQTT client. Agents do
    /// not read it.
    #[serde(default)]
    pub spec: Value,
    /// The model to provide on the node, for a `Model`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Box<ModelContent>>,
    /// The data to count, for a `Dataset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<Box<DatasetContent>>,
    /// The workers of this object that this node runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<Worker>,
    /// The model server of this object that this node runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<Box<ModelServer>>,
}

/// The part of an object's `metadata` that a node needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectMetadata {
    /// Namespace of the object.
    pub namespace: Namespace,
    /// Name of the object.
    pub name: ObjectName,
    /// UID of the object. A recreated object of the same name has another UID, and its counters
    /// start at zero.
    pub uid: String,
}

/// A model to provide on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelContent {
    /// Address of the model, see [`ArtifactAddress`](crate::ArtifactAddress). Not parsed here, so
    /// that an agent accepts the message of a newer controller and reports an unknown address.
    #[serde(default)]
    pub url: String,
    /// Format of the model, such as `pb`. Empty if it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub format: String,
    /// Expected SHA-256, 64 hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// Data to count on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DatasetContent {
    /// Address of the data, see [`ArtifactAddress`](crate::ArtifactAddress).
    #[serde(default)]
    pub url: String,
    /// Format of the samples, such as `csv`.
    #[serde(default)]
    pub format: String,
    /// csv: whether the first record is a header. Absent: the default of the format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<bool>,
    /// csv: the character between fields. Absent: the default of the format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<String>,
    /// csv: the column of the labels, by name, or by index from 0 without a header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_column: Option<String>,
    /// json: the member of the top-level object whose array contains the samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
}

/// The role of a worker in a joint inference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// Infers with the small model and sends hard samples to the cloud worker. Its counters are
    /// those of the service.
    Edge,
    /// Answers hard samples with the big model.
    Cloud,
}

/// A worker container that the agent of a node keeps running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    /// Name of the worker, unique on the node.
    pub name: WorkerName,
    /// Role of the worker.
    pub role: Role,
    /// Image reference, as for `docker run`.
    pub image: String,
    /// Replaces the entry point of the image; the image's entry point is used if it is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Arguments of the entry point.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment variables. The agent adds `MODEL_URL`, `MQTT_URL`, `WORKER_INFO_TOPIC`,
    /// `WORKER_RELOAD_TOPIC` and `NODE_NAME`, and with a dataset `DATASET_URL`, `DATASET_FORMAT`
    /// and `DATA_PATH_PREFIX`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The scripts on the node, mounted read-only at the same path. `None` when the image contains
    /// the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scripts: Option<Scripts>,
    /// The `Model` in the same namespace that must be present before the worker starts.
    pub model: ObjectName,
    /// How the worker is updated when the model changes.
    #[serde(default, skip_serializing_if = "WorkerUpdateMode::is_restart")]
    pub model_update: WorkerUpdateMode,
    /// The `Dataset` in the same namespace that must be present before the worker starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<ObjectName>,
    /// The port of a cloud worker, published on the address of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Resource limits of the container.
    #[serde(default)]
    pub resources: ResourceLimits,
}

/// The directory on the node with the scripts of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scripts {
    /// Absolute path of the directory on the node.
    pub dir: String,
    /// The file in `dir` that is started. It must exist before the worker starts.
    pub boot_file: String,
}

/// Resource limits of a container. Zero or absent means no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceLimits {
    /// CPU limit in thousandths of a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    /// Memory limit in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// The deletion of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delete {
    /// Orders this message among all messages about this object.
    pub revision: Revision,
}

/// The index of a node: every object that it should have, without the contents.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// Orders this index among all indexes of the node. Indexes and objects use the same clock.
    pub revision: Revision,
    /// The objects. The node removes objects that are not listed and not newer than this index.
    pub objects: BTreeMap<ObjectKey, IndexEntry>,
    /// Objects whose desired state the controller cannot determine now, because something that they
    /// refer to is unknown. A node that has such an object keeps it unchanged.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub keep: BTreeSet<ObjectKey>,
}

/// The entry of an object in an [`Index`] or a [`Sync`](crate::Sync).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexEntry {
    /// The revision of the newest [`Insert`] of the object.
    pub revision: Revision,
    /// The hash of its content.
    pub hash: ContentHash,
}

impl ObjectContent {
    /// Computes the hash of the content. Only the sender computes it; receivers compare it.
    pub fn hash(&self) -> ContentHash {
        ContentHash::of(self)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn content(kind: &str, spec: &Value) -> Value {
        json!({
            "apiVersion": "edgeai.io/v1alpha1", "kind": kind,
            "metadata": {"namespace": "default", "name": "n", "uid": "u"}, "spec": spec,
        })
    }

    /// Encodes an insert of `content`, asserts its payload, and decodes it again.
    fn assert_payload(content: &ObjectContent, expected: Value) {
        let insert =
            Insert { revision: Revision(7), hash: content.hash(), content: content.clone() };
        let payload = crate::encode(&insert);
        let mut expected = expected;
        expected["schemaVersion"] = 1.into();
        expected["revision"] = 7.into();
        expected["hash"] = content.hash().as_str().into();
        assert_eq!(serde_json::from_slice::<Value>(&payload).unwrap(), expected);
        assert_eq!(crate::decode::<Insert>(&payload).unwrap(), insert);
    }

    #[test]
    fn model_is_sent_as_spec_and_as_typed_content() {
        let spec = json!({"modelUrl": "s3://bucket/m.pb", "format": "pb", "sha256sum": "AB"});
        let mut expected = content("Model", &spec);
        let mut model: ObjectContent = serde_json::from_value(expected.clone()).unwrap();
        assert_eq!(model.model, None, "a message without typed content is decoded");
        model.model = Some(Box::new(ModelContent {
            url: "s3://bucket/m.pb".to_owned(),
            format: "pb".to_owned(),
            sha256: Some("ab".to_owned()),
        }));
        expected["model"] = json!({"url": "s3://bucket/m.pb", "format": "pb", "sha256": "ab"});
        assert_payload(&model, expected);
    }

    #[test]
    fn dataset_is_sent_as_spec_and_as_typed_content() {
        let spec = json!({"dataUrl": "/data/a.csv", "format": "csv", "labelColumn": "3"});
        let mut expected = content("Dataset", &spec);
        let mut dataset: ObjectContent = serde_json::from_value(expected.clone()).unwrap();
        dataset.dataset = Some(Box::new(DatasetContent {
            url: "/data/a.csv".to_owned(),
            format: "csv".to_owned(),
            header: Some(false),
            label_column: Some("3".to_owned()),
            ..DatasetContent::default()
        }));
        expected["dataset"] = json!({
            "url": "/data/a.csv", "format": "csv", "header": false, "labelColumn": "3",
        });
        assert_payload(&dataset, expected);
    }

    #[test]
    fn unknown_fields_of_a_newer_controller_are_ignored() {
        let mut newer = content("Model", &json!({}));
        newer["model"] = json!({"url": "ipfs://x", "quantization": "int8"});
        let content: ObjectContent = serde_json::from_value(newer).unwrap();
        assert_eq!(content.model.unwrap().url, "ipfs://x");
    }
}
