//! `JointInferenceService` of `neptune.io/v1alpha1`: a small model at the edge that sends hard
//! samples to a big model in the cloud.

mod capture;
mod cloud_worker;
mod counters;
mod edge_worker;
mod gateway;
mod gateway_clients;
mod hard_example;
mod model_server;
mod node_value;
mod references;
mod rules;
mod selected_model;
mod status;
mod worker_spec;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

pub(crate) use self::counters::{is_zero, total};
pub use self::{
    capture::Capture,
    cloud_worker::{CloudWorker, Endpoint},
    counters::{AgentCounters, CounterTotals},
    edge_worker::EdgeWorker,
    gateway::{Gateway, GatewayTimeouts, NeverUpload},
    gateway_clients::{GatewayClient, GatewayTls},
    hard_example::{Goal, HardExampleAlgorithm},
    model_server::ModelServer,
    node_value::{ValueSource, VariableSource, WorkerParameter, WorkerVariable},
    references::{
        DatasetReference, EdgeModel, InferenceModelReference, JointInferenceServiceReference,
        ModelReference, ModelSelector, SelectionMode, TierAddress,
    },
    selected_model::{FailedModel, NotComparedModel, SelectedModel, SelectionCause},
    status::{
        CaptureStatus, EdgeWorkerStatus, GatewayClientStatus, GatewayProblemStatus, GatewayStatus,
        JisCondition, JisConditionType, JointInferenceServiceStatus, NodeCounts, NodeGatewayStatus,
        NodeSlices, RejectedReports, TierStatus, TotalUploadStatus,
    },
    worker_spec::{ModelUpdate, RestartPolicy, WorkerSpec},
};
use crate::{Rollout, schema};

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
        name = "Nodes",
        type_ = "string",
        description = "Nodes on which the edge worker is ready, of those that nodeSelector selects",
        json_path = ".status.nodeCounts.summary"
    ),
    printcolumn(
        name = "Rollout",
        type_ = "string",
        description = "Nodes that are ready with the last change, of all nodes, or Paused",
        json_path = ".status.rollout.summary"
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
        name = "ServiceURL",
        type_ = "string",
        description = "Where clients on other nodes reach the Service of the gateway",
        json_path = ".status.gateway.serviceUrl",
        priority = 1
    ),
    printcolumn(
        name = "Model",
        type_ = "string",
        description = "Model that edgeWorker.model.selector chose",
        json_path = ".status.model.name",
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
#[x_kube(
    validation = rules::gateway_needed(),
    validation = rules::worker_calls_worker(),
    validation = rules::grpc_needs_grpc_url(),
    validation = rules::grpc_url_needs_grpc(),
    validation = rules::grpc_refused_with_worker()
)]
pub struct JointInferenceServiceSpec {
    /// edgeWorker is the worker that receives every sample.
    pub edge_worker: EdgeWorker,
    /// cloudWorker is the worker that answers hard samples.
    pub cloud_worker: CloudWorker,
    /// gateway configures the gateway at the edge, with edgeWorker.server or
    /// edgeWorker.inferenceModel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Box<Gateway>>,
    /// rollout makes a change reach the nodes of the edge worker in waves. Without it, all nodes get
    /// a change at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Box<Rollout>>,
}
