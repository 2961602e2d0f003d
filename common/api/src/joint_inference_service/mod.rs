//! `JointInferenceService` of `neptune.io/v1alpha1`: a small model at the edge that sends hard
//! samples to a big model in the cloud.

mod status;

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::status::{
    AgentCounters, CounterTotals, EdgeWorkerStatus, GatewayProblemStatus, GatewayStatus,
    JisCondition, JisConditionType, JointInferenceServiceStatus, NodeGatewayStatus,
    RejectedReports,
};
use crate::{KeyValue, Placement, SecretReference, SecurityContext, rules, schema};

/// JointInferenceServiceSpec describes the two workers of a joint inference.
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
    doc = "JointInferenceService is a joint inference of edge and cloud: the edge worker infers with a small model and sends samples that its hard example algorithm classifies as hard to the big model of the cloud worker.",
    printcolumn(
        name = "status",
        type_ = "string",
        description = "Status of the service",
        json_path = ".status.conditions[-1].type"
    ),
    printcolumn(
        name = "active",
        type_ = "integer",
        description = "Number of running workers",
        json_path = ".status.active"
    ),
    printcolumn(
        name = "failed",
        type_ = "integer",
        description = "Number of failed workers",
        json_path = ".status.failed"
    ),
    printcolumn(
        name = "Inference",
        type_ = "string",
        description = "Number of samples inferred",
        json_path = r#".status.metrics[?(@.key=="inferenceNumber")].value"#
    ),
    printcolumn(
        name = "HardExamples",
        type_ = "string",
        description = "Number of those samples that the cloud worker answered",
        json_path = r#".status.metrics[?(@.key=="hardExampleNumber")].value"#
    ),
    printcolumn(
        name = "UploadRatio",
        type_ = "string",
        description = "Share of samples that the cloud worker answered, 0 to 1",
        json_path = r#".status.metrics[?(@.key=="uploadCloudRatio")].value"#
    ),
    printcolumn(
        name = "Agreement",
        type_ = "string",
        description = "Estimated share of answers that are those of the cloud's model, with its 95 % interval",
        json_path = ".status.gateway.agreement"
    ),
    printcolumn(
        name = "Threshold",
        type_ = "string",
        description = "Confidence below which a sample is hard",
        json_path = ".status.gateway.threshold",
        priority = 1
    ),
    printcolumn(
        name = "Cloud",
        type_ = "string",
        description = "Whether the gateway calls the cloud",
        json_path = ".status.gateway.cloud",
        priority = 1
    ),
    printcolumn(
        name = "URL",
        type_ = "string",
        description = "Where clients of the gateway connect",
        json_path = ".status.gateway.url",
        priority = 1
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        description = "Reason of the status",
        json_path = ".status.conditions[-1].reason",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::never_null)]
pub struct JointInferenceServiceSpec {
    /// edgeWorker is the worker that receives every sample.
    pub edge_worker: EdgeWorker,
    /// cloudWorker is the worker that answers hard samples.
    pub cloud_worker: CloudWorker,
}

/// EdgeWorker is the worker on the edge node. It infers with the small model and decides which
/// samples are hard. Either nodeName or nodeSelector is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::edge_worker_placed(),
    validation = rules::edge_worker_placed_once()
)]
pub struct EdgeWorker {
    /// name is the name of the worker: letters, digits, '-' and '.'. It is part of the name of the
    /// container.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = "^[A-Za-z0-9.-]+$"))]
    pub name: String,
    /// model refers to the small model.
    pub model: ModelReference,
    /// nodeName is the name of the edge node that runs the worker: a Node with the label
    /// node-role.kubernetes.io/edge or neptune.io/runtime=agent, on which neptune-edge runs with
    /// this node name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    #[x_kube(validation = rules::node_name_not_reserved())]
    pub node_name: Option<String>,
    /// nodeSelector selects the edge nodes that run the worker by their labels, instead of
    /// nodeName.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// placement is on how many of the edge nodes that match nodeSelector the worker runs. One: on
    /// one of them, which is chosen and kept. All: on each of them, at most 64; nodes may join and
    /// leave, and the counters of all are summed. Defaults to One.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// hardExampleAlgorithm is the algorithm by which the worker detects hard samples.
    pub hard_example_algorithm: HardExampleAlgorithm,
    /// dataset refers to a Dataset on the node of the worker, as input of the inference. It is
    /// mounted read-only, with its path in DATASET_URL and its format in DATASET_FORMAT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<DatasetReference>,
    /// workerSpec describes the program that the worker runs.
    pub worker_spec: WorkerSpec,
}

/// CloudWorker is the worker with the big model. It runs as a Deployment behind a Service, or, on a
/// node with the label neptune.io/runtime=agent, as a container of the neptune-edge of that node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloudWorker {
    /// name is the name of the worker: letters, digits, '-' and '.'. It is part of the name of the
    /// Deployment.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = "^[A-Za-z0-9.-]+$"))]
    pub name: String,
    /// model refers to the big model.
    pub model: ModelReference,
    /// nodeName is the name of the node that runs the worker. A Pod on a control-plane node needs
    /// the controller's --allow-control-plane.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    #[x_kube(validation = rules::node_name_not_reserved())]
    pub node_name: String,
    /// workerSpec describes the program that the worker runs.
    pub worker_spec: WorkerSpec,
}

/// ModelReference refers to a Model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelReference {
    /// name is the name of a Model (edgeai.io) in the namespace of the service. It may be created
    /// later.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub name: String,
}

/// DatasetReference refers to a Dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatasetReference {
    /// name is the name of a Dataset (edgeai.io) in the namespace of the service. It may be created
    /// later.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub name: String,
}

/// HardExampleAlgorithm is the algorithm that detects hard samples.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HardExampleAlgorithm {
    /// name is the name of the algorithm: IBT, Threshold, CrossEntropy, Random, CloudOnly,
    /// EdgeOnly, or one that the program of the worker implements. The worker receives it in
    /// HEM_NAME.
    #[schemars(length(min = 1, max = schema::MAX_TOKEN_LENGTH))]
    pub name: String,
    /// parameters are the parameters of the algorithm, such as threshold_img for IBT. The worker
    /// receives them in HEM_PARAMETERS, a JSON list of keys and values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::unique_keys)]
    pub parameters: Vec<KeyValue>,
}

/// WorkerSpec describes the program of a worker: a script that runs on a framework, or a program in
/// its own image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerSpec {
    /// scriptDir is the directory with the scripts on the node of the worker: an absolute path,
    /// mounted read-only at the same path. An agent mounts it only below its --allow-script-dir, a
    /// Pod only below the controller's --allow-host-path. Not used with frameworkType container.
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    pub script_dir: String,
    /// scriptBootFile is the script to start, relative to scriptDir. With frameworkType container
    /// it is the first argument of the entry point of the image instead.
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    pub script_boot_file: String,
    /// frameworkType is the name of a framework in the ConfigMap neptune-frameworks. Built in are
    /// tensorflow, pytorch, python, and container for a program in workerSpec.image.
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub framework_type: String,
    /// frameworkVersion is the version of the framework, as in the tag of its image.
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub framework_version: String,
    /// parameters are the parameters of the worker. The worker receives each one in an environment
    /// variable (the key in upper case, with '_' in place of characters other than letters and
    /// digits), and all of them in PARAMETERS, a JSON list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::unique_keys)]
    pub parameters: Vec<KeyValue>,
    /// image is the container image, instead of that of the framework.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_ADDRESS_LENGTH))]
    pub image: Option<String>,
    /// resources are the resource limits of the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// env are additional environment variables. They take precedence over parameters. The
    /// variables that Neptune sets (such as SERVICE_NAME and MODEL_URL) cannot be set here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::unique_names)]
    pub env: Vec<EnvironmentVariable>,
    /// restartPolicy is when the worker is started again after it exits. Always: after every exit.
    /// OnFailure: after an exit with another exit code than 0; with 0 the worker is completed.
    /// Never: not at all. A finished worker runs again when its container changes, such as its
    /// workerSpec or its model. Workers in Pods are always restarted. Defaults to OnFailure for
    /// the edge worker and to Always for the cloud worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<RestartPolicy>,
    /// modelUpdate is how the worker is updated when its model changes. Restart: the container is
    /// replaced. Reload: the worker keeps running and receives the path of the new version on
    /// WORKER_RELOAD_TOPIC; it is restarted if it has not loaded that version within a minute.
    /// Workers in Pods, and workers whose model is a path on the node, are always restarted.
    /// Defaults to Restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_update: Option<ModelUpdate>,
    /// securityContext changes the rights of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SecurityContext>,
    /// imagePullSecrets are Secrets with the credentials for the registry of the image. Pods only:
    /// an agent uses the credentials of its node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::unique_names)]
    pub image_pull_secrets: Vec<SecretReference>,
}

/// RestartPolicy is when a worker is started again after it exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RestartPolicy {
    /// After every exit.
    Always,
    /// After an exit with another exit code than 0.
    OnFailure,
    /// Not at all.
    Never,
}

/// ModelUpdate is how a worker is updated when its model changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ModelUpdate {
    /// The container is replaced.
    #[default]
    Restart,
    /// The worker loads the model while it runs.
    Reload,
}

/// EnvironmentVariable is an environment variable of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnvironmentVariable {
    /// name is the name of the variable: letters, digits and '_', not starting with a digit.
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH), regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$"))]
    pub name: String,
    /// value is the value of the variable.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
}

/// ResourceRequirements are the resource limits of a container, as in a Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceRequirements {
    /// limits are the resource limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
}

/// Limits are the resource limits of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Limits {
    /// cpu is the CPU limit: a Kubernetes quantity in quotes, such as "1" or "500m".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = rules::above_zero())]
    pub cpu: Option<String>,
    /// memory is the memory limit: a Kubernetes quantity in quotes, such as "256Mi".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = rules::above_zero())]
    pub memory: Option<String>,
}
