//! `JointInferenceService` of `neptune.io/v1alpha1`: a small model at the edge that sends hard
//! samples to a big model in the cloud.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

/// JointInferenceServiceStatus is the observed state of a JointInferenceService.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JointInferenceServiceStatus {
    /// conditions are the states of the service, one per type. The last one is the current state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<JisCondition>,
    /// startTime is when the controller first reconciled the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// active is the number of workers that are known to run. An edge worker counts on each of its
    /// nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<i32>,
    /// failed is the number of workers in state Failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<i32>,
    /// metrics are the totals over the lifetime of the service: inferenceNumber, hardExampleNumber
    /// and uploadCloudRatio, and fallbackNumber if it is not 0. A service with a gateway also has
    /// hardNumber, overBudgetNumber, unjudgedNumber and shadowNumber, and its present agreement and
    /// threshold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<KeyValue>,
    /// metricsTime is when the controller last saw metrics change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_time: Option<Time>,
    /// observedGeneration is the metadata.generation that this status refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// reports are the counters of each edge agent. metrics is the sum of these and of folded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reports: Vec<AgentCounters>,
    /// folded is the sum of the counters of agents that are no longer listed in reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folded: Option<CounterTotals>,
    /// nodes are the nodes that have or had the edge worker, the newest last. Counters of other
    /// nodes are not counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// edgeWorkers are the edge workers that nodeSelector places, one per node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["node"]))]
    pub edge_workers: Vec<EdgeWorkerStatus>,
    /// gateway is the state of the gateways of the edge worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewayStatus>,
    /// rejected are the messages of workers and nodes that were rejected and not counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<RejectedReports>,
}

/// EdgeWorkerStatus is the edge worker of one node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EdgeWorkerStatus {
    /// node is the name of the node.
    pub node: String,
    /// state is Pending, Running, Completed or Failed, or Unknown while the node is offline or has
    /// not reported since the controller started.
    pub state: String,
    /// reason is a machine-readable CamelCase reason of the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// message is a human-readable explanation of the state and, if something is wrong, the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// gateway is the state of the gateway of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<NodeGatewayStatus>,
}

/// NodeGatewayStatus is the state of the gateway of one node. Numbers have three decimals.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeGatewayStatus {
    /// signal is from what the confidence is computed: Top2, Chosen, Scores, None or Unknown.
    pub signal: String,
    /// cloud is Reachable, LeftAlone, TokenRefused, Absent or Unknown.
    pub cloud: String,
    /// threshold is the confidence below which a sample is hard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<String>,
    /// agreement is the estimated share of answers that are those of the cloud's model, with its
    /// 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreement: Option<String>,
    /// uploadRatio is the share of the last 1000 samples that the cloud answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_ratio: Option<String>,
    /// psi is the population stability index of the confidences. Above 0.2 they drift.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub psi: Option<String>,
}

/// GatewayStatus is the state of the gateways of a service. Numbers have three decimals.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayStatus {
    /// url is where clients on the edge node connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// protocol is the protocol of clients and of both model servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// signal is from what the confidence is computed: Top2, Chosen, Scores, None or Unknown. It is
    /// absent while the nodes differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// threshold is the confidence below which a sample is hard. It is absent while the nodes
    /// differ; then each of edgeWorkers has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<String>,
    /// agreement is the estimated share of answers that are those of the cloud's model, with its
    /// 95 % interval. That of several nodes is their mean, weighted by compared samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreement: Option<String>,
    /// uploadRatio is the share of the last 1000 samples that the cloud answered. That of several
    /// nodes is their mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_ratio: Option<String>,
    /// cloud is Reachable, LeftAlone, TokenRefused, Absent or Unknown: the worst of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud: Option<String>,
    /// problems are what a user should correct, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<GatewayProblemStatus>,
    /// history are the last upload ratios, at most 20, one per minute or less, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<String>,
    /// historyTime is when the newest entry of history was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history_time: Option<Time>,
}

/// GatewayProblemStatus is a problem that the gateway of a node reports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayProblemStatus {
    /// node is the name of the node.
    pub node: String,
    /// reason is a machine-readable CamelCase reason.
    pub reason: String,
    /// message is a human-readable explanation and the remedy.
    pub message: String,
}

/// RejectedReports are the messages of a worker that its agent rejected since the agent's start, or
/// the reports of a node that the controller rejected since the last accepted one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RejectedReports {
    /// node is the name of the node.
    pub node: String,
    /// worker is the name of the worker whose messages its agent rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// count is the number of rejected messages.
    #[schemars(schema_with = "total")]
    pub count: u64,
    /// reason is why the last one was rejected.
    pub reason: String,
}

/// AgentCounters are the counters of a service for one data directory of an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentCounters {
    /// node is the name of the node.
    pub node: String,
    /// instance identifies the data directory of the agent. A wiped or replaced node has another
    /// one, whose counters start at zero.
    pub instance: String,
    /// epoch is the number of agent starts on the data directory at the time of the report.
    #[schemars(schema_with = "total")]
    pub epoch: u64,
    /// seq is the sequence number of the report within the epoch.
    #[schemars(schema_with = "total")]
    pub seq: u64,
    /// inferenceNumber is the number of samples inferred.
    #[schemars(schema_with = "total")]
    pub inference_number: u64,
    /// hardExampleNumber is the number of those samples that the cloud worker answered.
    #[schemars(schema_with = "total")]
    pub hard_example_number: u64,
    /// fallbackNumber is the number of hard samples that the cloud worker did not answer.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "total")]
    pub fallback_number: u64,
    /// hardNumber is the number of samples that a gateway decided to be hard. Like the following,
    /// it is absent for other workers.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "total")]
    pub hard_number: u64,
    /// overBudgetNumber is the number of hard samples that stayed at the edge because the cap of
    /// uploads was reached.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "total")]
    pub over_budget_number: u64,
    /// unjudgedNumber is the number of samples without a confidence.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "total")]
    pub unjudged_number: u64,
    /// shadowNumber is the number of easy samples that the cloud answered as well, for a
    /// comparison.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "total")]
    pub shadow_number: u64,
}

/// CounterTotals are the totals of several agents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CounterTotals {
    /// inferenceNumber is the number of samples inferred.
    #[schemars(schema_with = "total")]
    pub inference_number: u64,
    /// hardExampleNumber is the number of those samples that the cloud worker answered.
    #[schemars(schema_with = "total")]
    pub hard_example_number: u64,
    /// fallbackNumber is the number of hard samples that the cloud worker did not answer.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "total")]
    pub fallback_number: u64,
    /// hardNumber is the number of samples that a gateway decided to be hard. Like the following,
    /// it is absent for other workers.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "total")]
    pub hard_number: u64,
    /// overBudgetNumber is the number of hard samples that stayed at the edge because the cap of
    /// uploads was reached.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "total")]
    pub over_budget_number: u64,
    /// unjudgedNumber is the number of samples without a confidence.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "total")]
    pub unjudged_number: u64,
    /// shadowNumber is the number of easy samples that the cloud answered as well, for a
    /// comparison.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "total")]
    pub shadow_number: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

// API servers warn about the format that schemars uses for u64.
fn total(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "integer", "format": "int64", "minimum": 0 })
}

/// JisCondition is a current or previous state of a JointInferenceService.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JisCondition {
    /// type is the state.
    #[serde(rename = "type")]
    pub type_: JisConditionType,
    /// status is True while the service is in this state, and False afterwards.
    pub status: String,
    /// lastHeartbeatTime is when the condition was last updated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// lastTransitionTime is when status last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// reason is a machine-readable CamelCase reason of the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// message is a human-readable explanation of the state and, if something is wrong, the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// JisConditionType is a state of a JointInferenceService. No state is final.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum JisConditionType {
    /// The service waits, for example for a model, a node or the start of a worker.
    Pending,
    /// Both workers run.
    Running,
    /// The edge worker finished its task.
    Completed,
    /// The spec must be corrected, a worker exits repeatedly, or reports a failure.
    Failed,
}

impl fmt::Display for JisConditionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
        })
    }
}
