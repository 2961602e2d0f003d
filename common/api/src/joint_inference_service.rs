//! `JointInferenceService` of `neptune.io/v1alpha1`: a small model at the edge that asks a big one in
//! the cloud when a sample is hard.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{KeyValue, form, rules};

/// The two workers of a joint inference.
#[derive(
    CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema,
)]
#[kube(
    group = "neptune.io",
    version = "v1alpha1",
    kind = "JointInferenceService",
    plural = "jointinferenceservices",
    shortname = "jointinferenceservice",
    shortname = "jis",
    namespaced,
    status = "JointInferenceServiceStatus",
    derive = "PartialEq",
    doc = "Joint inference of edge and cloud: the edge worker infers with a small model and sends what its hard-example algorithm finds hard to the cloud worker's big model.",
    printcolumn(
        name = "status",
        type_ = "string",
        description = "The status of the jointinference service",
        json_path = ".status.conditions[-1].type"
    ),
    printcolumn(
        name = "active",
        type_ = "integer",
        description = "The number of active worker",
        json_path = ".status.active"
    ),
    printcolumn(
        name = "failed",
        type_ = "integer",
        description = "The number of failed worker",
        json_path = ".status.failed"
    ),
    printcolumn(
        name = "Inference",
        type_ = "string",
        description = "Samples inferred",
        json_path = r#".status.metrics[?(@.key=="inferenceNumber")].value"#
    ),
    printcolumn(
        name = "HardExamples",
        type_ = "string",
        description = "Samples of these that the cloud answered",
        json_path = r#".status.metrics[?(@.key=="hardExampleNumber")].value"#
    ),
    printcolumn(
        name = "UploadRatio",
        type_ = "string",
        description = "The share of samples that went to the cloud, 0 to 1",
        json_path = r#".status.metrics[?(@.key=="uploadCloudRatio")].value"#
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        description = "Why the service has the status that it has",
        json_path = ".status.conditions[-1].reason",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = form::never_null)]
pub struct JointInferenceServiceSpec {
    /// The half that sees every sample.
    pub edge_worker: EdgeWorker,
    /// The half that answers the hard ones.
    pub cloud_worker: CloudWorker,
}

/// The worker on the edge node: it infers with the small model and decides what is hard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EdgeWorker {
    /// A name for the worker: letters, digits, '-' and '.'. Containers are named after it.
    #[schemars(length(max = form::NAME), regex(pattern = "^[A-Za-z0-9.-]+$"))]
    pub name: String,
    /// The small model.
    pub model: ModelReference,
    /// The edge node that runs the worker: a Node with the label node-role.kubernetes.io/edge or
    /// neptune.io/runtime=agent, on which neptune-edge runs under this name.
    #[schemars(length(max = form::NAME), regex(pattern = form::SUBDOMAIN))]
    #[x_kube(validation = rules::no_workers_branch())]
    pub node_name: String,
    /// How the worker tells a hard sample from an easy one.
    pub hard_example_algorithm: HardExampleAlgorithm,
    /// The data that the worker infers on, if it is a Dataset on the worker's node. It is mounted read-only,
    /// and the worker gets its path as DATASET_URL and its format as DATASET_FORMAT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<DatasetReference>,
    /// What the worker runs.
    pub worker_spec: WorkerSpec,
}

/// The worker that holds the big model. It runs as a Deployment behind a Service, or, on a node
/// labelled neptune.io/runtime=agent, as a container of that node's neptune-edge.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloudWorker {
    /// A name for the worker: letters, digits, '-' and '.'. The Deployment is named after it.
    #[schemars(length(max = form::NAME), regex(pattern = "^[A-Za-z0-9.-]+$"))]
    pub name: String,
    /// The big model.
    pub model: ModelReference,
    /// The node that runs the worker.
    #[schemars(length(max = form::NAME), regex(pattern = form::SUBDOMAIN))]
    #[x_kube(validation = rules::no_workers_branch())]
    pub node_name: String,
    /// What the worker runs.
    pub worker_spec: WorkerSpec,
}

/// Names a Model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelReference {
    /// The name of a Model (edgeai.io) in the namespace of the service. It may be made later.
    #[schemars(length(max = form::NAME), regex(pattern = form::SUBDOMAIN))]
    pub name: String,
}

/// Names a Dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatasetReference {
    /// The name of a Dataset (edgeai.io) in the namespace of the service. It may be made later.
    #[schemars(length(max = form::NAME), regex(pattern = form::SUBDOMAIN))]
    pub name: String,
}

/// How a hard sample is found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HardExampleAlgorithm {
    /// IBT, Threshold, CrossEntropy, Random, CloudOnly, EdgeOnly, or a name that the worker's own
    /// program knows. The worker gets it as HEM_NAME.
    #[schemars(length(min = 1, max = form::WORD))]
    pub name: String,
    /// The algorithm's parameters, such as threshold_img for IBT. The worker gets them as
    /// HEM_PARAMETERS, a JSON list of key and value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = form::unique_keys)]
    pub parameters: Vec<KeyValue>,
}

/// What a worker runs: a script by a framework, or a program in an image of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerSpec {
    /// The directory with the scripts on the worker's node: an absolute path, mounted read-only at
    /// the same path. Not used with frameworkType container.
    #[schemars(length(max = form::PLACE))]
    pub script_dir: String,
    /// The script that is started, relative to scriptDir. With frameworkType container it is the
    /// first argument of the image's program instead.
    #[schemars(length(max = form::PLACE))]
    pub script_boot_file: String,
    /// The framework, as the ConfigMap neptune-frameworks lists them; built in are tensorflow,
    /// pytorch, python, and container for a program that is in workerSpec.image.
    #[schemars(length(max = form::WORD))]
    pub framework_type: String,
    /// The framework's version, as in the tag of its image.
    #[schemars(length(max = form::WORD))]
    pub framework_version: String,
    /// Parameters of the worker. It gets each as an environment variable (the key in upper case,
    /// other characters than letters and digits as '_') and all as PARAMETERS, a JSON list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = form::unique_keys)]
    pub parameters: Vec<KeyValue>,
    /// The container image, in place of the framework's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = form::PLACE))]
    pub image: Option<String>,
    /// How much of its node the worker may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// More environment variables. They win over parameters; the names that Neptune sets itself
    /// (SERVICE_NAME, MODEL_URL and so on) cannot be set here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = form::unique_names)]
    pub env: Vec<EnvironmentVariable>,
    /// How the worker takes another version of its model. Restart: its container is replaced.
    /// Reload: it keeps running, and is told on WORKER_RELOAD_TOPIC where the version is; one that
    /// has not loaded it within a minute is restarted. In a Pod, and with a model that is a path of the node, it is
    /// always Restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_update: Option<ModelUpdate>,
}

/// How a worker takes another version of its model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ModelUpdate {
    /// Its container is replaced.
    #[default]
    Restart,
    /// It loads it while it runs.
    Reload,
}

/// A container's environment variable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnvironmentVariable {
    /// Letters, digits and '_', not beginning with a digit.
    #[schemars(length(max = form::WORD), regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$"))]
    pub name: String,
    /// The value as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
}

/// The resources of a container, written as in a Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceRequirements {
    /// What it may use at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
}

/// The most that a container may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Limits {
    /// Processors as a Kubernetes quantity in quotes, such as "1" or "500m".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = rules::above_zero())]
    pub cpu: Option<String>,
    /// Memory as a Kubernetes quantity in quotes, such as "256Mi".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = rules::above_zero())]
    pub memory: Option<String>,
}

/// How a service fares.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JointInferenceServiceStatus {
    /// One condition a type; the last one is the one that holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<JisCondition>,
    /// When the controller first saw the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// How many of the two workers are known to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<i32>,
    /// How many of the two workers are in state Failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<i32>,
    /// The totals over the whole life of the service: inferenceNumber, hardExampleNumber and
    /// uploadCloudRatio.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<KeyValue>,
    /// The metadata.generation that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What each edge agent has counted so far; the metrics are the sum of these and of folded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reports: Vec<AgentCounters>,
    /// The sum of what agents had counted that are no longer listed in reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folded: Option<CounterTotals>,
}

/// What one agent's data directory counted for a service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentCounters {
    /// The node.
    pub node: String,
    /// The agent's data directory: a wiped or replaced node counts anew under another one.
    pub instance: String,
    /// How often the agent had started on it when it said this.
    #[schemars(schema_with = "total")]
    pub epoch: u64,
    /// The message's number within the epoch.
    #[schemars(schema_with = "total")]
    pub seq: u64,
    /// Samples inferred.
    #[schemars(schema_with = "total")]
    pub inference_number: u64,
    /// Samples of these that the cloud answered.
    #[schemars(schema_with = "total")]
    pub hard_example_number: u64,
}

/// Two totals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CounterTotals {
    /// Samples inferred.
    #[schemars(schema_with = "total")]
    pub inference_number: u64,
    /// Samples of these that the cloud answered.
    #[schemars(schema_with = "total")]
    pub hard_example_number: u64,
}

// schemars' own format for u64 is one that an API server warns of.
fn total(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "integer", "format": "int64", "minimum": 0 })
}

/// One state that a service is in or was in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JisCondition {
    /// The state.
    #[serde(rename = "type")]
    pub type_: JisConditionType,
    /// True while the service is in this state, False afterwards.
    pub status: String,
    /// When the condition was last written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// When status last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Why, as one word for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, and what helps, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The states of a service. None is final: each goes over into another when what it waits for comes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum JisConditionType {
    /// Accepted, and something is awaited: a model, a node, a worker's start.
    Pending,
    /// Both workers run.
    Running,
    /// Something has to be changed, or a worker keeps ending.
    Failed,
}

impl fmt::Display for JisConditionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Failed => "Failed",
        })
    }
}
