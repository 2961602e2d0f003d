//! Where a `TrainingModel` trains, and with which program, data and first weights.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;
use crate::{
    EmptyDirSource, EnvironmentVariable, KeyValue, ModelReference, ResourceRequirements,
    SecurityContext, VolumeMount, schema,
};

/// InitialWeights are the first weights of a run: a file (.npz or .safetensors) at an address, or
/// that of a Model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = rules::one_source_of_weights(),
    validation = rules::weights_given(),
    validation = rules::weights_digest()
)]
pub struct InitialWeights {
    /// url is the http(s) address of the file. It needs a sha256sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_URL_LENGTH), regex(pattern = schema::WEB_ADDRESS))]
    pub url: Option<String>,
    /// sha256sum is the SHA-256 of the file as 64 hex digits, as printed by sha256sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::SHA256))]
    pub sha256sum: Option<String>,
    /// model is a Model in the same namespace, with an http(s) modelUrl and a sha256sum. It may be
    /// the Model of spec.output: each run then continues from the last result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelReference>,
}

/// TrainingScript is the training program: a file or an archive at an address, or a directory of
/// the nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::one_script(),
    validation = rules::script_given(),
    validation = rules::script_digest()
)]
pub struct TrainingScript {
    /// url is the http(s) or s3 address of the program. An archive (.tar, .tar.gz, .tgz, .tar.zst,
    /// .zip) is extracted. It needs a sha256sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH), regex(pattern = schema::REMOTE_ADDRESS))]
    pub url: Option<String>,
    /// sha256sum is the SHA-256 of the file at url as 64 hex digits, as printed by sha256sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::SHA256))]
    pub sha256sum: Option<String>,
    /// scriptDir is the directory with the program on each node: an absolute path below the
    /// agent's --allow-script-dir.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    pub script_dir: Option<String>,
    /// bootFile is the file to start, relative to the archive or to scriptDir.
    #[schemars(length(min = 1, max = schema::MAX_ADDRESS_LENGTH))]
    pub boot_file: String,
}

/// TrainingWorkerSpec describes the containers that train.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = crate::rules::mounts_have_volumes())]
pub struct TrainingWorkerSpec {
    /// frameworkType is the name of a framework in the ConfigMap neptune-frameworks: it has the
    /// image and the command that starts the script. Defaults to container: the entry point of
    /// workerSpec.image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub framework_type: Option<String>,
    /// frameworkVersion is the version of the framework, as in the tag of its image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub framework_version: Option<String>,
    /// image is the container image, instead of that of the framework.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    pub image: Option<String>,
    /// parameters are the parameters of the program. It receives each one in an environment
    /// variable (the key in upper case, with '_' in place of characters other than letters and
    /// digits), and all of them in PARAMETERS, a JSON list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::unique_keys)]
    pub parameters: Vec<KeyValue>,
    /// env are additional environment variables. They take precedence over parameters. The
    /// variables that Neptune sets (such as WEIGHTS_URL and OUTPUT_DIR) cannot be set here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::unique_names)]
    pub env: Vec<EnvironmentVariable>,
    /// resources are the resource limits of a container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// volumes are the directories that volumeMounts mount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = crate::schema::volumes)]
    pub volumes: Vec<TrainingVolume>,
    /// volumeMounts are the places where the containers mount volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = crate::schema::volume_mounts)]
    pub volume_mounts: Vec<VolumeMount>,
    /// network is whether the containers have a network. None: data can leave a node only as
    /// weights. Bridge: Docker's default network. Defaults to None.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<TrainingNetwork>,
    /// securityContext changes the rights of the containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SecurityContext>,
}

/// TrainingVolume is a directory that the containers of a training can mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainingVolume {
    /// name is the name of the volume, to which volumeMounts refer.
    #[schemars(length(max = 63), regex(pattern = schema::LABEL))]
    pub name: String,
    /// emptyDir is a directory that is empty at first, and writable for any user. On the disk of a
    /// node its files are kept between rounds, until the training leaves the node.
    pub empty_dir: EmptyDirSource,
}

/// TrainingNetwork is the network of the containers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TrainingNetwork {
    /// The containers have no network.
    #[default]
    None,
    /// The containers are in Docker's default network.
    Bridge,
}

/// TrainingWorker is a worker on a node, or one per Dataset that labels select.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::training_worker_placed())]
pub struct TrainingWorker {
    /// name is the name of the worker. Workers of Datasets that labels select are named
    /// NAME-DATASET.
    #[schemars(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// nodeName is the name of the node that trains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    #[x_kube(validation = crate::rules::node_name_not_reserved())]
    pub node_name: Option<String>,
    /// nodeSelector are the labels of the nodes that train.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minProperties" = 1, "maxProperties" = 64))]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// dataset is the data of the worker. It must be on the node that trains.
    pub dataset: DatasetSelection,
}

/// DatasetSelection is a Dataset by its name, or every Dataset with these labels, in the same
/// namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::dataset_selected())]
pub struct DatasetSelection {
    /// name is the name of a Dataset (edgeai.io). It may be created later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub name: Option<String>,
    /// matchLabels are the labels of the Datasets; each one on a node of the worker is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minProperties" = 1, "maxProperties" = 64))]
    pub match_labels: Option<BTreeMap<String, String>>,
}
