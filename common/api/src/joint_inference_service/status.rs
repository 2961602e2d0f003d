//! The observed state of a `JointInferenceService`.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AgentCounters, CounterTotals, SelectedModel, counters::total, rules};
use crate::{KeyValue, RolloutStatus};

/// JointInferenceServiceStatus is the observed state of a JointInferenceService.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::status_of_slices(), validation = rules::reports_stay_in_slices())]
pub struct JointInferenceServiceStatus {
    /// conditions are the states of the service, one per type. The last one is the current state. Its
    /// status is Unknown while a node is offline: then it is the state that was known last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<JisCondition>,
    /// startTime is when the controller first reconciled the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// active is the number of workers that run. An edge worker counts on each of its nodes. A worker
    /// on an offline node counts as it was reported last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<i32>,
    /// failed is the number of workers in state Failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<i32>,
    /// metrics are the totals over the lifetime of the service: inferenceNumber, hardExampleNumber
    /// and uploadCloudRatio, and fallbackNumber if it is not 0. A service with a gateway also has
    /// hardNumber, overBudgetNumber, unjudgedNumber and shadowNumber, deadlineNumber if it is not 0,
    /// and its present agreement and threshold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = bounded_texts)]
    pub metrics: Vec<KeyValue>,
    /// metricsTime is when the controller last saw metrics change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_time: Option<Time>,
    /// observedGeneration is the metadata.generation that this status refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// nodeCounts are the numbers of nodes that nodeSelector selects, by the state of their edge
    /// worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_counts: Option<NodeCounts>,
    /// totals are the numbers of metrics, of a service with more than 32 nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub totals: Option<CounterTotals>,
    /// slices are the NodeReportSlices with the counters of a service that has or had more than 32
    /// nodes. Such a service has no reports in its status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slices: Option<NodeSlices>,
    /// reports are the counters of each edge agent. metrics is the sum of these and of folded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reports: Vec<AgentCounters>,
    /// folded is the sum of the counters of agents that are no longer listed in reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folded: Option<CounterTotals>,
    /// nodes are the nodes that have or had the edge worker, the newest last. Counters of other
    /// nodes are not counted. Of a service with slices they are the nodes that have it, if there are
    /// at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// edgeWorkers are the edge workers that nodeSelector places, one per node. Of more than 64 nodes
    /// they are 32 of those that need attention most: Failed, then Pending, degraded and Unknown. Of
    /// 33 to 64 nodes, those come first, and only 16 of them have a reason and a message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub edge_workers: Vec<EdgeWorkerStatus>,
    /// tiers are the tiers of a chain of services and how many samples of this service each one
    /// answered, this service first. Only services with cloudWorker.service have them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierStatus>,
    /// totalUpload is the state of goal.totalUploadRatio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_upload: Option<Box<TotalUploadStatus>>,
    /// gateway is the state of the gateways of the edge worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Box<GatewayStatus>>,
    /// model is the Model that edgeWorker.model.selector chose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Box<SelectedModel>>,
    /// rejected are the messages of workers and nodes that were rejected and not counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<RejectedReports>,
    /// rollout is how far the last change reached. Only services with spec.rollout have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Box<RolloutStatus>>,
}

/// NodeCounts are the numbers of nodes by the state of their edge worker. While the controller waits
/// for the first reports after its start, they stay as they were.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeCounts {
    /// summary is ready and desired, such as 2988/3000.
    pub summary: String,
    /// desired is the number of nodes that should have the edge worker.
    pub desired: i32,
    /// ready is the number of nodes on which it runs, also degraded or with an update in progress.
    pub ready: i32,
    /// pending is the number of nodes on which it is starting, or waits for something.
    pub pending: i32,
    /// failed is the number of nodes on which it is Failed.
    pub failed: i32,
    /// completed is the number of nodes on which it is Completed.
    pub completed: i32,
    /// offline is the number of nodes that are offline.
    pub offline: i32,
    /// unknown is the number of nodes that have not reported since the controller started.
    pub unknown: i32,
    /// silent is the number of those in ready that counted no sample for silentAfterSeconds.
    #[serde(default, skip_serializing_if = "crate::rollout::is_zero")]
    pub silent: i32,
}

/// NodeSlices are the NodeReportSlices of an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeSlices {
    /// count is the number of slices.
    pub count: i32,
    /// nodes is the number of nodes that have or had the edge worker.
    pub nodes: i32,
}

/// TotalUploadStatus is the share of uploads of the last service of a chain, which keeps
/// goal.totalUploadRatio.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TotalUploadStatus {
    /// goal is the goal.totalUploadRatio that the service keeps.
    pub goal: String,
    /// uploadRatio is the share of its own samples that the service sends up. It changes by at most
    /// a tenth per hour.
    pub upload_ratio: String,
    /// since is when uploadRatio was set.
    pub since: Time,
}

/// TierStatus is one tier of a chain of services.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TierStatus {
    /// service is the name of the service. The last tier is the cloud of the last service, as
    /// NAME/cloud.
    pub service: String,
    /// answered is the number of samples of the first service that this tier answered.
    #[schemars(schema_with = "total")]
    pub answered: u64,
    /// share is the share of these samples in all samples of the first service. The shares of all
    /// tiers sum to exactly 1.
    pub share: String,
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
    pub gateway: Option<Box<NodeGatewayStatus>>,
}

/// NodeGatewayStatus is the state of the gateway of one node. Numbers have three decimals.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeGatewayStatus {
    /// signal is from what the confidence is computed: Top2, Chosen, Scores, None or Unknown.
    pub signal: String,
    /// cloud is Reachable, LeftAlone, RequestsRefused, TokenRefused, Absent or Unknown.
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
    /// url is the address for clients on the edge node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// grpcUrl is the address for gRPC clients on the edge node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_url: Option<String>,
    /// serviceUrl is where clients in the cluster, and on other nodes through EdgeMesh, reach the
    /// Service of an exposed gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_url: Option<String>,
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
    /// cloud is Reachable, LeftAlone, RequestsRefused, TokenRefused, Absent or Unknown: the worst of
    /// the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud: Option<String>,
    /// capture is the number of samples that the gateways record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capture: Option<CaptureStatus>,
    /// clients are the counts of the first 32 clients of the gateway: the sum over the nodes whose
    /// gateways report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub clients: Vec<GatewayClientStatus>,
    /// problems are the problems that a user should correct, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<GatewayProblemStatus>,
    /// history are the last upload ratios, at most 20, one per minute or less, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<String>,
    /// historyTime is when the newest entry of history was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history_time: Option<Time>,
}

/// CaptureStatus is the number of samples that the gateways of a service record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CaptureStatus {
    /// captured is the number of samples recorded since the gateway started.
    pub captured: i64,
    /// dropped is the number of samples not recorded since then, because the disk is too slow, full
    /// or cannot be written.
    pub dropped: i64,
    /// bytes is the size of all records.
    pub bytes: i64,
}

/// GatewayClientStatus is what a client of the gateways asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayClientStatus {
    /// name is the name of the client.
    pub name: String,
    /// since is when the first of the gateways began to count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// requests is the number of requests with a key of the client.
    pub requests: i64,
    /// refused is the number of these that were refused: above the rate, or for another model.
    pub refused: i64,
    /// samples is the number of answered samples.
    pub samples: i64,
    /// uploads is the number of these that the cloud answered.
    pub uploads: i64,
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

/// Bounds the keys and values of a list, which a rule reads.
fn bounded_texts(schema: &mut schemars::Schema) {
    for field in ["key", "value"] {
        if let Some(text) = schema.pointer_mut(&format!("/items/properties/{field}")) {
            text["maxLength"] = 64.into();
        }
    }
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
    /// Both the edge worker and the cloud worker run.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn condition_types_are_shown_as_they_are_stored() {
        use JisConditionType::{Completed, Failed, Pending, Running};
        for type_ in [Pending, Running, Completed, Failed] {
            assert_eq!(serde_json::to_value(type_).unwrap(), type_.to_string());
        }
    }
}
