//! The worker in the cloud, which answers hard samples, and the other servers that may take its
//! place.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::{
    InferenceModelReference, JointInferenceServiceReference, ModelReference, ModelServer,
    WorkerSpec, rules,
};
use crate::schema;

/// CloudWorker is the worker with the big model. It runs as a Deployment behind a Service, or, on a
/// node with the label neptune.io/runtime=agent, as a container of the neptune-edge of that node.
/// One of workerSpec, server, inferenceModel, endpoint and service is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::one_cloud_worker_kind(),
    validation = rules::cloud_model_required(),
    validation = rules::cloud_model_refused(),
    validation = rules::cloud_node_required(),
    validation = rules::cloud_node_refused()
)]
pub struct CloudWorker {
    /// name is the name of the worker: letters, digits, '-' and '.'. It is part of the name of the
    /// Deployment.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = "^[A-Za-z0-9.-]+$"))]
    pub name: String,
    /// model refers to the big model. Required with workerSpec and server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelReference>,
    /// nodeName is the name of the node that runs the worker. Required with workerSpec. With server
    /// the Pod runs on any node if it is not set. A Pod on a control-plane node needs the
    /// controller's --allow-control-plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    #[x_kube(validation = crate::rules::node_name_not_reserved())]
    pub node_name: Option<String>,
    /// workerSpec describes a program of your own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_spec: Option<WorkerSpec>,
    /// server is a model server for model, instead of workerSpec. Neptune runs it as an
    /// InferenceModel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<Box<ModelServer>>,
    /// inferenceModel refers to an InferenceModel, instead of workerSpec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference_model: Option<InferenceModelReference>,
    /// endpoint is a model server that Neptune does not run, instead of workerSpec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Box<Endpoint>>,
    /// service refers to another JointInferenceService whose gateway answers, instead of
    /// workerSpec. Its gateway must be exposed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<JointInferenceServiceReference>,
}

/// Endpoint is a model server that Neptune does not run. The gateway of the edge node calls it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// url is the base URL of the server, for openai with /v1 at its end: https, or http to a
    /// loopback address.
    #[schemars(length(max = schema::MAX_URL_LENGTH))]
    #[x_kube(validation = rules::endpoint_url())]
    pub url: String,
    /// grpcUrl is the address of the gRPC of the server with its port, such as
    /// `https://models.example:8001`. Required with gateway.grpcPort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_URL_LENGTH))]
    #[x_kube(validation = rules::endpoint_grpc_url())]
    pub grpc_url: Option<String>,
    /// modelName is the name of the model in the cloud. Defaults to the name in the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = schema::MAX_TOKEN_LENGTH))]
    pub model_name: Option<String>,
    /// tokenFile is the name of a file with the bearer token, in the directory of secrets of the
    /// edge node: --secret-dir of its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH), regex(pattern = schema::FILE_NAME))]
    pub token_file: Option<String>,
    /// caFile is the name of a PEM file with certificates to trust in addition to those of the
    /// system, in the same directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH), regex(pattern = schema::FILE_NAME))]
    pub ca_file: Option<String>,
}
