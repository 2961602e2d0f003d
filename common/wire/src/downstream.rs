//! Messages from the cloud to a node: an object, and its deletion.

use std::{collections::BTreeMap, net::IpAddr};

use neptune_gateway_config::Document;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    AggregatorContent, ContainerProgram, ContentHash, ModelServer, Namespace, NodeName, ObjectName,
    PeerRoster, ReplicaOf, RestartTime, Revision, Role, Scripts, TrainingContent, WorkerName,
    WorkerUpdateMode, unknown,
};

/// The current content of an object: the object as in the API, and its workloads on this node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Insert {
    /// Orders this message among all messages about this object.
    pub revision: Revision,
    /// The hash of `content`, as the sender computed it.
    pub hash: ContentHash,
    /// The object and its workloads.
    #[serde(flatten)]
    pub content: ObjectContent,
}

/// An object as in the Kubernetes API, with the workloads that it requires on one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectContent {
    /// The `apiVersion` of the object, such as `neptune.io/v1alpha1`.
    pub api_version: String,
    /// The `kind` of the object, such as `JointInferenceService`.
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
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "unknown::list")]
    pub workers: Vec<Worker>,
    /// The model server of this object that this node runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<Box<ModelServer>>,
    /// The training tasks of this node, for a `TrainingModel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<Box<TrainingContent>>,
    /// The aggregator of a `TrainingModel` that this node runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregator: Option<Box<AggregatorContent>>,
    /// The peers of this node. Sent only to agents that report a [`PeerEndpoint`](crate::PeerEndpoint).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<Box<PeerRoster>>,
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
    /// When the object was created, in RFC 3339, UTC, whole seconds. Of two objects with workers of
    /// one name, the older one has the name. `None` from older controllers; then the object counts
    /// as older.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
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
    /// Further addresses of the same content, at most [`MAX_MIRRORS`]. They are tried in order after
    /// `url`, and do not identify the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
}

/// Maximum number of mirrors of a model.
pub const MAX_MIRRORS: usize = 8;

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
    /// The other nodes that copy the data of this node, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "unknown::list")]
    pub replicas: Vec<NodeName>,
    /// Absent: the data is on this node. Otherwise the node keeps a copy, and `url` is empty, which
    /// earlier agents refuse instead of counting other data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_of: Option<ReplicaOf>,
}

/// When a worker is started again after it exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RestartPolicy {
    /// The worker is started after every exit.
    Always,
    /// The worker is started after an exit with another exit code than 0.
    OnFailure,
    /// The worker is never started again: one run per container specification.
    Never,
    /// A policy of a newer controller. Counts as absent.
    #[serde(other)]
    Unknown,
}

/// A worker container that the agent of a node keeps running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    /// Name of the worker, unique on the node.
    pub name: WorkerName,
    /// Role of the worker.
    pub role: Role,
    /// What its container runs. The agent adds the variables `MODEL_URL`, `MQTT_URL`,
    /// `WORKER_INFO_TOPIC`, `WORKER_RELOAD_TOPIC` and `NODE_NAME`, and with a dataset `DATASET_URL`,
    /// `DATASET_FORMAT` and `DATA_PATH_PREFIX`.
    #[serde(flatten)]
    pub program: ContainerProgram,
    /// The scripts on the node, mounted read-only at the same path. `None` when the image contains
    /// the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scripts: Option<Scripts>,
    /// The `Model` in the same namespace that must be present before the worker starts. Absent for
    /// a gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ObjectName>,
    /// When the worker is started again after it exits. Absent: `onFailure` for an edge worker,
    /// `always` for a cloud worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<RestartPolicy>,
    /// When its restart was last requested. A later value replaces the container once; an earlier or
    /// absent one changes nothing. Earlier agents ignore it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "unknown::optional"
    )]
    pub restarted_at: Option<RestartTime>,
    /// How the worker is updated when the model changes.
    #[serde(default, skip_serializing_if = "WorkerUpdateMode::is_restart")]
    pub model_update: WorkerUpdateMode,
    /// The `Dataset` in the same namespace that must be present before the worker starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<ObjectName>,
    /// The port of a cloud worker, published on the address of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Host entries of the container, by name, so that these names need no DNS.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hosts: BTreeMap<String, IpAddr>,
    /// What a gateway needs: a worker that runs `neptune-gateway` instead of a user's program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Box<GatewaySpec>>,
}

/// What the agent provides for a gateway beside its container. A change of it does not replace the
/// container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewaySpec {
    /// The configuration of `neptune-gateway`. The agent sets the members that only the node knows.
    #[serde(default)]
    pub config: Document,
    /// The `InferenceModel` in the same namespace whose server on this node the gateway asks.
    pub server: ObjectName,
    /// Name of the file with the cloud's bearer token, in the node's directory of secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<String>,
    /// Name of the file with certificates to trust, in the node's directory of secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
    /// Names of the files with the certificate that clients of the gateway see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<GatewayTlsFiles>,
    /// Path on the node of the directory that takes captured samples. Without it the agent removes
    /// `capture` from the configuration. A change of it replaces the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capture_dir: Option<String>,
}

/// The certificate of a gateway and its key, in the node's directory of secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayTlsFiles {
    /// Name of the file with the certificate chain.
    pub cert_file: String,
    /// Name of the file with the key.
    pub key_file: String,
}

impl Worker {
    /// Returns the restart policy, with the default of the role: an edge worker may finish, a cloud
    /// worker serves as long as it exists.
    pub fn effective_restart_policy(&self) -> RestartPolicy {
        match (self.restart_policy, self.role) {
            (None | Some(RestartPolicy::Unknown), Role::Edge) => RestartPolicy::OnFailure,
            (None | Some(RestartPolicy::Unknown), Role::Cloud) => RestartPolicy::Always,
            (Some(policy), _) => policy,
        }
    }
}

/// The deletion of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delete {
    /// Orders this message among all messages about this object.
    pub revision: Revision,
}

impl ObjectContent {
    /// Computes the hash of the content. Only the sender computes it; receivers compare it. The
    /// ciphertexts of Secrets are not part of it: equal values that are sealed again are no change.
    pub fn hash(&self) -> ContentHash {
        if !self.programs().any(|program| !program.secrets.is_empty()) {
            return ContentHash::compute(self);
        }
        let mut unsealed = self.clone();
        unsealed.programs_mut().for_each(ContainerProgram::remove_sealed);
        ContentHash::compute(&unsealed)
    }

    /// Returns the programs of the workers and of the model server with its transformer: those that
    /// may have Secrets.
    pub fn programs(&self) -> impl Iterator<Item = &ContainerProgram> {
        let serving = self.serving.as_deref();
        let transformer = serving.and_then(|server| server.transformer.as_deref());
        let workers = self.workers.iter().map(|worker| &worker.program);
        workers.chain(serving.map(|it| &it.program)).chain(transformer.map(|it| &it.program))
    }

    fn programs_mut(&mut self) -> impl Iterator<Item = &mut ContainerProgram> {
        let serving = self.serving.as_deref_mut().into_iter().flat_map(|server| {
            let transformer = server.transformer.as_deref_mut().map(|it| &mut it.program);
            [Some(&mut server.program), transformer].into_iter().flatten()
        });
        self.workers.iter_mut().map(|worker| &mut worker.program).chain(serving)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_gateway_config::Config;
    use serde_json::json;

    use super::*;
    use crate::ReplicaDeletions;

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
            mirrors: vec!["https://h/m.pb".to_owned()],
        }));
        expected["model"] = json!({"url": "s3://bucket/m.pb", "format": "pb", "sha256": "ab", "mirrors": ["https://h/m.pb"]});
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
    fn replica_has_no_url_and_names_its_source() {
        let expected = json!({
            "url": "", "format": "csv",
            "replicaOf": {"node": "edge0", "deletions": "Keep"},
        });
        let content = DatasetContent {
            format: "csv".to_owned(),
            replica_of: Some(ReplicaOf {
                node: "edge0".parse().unwrap(),
                deletions: ReplicaDeletions::Keep,
            }),
            ..DatasetContent::default()
        };
        assert_eq!(serde_json::to_value(&content).unwrap(), expected);
        assert_eq!(serde_json::from_value::<DatasetContent>(expected).unwrap(), content);
        let earlier: DatasetContent = serde_json::from_value(json!({"url": "/d"})).unwrap();
        assert_eq!((earlier.replicas, earlier.replica_of), (vec![], None));
        let newer = json!({"replicaOf": {"node": "edge0", "deletions": "Archive"}});
        let newer: DatasetContent = serde_json::from_value(newer).unwrap();
        assert_eq!(newer.replica_of.unwrap().deletions, ReplicaDeletions::Keep);
    }

    #[test]
    fn configuration_of_a_gateway_is_sent_as_its_file() {
        let config = json!({
            "service": "digits", "id": "0a1b2c3d4e5f", "protocol": "oip",
            "listen": "0.0.0.0:8080", "grpcListen": "0.0.0.0:8082",
            "edge": {
                "address": "127.0.0.1:9001", "grpcAddress": "127.0.0.1:9002", "model": "digits",
            },
            "cloud": {
                "url": "http://big.default.svc:9001", "grpcUrl": "http://big.default.svc:9002",
                "modelName": "big", "allowPlainHttp": true,
                "addresses": {"big.default.svc": "10.96.0.9"},
            },
            "hardExample": {
                "algorithm": "CrossEntropy", "goal": {"uploadRatio": 0.2}, "kind": "logits",
                "maxUploadRatio": 0.25, "shadowRatio": 0.0, "threshold": 0.75, "output": "scores",
            },
            "onCloudFailure": "Error", "onEdgeFailure": "Error", "streaming": "EdgeOnly",
            "neverUpload": {"headers": ["x-private: yes"]},
            "timeouts": {"edge": "500ms", "cloudConnect": "2s", "cloudFirstByte": "2m", "cloudTotal": "1h"},
            "limits": {"maxBodyBytes": 8_388_608, "maxInFlight": 16},
            "capture": {"maxBytes": 67_108_864, "share": 0.5, "what": "All", "labels": "None"},
            "clients": [{
                "name": "hall", "keySha256": ["0a".repeat(32)], "requestsPerMinute": 600,
                "uploads": "Never", "models": ["digits"],
            }],
            "tls": {"certFile": "c", "keyFile": "k"},
        });
        let mut spec = json!({
            "config": config, "server": "digits-edge", "captureDir": "/hard",
            "tls": {"certFile": "c", "keyFile": "k"},
        });
        let typed: Config = serde_json::from_value(config).unwrap();
        let sent = GatewaySpec {
            config: Document::from(&typed),
            server: "digits-edge".parse().unwrap(),
            token_file: None,
            ca_file: None,
            tls: Some(GatewayTlsFiles { cert_file: "c".to_owned(), key_file: "k".to_owned() }),
            capture_dir: Some("/hard".to_owned()),
        };
        assert_eq!(serde_json::to_value(&sent).unwrap(), spec);
        assert_eq!(serde_json::from_value::<GatewaySpec>(spec.clone()).unwrap(), sent);

        spec["config"]["hardExample"]["algorithm"] = json!("Conformal");
        spec["config"]["queue"] = json!({"length": 3});
        let newer: GatewaySpec = serde_json::from_value(spec.clone()).unwrap();
        assert_eq!(serde_json::to_value(newer).unwrap(), spec, "of a newer controller");
    }

    #[test]
    fn values_that_are_sealed_again_have_the_same_hash() {
        let program = |sealed: &str, key: &str| {
            json!({
                "image": "i",
                "secrets": [{
                    "name": "s", "version": "u/1", "keys": ["a"], "sealKey": key, "sealed": sealed,
                }],
            })
        };
        let decoded = |sealed: &str, key: &str| -> ObjectContent {
            let mut worker = json!({"name": "w", "role": "edge"});
            let mut server = json!({
                "name": "s", "modelName": "m", "port": 1,
                "health": {
                    "periodMs": 1, "timeoutMs": 1, "startWithinMs": 1, "probationMs": 1,
                },
                "transformer": {"serverPort": 2},
            });
            let program = program(sealed, key);
            for it in [&mut worker, &mut server["transformer"]] {
                it.as_object_mut().unwrap().extend(program.as_object().unwrap().clone());
            }
            server.as_object_mut().unwrap().extend(program.as_object().unwrap().clone());
            let mut content = content("JointInferenceService", &json!({}));
            content["workers"] = json!([worker]);
            content["serving"] = server;
            serde_json::from_value(content).unwrap()
        };
        let first = decoded("AAAA", "sha256:0");
        assert_eq!(first.programs().count(), 3);
        assert_eq!(decoded("BBBB", "sha256:0").hash(), first.hash());
        assert_eq!(decoded("", "sha256:0").hash(), first.hash(), "before it is sealed");
        assert_ne!(decoded("AAAA", "sha256:1").hash(), first.hash());

        // What an agent decodes has the ciphertext and the same hash.
        let insert = Insert { revision: Revision(7), hash: first.hash(), content: first.clone() };
        let received: Insert = crate::decode(&crate::encode(&insert)).unwrap();
        assert_eq!(received.content, first);
        assert_eq!(received.content.hash(), insert.hash);
        assert_eq!(received.content.workers[0].program.secrets[0].sealed, "AAAA");
    }

    #[test]
    fn restart_policy_defaults_by_role_and_tolerates_unknown_values() {
        use RestartPolicy::{Always, Never, OnFailure};
        let policy = |role: &str, policy: Option<&str>| {
            let mut worker = json!({"name": "w", "role": role, "image": "i", "model": "m"});
            if let Some(policy) = policy {
                worker["restartPolicy"] = policy.into();
            }
            serde_json::from_value::<Worker>(worker).unwrap().effective_restart_policy()
        };
        assert_eq!((policy("edge", None), policy("cloud", None)), (OnFailure, Always));
        assert_eq!(
            (policy("edge", Some("always")), policy("cloud", Some("never"))),
            (Always, Never)
        );
        assert_eq!(
            (policy("edge", Some("weekly")), policy("cloud", Some("weekly"))),
            (OnFailure, Always)
        );
    }

    #[test]
    fn unknown_fields_of_a_newer_controller_are_ignored() {
        let mut newer = content("Model", &json!({}));
        newer["model"] = json!({"url": "ipfs://x", "quantization": "int8"});
        let content: ObjectContent = serde_json::from_value(newer).unwrap();
        assert_eq!(content.model.unwrap().url, "ipfs://x");
    }
}
