//! The configuration of `neptune-gateway`: its fields, defaults and checks. `docs/gateway.md`
//! describes it, and `docs/gateway.schema.json` is generated from these types.
//!
//! The controller builds a [`Config`] from the custom resource and sends it as a [`Document`]. The
//! agent adds the [`NodeMembers`] and writes the file. The gateway reads it with [`Config::parse`].
//! Everything here is a value or a pure function.

#![deny(missing_docs)]

mod algorithm;
mod capture;
mod check;
mod clients;
mod differences;
mod document;
mod duration;
mod error;
mod hosts;
mod metrics_address;
mod rule;
#[cfg(test)]
mod schema;
mod url;

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::{
    algorithm::{Algorithm, Reads, ScoreKind, TokenRule},
    capture::{CaptureConfig, Format, Labels, MIN_CAPTURE_BYTES, What},
    clients::{
        Client, ClientsError, KEY_PREFIX, MAX_CLIENTS, MAX_KEYS, MAX_MODELS,
        MAX_REQUESTS_PER_MINUTE, Uploads, check_clients, digest_text,
    },
    document::{CaptureMembers, CloudMembers, Document, EdgeMembers, NodeMembers, TlsMembers},
    error::ConfigError,
    hosts::{AllowedHosts, host_of},
    metrics_address::MetricsAddress,
    rule::{Goal, HardExample, Rule},
    url::UrlProblem,
};

/// The configuration file of `neptune-gateway`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// Name of the service, a label of the metrics.
    pub service: String,
    /// Identity of the service among those that pass requests on to each other; no comma. Without
    /// it the gateway does not notice that a request comes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Inference protocol of the model servers at the edge and in the cloud.
    pub protocol: Protocol,
    /// Address at which HTTP clients connect. Defaults to `127.0.0.1:8080`.
    #[serde(default = "defaults::listen")]
    pub listen: SocketAddr,
    /// Address at which `/metrics` and `/healthz` are served. Absent: they are not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub metrics_listen: Option<MetricsAddress>,
    /// Address at which gRPC clients connect. Absent: gRPC is not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_listen: Option<SocketAddr>,
    /// Hosts under which clients address the gateway, in addition to loopback.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(with = "Vec<String>")]
    pub allowed_hosts: AllowedHosts,
    /// The clients that may use the gateway, each with its keys. Without clients, requests need no
    /// key.
    #[serde(default, skip_serializing_if = "is_default")]
    pub clients: Vec<Client>,
    /// The certificate that clients see. Absent: `listen` and `grpcListen` are without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// The model server of this node.
    pub edge: Edge,
    /// The model server that answers hard samples; without it, all samples stay at the edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud: Option<Cloud>,
    /// The rule that decides which samples are hard.
    #[serde(default, skip_serializing_if = "is_default", serialize_with = "differences::write")]
    pub hard_example: HardExample,
    /// What a client gets for a hard sample that the cloud does not answer.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_cloud_failure: OnCloudFailure,
    /// What a client gets while the edge's model server does not answer.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_edge_failure: OnEdgeFailure,
    /// When the gateway decides a streamed answer.
    #[serde(default, skip_serializing_if = "is_default")]
    pub streaming: Streaming,
    /// Requests that never leave the node.
    #[serde(default, skip_serializing_if = "is_default")]
    pub never_upload: NeverUpload,
    /// Time limits of connections and answers.
    #[serde(default, skip_serializing_if = "is_default", serialize_with = "differences::write")]
    pub timeouts: Timeouts,
    /// Limits of size and number.
    #[serde(default, skip_serializing_if = "is_default", serialize_with = "differences::write")]
    pub limits: Limits,
    /// File for what the controller learnt; without it, a restart begins without knowledge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<PathBuf>,
    /// Samples that become records of a dataset; without it, none do.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "differences::write_optional"
    )]
    pub capture: Option<CaptureConfig>,
}

/// A protocol of inference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Chat and text completions of the `OpenAI` API.
    Openai,
    /// Open Inference Protocol, version 2, over REST and gRPC.
    Oip,
    /// The REST API of TensorFlow Serving.
    Tfserving,
}

impl Protocol {
    /// The name in the configuration and in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Oip => "oip",
            Self::Tfserving => "tfserving",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The certificate of the gateway, and its key. Both files are read again when they change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tls {
    /// File with the certificate chain, PEM, the gateway's own first.
    pub cert_file: PathBuf,
    /// File with the key of the certificate, PEM.
    pub key_file: PathBuf,
}

/// The model server of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Edge {
    /// Address of the model server as `host:port`.
    pub address: String,
    /// Address of the model server's gRPC as `host:port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_address: Option<String>,
    /// Name of the model whose requests are decided; others pass through. Defaults to all models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Version of the model. Another version resets what the controller learnt. Defaults to the
    /// version in the server's answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_version: Option<String>,
}

/// The model server in the cloud.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cloud {
    /// Base URL of the model server, such as `https://llm.example/v1`.
    pub url: String,
    /// URL of the model server's gRPC, such as `https://models.example:8001`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_url: Option<String>,
    /// Name of the model in the cloud. Defaults to the name in the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// File with the bearer token; read again when it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Certificates to trust in addition to those of the system, PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// Permits `http://` to an address other than loopback.
    #[serde(default, skip_serializing_if = "is_default")]
    pub allow_plain_http: bool,
    /// Addresses of host names in the URLs, which then need no name server.
    #[serde(default, skip_serializing_if = "is_default")]
    pub addresses: BTreeMap<String, IpAddr>,
}

/// What a client gets for a hard sample that the cloud does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum OnCloudFailure {
    /// The client gets the edge's answer.
    #[default]
    EdgeAnswer,
    /// The client gets an error 502.
    Error,
}

/// What a client gets while the edge's model server does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum OnEdgeFailure {
    /// The client gets the cloud's answer, within the cap.
    #[default]
    Cloud,
    /// The client gets an error 503.
    Error,
}

/// When the gateway decides a streamed answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Streaming {
    /// `Buffer` up to 256 `max_tokens`, else `Prefix`.
    #[default]
    Auto,
    /// The gateway decides on the whole answer.
    Buffer,
    /// The gateway decides on the first 16 tokens.
    Prefix,
    /// Streamed answers stay at the edge.
    EdgeOnly,
}

/// Requests that never leave the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NeverUpload {
    /// Headers that mark such a request, each as `name: value`.
    pub headers: Vec<String>,
}

impl Default for NeverUpload {
    fn default() -> Self {
        Self { headers: vec!["x-neptune-route: edge".to_owned()] }
    }
}

/// Time limits, such as `500ms` or `2m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Timeouts {
    /// Timeout of an answer of the edge. Defaults to 10 s, with `openai` to 120 s.
    #[serde(with = "duration::optional")]
    #[schemars(with = "String")]
    pub edge: Option<Duration>,
    /// Timeout of connecting to the cloud. Defaults to 1 s.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub cloud_connect: Duration,
    /// Timeout of the head of the cloud's answer. Defaults to 2 s, with `openai` to 10 s.
    #[serde(with = "duration::optional")]
    #[schemars(with = "String")]
    pub cloud_first_byte: Option<Duration>,
    /// Timeout of the cloud's whole answer, with a retry. Defaults to 5 s, with `openai` to 120 s.
    #[serde(with = "duration::optional")]
    #[schemars(with = "String")]
    pub cloud_total: Option<Duration>,
    /// Timeout of a client that sends nothing within a request. Defaults to 10 s.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub client: Duration,
    /// Time for requests in flight to end after SIGTERM. Defaults to 25 s.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            edge: None,
            cloud_connect: Duration::from_secs(1),
            cloud_first_byte: None,
            cloud_total: None,
            client: Duration::from_secs(10),
            drain: Duration::from_secs(25),
        }
    }
}

/// Limits of size and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Limits {
    /// Maximum size in bytes of a request's body, and of a judged answer. Defaults to 32 MiB.
    pub max_body_bytes: usize,
    /// Maximum number of requests in flight. Defaults to 256.
    pub max_in_flight: usize,
    /// Maximum size in bytes of answers and shadows in memory. Defaults to that of two answers, and
    /// at least 192 MiB.
    pub max_answer_bytes: Option<usize>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_body_bytes: 32 * 1024 * 1024, max_in_flight: 256, max_answer_bytes: None }
    }
}

impl Config {
    /// Timeout of an answer of the edge.
    pub fn edge_timeout(&self) -> Duration {
        self.timeouts.edge.unwrap_or(self.by_protocol(120, 10))
    }

    /// Timeout until the head of the cloud's answer.
    pub fn cloud_first_byte(&self) -> Duration {
        self.timeouts.cloud_first_byte.unwrap_or(self.by_protocol(10, 2))
    }

    /// Timeout of the cloud's whole answer.
    pub fn cloud_total(&self) -> Duration {
        self.timeouts.cloud_total.unwrap_or(self.by_protocol(120, 5))
    }

    fn by_protocol(&self, openai: u64, others: u64) -> Duration {
        Duration::from_secs(if self.protocol == Protocol::Openai { openai } else { others })
    }
}

mod defaults {
    use std::net::{Ipv4Addr, SocketAddr};

    pub(super) fn listen() -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 8080).into()
    }
}

/// Whether a member has its default value, and is left out.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
