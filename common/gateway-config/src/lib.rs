//! The configuration of `neptune-gateway`: its fields, defaults and checks. `docs/gateway.md`
//! describes it, and `docs/gateway.schema.json` is generated from these types.
//!
//! The controller builds a [`Config`] from the custom resource and sends it as a [`Document`]. The
//! agent adds the [`NodeMembers`] and writes the file. The gateway reads it with [`Config::parse`].
//! Everything here is a value or a pure function.

#![deny(missing_docs)]

mod capture;
mod check;
mod differences;
mod document;
mod duration;
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
    capture::{CaptureConfig, Format, Labels, MIN_CAPTURE_BYTES, What},
    check::ConfigError,
    document::{CaptureMembers, CloudMembers, Document, EdgeMembers, NodeMembers},
    duration::parse as parse_duration,
    hosts::{AllowedHosts, host_of},
    metrics_address::MetricsAddress,
    rule::{Algorithm, Goal, HardExample, Reads, Rule, ScoreKind, TokenRule},
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
    /// What the model servers of both sides speak.
    pub protocol: Protocol,
    /// Where clients connect.
    #[serde(default = "defaults::listen")]
    pub listen: SocketAddr,
    /// Where `/metrics` and `/healthz` are served; off by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub metrics_listen: Option<MetricsAddress>,
    /// Where clients of gRPC connect; off by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_listen: Option<SocketAddr>,
    /// Hosts under which clients address the gateway, in addition to loopback.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(with = "Vec<String>")]
    pub allowed_hosts: AllowedHosts,
    /// The model server of this node.
    pub edge: Edge,
    /// The model server that answers hard samples; without it, all samples stay at the edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud: Option<Cloud>,
    /// Which samples are hard.
    #[serde(default, skip_serializing_if = "is_default", serialize_with = "differences::write")]
    pub hard_example: HardExample,
    /// What a client gets for a hard sample that the cloud does not answer.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_cloud_failure: OnCloudFailure,
    /// What a client gets while the edge's model server does not answer.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_edge_failure: OnEdgeFailure,
    /// When a streamed answer is decided.
    #[serde(default, skip_serializing_if = "is_default")]
    pub streaming: Streaming,
    /// Requests that never leave the node.
    #[serde(default, skip_serializing_if = "is_default")]
    pub never_upload: NeverUpload,
    /// Time limits.
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
    /// Chat and text completions.
    Openai,
    /// Open Inference Protocol, version 2, over REST and gRPC.
    Oip,
    /// REST of TensorFlow Serving.
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

/// The model server of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Edge {
    /// `host:port`.
    pub address: String,
    /// `host:port` of its gRPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_address: Option<String>,
    /// Only requests for this model are decided; the others pass through. All models by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Version of the model. Another one resets what the controller learnt. By default, the
    /// version in the server's answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_version: Option<String>,
}

/// The model server in the cloud.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cloud {
    /// Its base, such as `https://llm.example/v1`.
    pub url: String,
    /// Address of its gRPC, such as `https://models.example:8001`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_url: Option<String>,
    /// Name of the model there; by default that of the request.
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
    /// The edge's answer.
    #[default]
    EdgeAnswer,
    /// 502.
    Error,
}

/// What a client gets while the edge's model server does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum OnEdgeFailure {
    /// The cloud's answer, within the cap.
    #[default]
    Cloud,
    /// 503.
    Error,
}

/// When a streamed answer is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Streaming {
    /// `Buffer` up to 256 `max_tokens`, else `Prefix`.
    #[default]
    Auto,
    /// On the whole answer.
    Buffer,
    /// On the first 16 tokens.
    Prefix,
    /// Streamed answers stay at the edge.
    EdgeOnly,
}

/// Requests that never leave the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NeverUpload {
    /// `name: value` of headers.
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
    /// Of an answer of the edge; 10 s, with `openai` 120 s.
    #[serde(with = "duration::optional")]
    #[schemars(with = "String")]
    pub edge: Option<Duration>,
    /// Of connecting to the cloud.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub cloud_connect: Duration,
    /// Until the head of the cloud's answer; 2 s, with `openai` 10 s.
    #[serde(with = "duration::optional")]
    #[schemars(with = "String")]
    pub cloud_first_byte: Option<Duration>,
    /// Of the cloud's whole answer, with a retry; 5 s, with `openai` 120 s.
    #[serde(with = "duration::optional")]
    #[schemars(with = "String")]
    pub cloud_total: Option<Duration>,
    /// Of a client that sends nothing within a request.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub client: Duration,
    /// For requests in flight at SIGTERM.
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
    /// Bytes of a request's body, and of an answer that is judged.
    pub max_body_bytes: usize,
    /// Requests at a time.
    pub max_in_flight: usize,
    /// Bytes of answers and shadows that are held at a time; by default those of two answers, and
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
