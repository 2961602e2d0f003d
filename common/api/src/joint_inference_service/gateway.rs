//! The gateway in front of the edge's model server.

use kube::KubeSchema;
use neptune_gateway_config::{OnCloudFailure, OnEdgeFailure, Streaming};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Capture, GatewayClient, GatewayTls, rules};
use crate::schema;

/// Gateway configures the gateway in front of the model server of the edge node. Clients send their
/// requests to it as to the model server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::grpc_port_differs())]
pub struct Gateway {
    /// port is the port of the gateway on the edge node. Defaults to 8080.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<i32>,
    /// grpcPort is the port of the gateway on the edge node for gRPC, with protocol oip. The model
    /// servers of edge and cloud need gRPC too. Without it the gateway offers REST only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub grpc_port: Option<i32>,
    /// expose: true lets the gateway listen on every address of the node, and creates a Service for
    /// it. By default it listens on the loopback address 127.0.0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expose: Option<bool>,
    /// clients are the clients that may use the gateway, at most 64, each with its keys. Without
    /// clients, requests need no key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::clients)]
    pub clients: Vec<GatewayClient>,
    /// tls is the certificate of the gateway. Without it, clients connect without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<GatewayTls>,
    /// onCloudFailure is what a client gets for a hard sample that the cloud does not answer. Defaults
    /// to EdgeAnswer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_cloud_failure: Option<OnCloudFailure>,
    /// onEdgeFailure is what a client gets while the model server of the node does not answer.
    /// Defaults to Cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_edge_failure: Option<OnEdgeFailure>,
    /// timeouts are the time limits of connections and answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<GatewayTimeouts>,
    /// streaming is when a streamed answer is decided. Auto: Buffer if the request limits the
    /// answer to at most 256 tokens, else Prefix. Buffer: on the whole answer. Prefix: on the first
    /// 16 tokens. EdgeOnly: streams stay at the edge. Defaults to Auto.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streaming: Option<Streaming>,
    /// neverUpload are the requests that stay at the edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub never_upload: Option<NeverUpload>,
    /// maxBodyBytes is the maximum size of the body of a request: a Kubernetes quantity in quotes.
    /// Defaults to "32Mi".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = crate::rules::above_zero())]
    pub max_body_bytes: Option<String>,
    /// maxInFlight is the maximum number of requests at a time. Defaults to 256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub max_in_flight: Option<i32>,
    /// capture records samples for training in a Dataset of the node. Without it none are recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capture: Option<Box<Capture>>,
}

/// GatewayTimeouts are time limits, such as 500ms, 10s or 2m.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayTimeouts {
    /// edge is the time limit of an answer of the edge. Defaults to 10s, with protocol openai to
    /// 120s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = schema::DURATION))]
    pub edge: Option<String>,
    /// cloudConnect is the time limit of a connection to the cloud. Defaults to 1s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = schema::DURATION))]
    pub cloud_connect: Option<String>,
    /// cloudFirstByte is the time limit of the head of the cloud's answer. Defaults to 2s, with
    /// protocol openai to 10s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = schema::DURATION))]
    pub cloud_first_byte: Option<String>,
    /// cloudTotal is the time limit of the cloud's whole answer. Defaults to 5s, with protocol
    /// openai to 120s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = schema::DURATION))]
    pub cloud_total: Option<String>,
}

/// NeverUpload are the requests that stay at the edge.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NeverUpload {
    /// headers are the headers of such requests, as "name: value". Defaults to
    /// "x-neptune-route: edge".
    #[schemars(length(max = 32), inner(length(max = 1024), regex(pattern = schema::HEADER)))]
    pub headers: Vec<String>,
}
