//! The configuration file: its fields, defaults and checks. `docs/gateway.md` describes it.

mod capture;
mod check;
mod hosts;
mod metrics_address;
mod rule;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use serde::{Deserialize, Deserializer, de::Error as _};

pub use self::{
    capture::{CaptureConfig, Format, Labels, What},
    check::ConfigError,
    hosts::{AllowedHosts, host_of},
    metrics_address::MetricsAddress,
    rule::{Algorithm, Goal, HardExample, Rule, ScoreKind, TokenRule},
};

/// The configuration.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// Name of the service, a label of the metrics.
    pub service: String,
    /// Identity of the service among those that pass requests on to each other; no comma. Without
    /// it the gateway does not notice that a request comes back.
    #[serde(default)]
    pub id: Option<String>,
    /// What the model servers of both sides speak.
    pub protocol: Protocol,
    /// Where clients connect.
    #[serde(default = "defaults::listen")]
    pub listen: SocketAddr,
    /// Where `/metrics` and `/healthz` are served; off by default.
    #[serde(default)]
    pub metrics_listen: Option<MetricsAddress>,
    /// Where clients of gRPC connect; off by default.
    #[serde(default)]
    pub grpc_listen: Option<SocketAddr>,
    /// Hosts under which clients address the gateway, in addition to loopback.
    #[serde(default)]
    pub allowed_hosts: AllowedHosts,
    /// The model server of this node.
    pub edge: Edge,
    /// The model server that answers hard samples; without it, all samples stay at the edge.
    #[serde(default)]
    pub cloud: Option<Cloud>,
    /// Which samples are hard.
    #[serde(default)]
    pub hard_example: HardExample,
    /// What a client gets for a hard sample that the cloud does not answer.
    #[serde(default)]
    pub on_cloud_failure: OnCloudFailure,
    /// What a client gets while the edge's model server does not answer.
    #[serde(default)]
    pub on_edge_failure: OnEdgeFailure,
    /// When a streamed answer is decided.
    #[serde(default)]
    pub streaming: Streaming,
    /// Requests that never leave the node.
    #[serde(default)]
    pub never_upload: NeverUpload,
    /// Time limits.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Limits of size and number.
    #[serde(default)]
    pub limits: Limits,
    /// File for what the controller learnt; without it, a restart begins without knowledge.
    #[serde(default)]
    pub state: Option<PathBuf>,
    /// Samples that become records of a dataset; without it, none do.
    #[serde(default)]
    pub capture: Option<CaptureConfig>,
}

/// A protocol of inference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
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

/// The model server of this node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Edge {
    /// `host:port`.
    pub address: String,
    /// `host:port` of its gRPC.
    #[serde(default)]
    pub grpc_address: Option<String>,
    /// Only requests for this model are decided; the others pass through. All models by default.
    #[serde(default)]
    pub model: Option<String>,
    /// Version of the model. Another one resets what the controller learnt. By default, the
    /// version in the server's answers.
    #[serde(default)]
    pub model_version: Option<String>,
}

/// The model server in the cloud.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cloud {
    /// Its base, such as `https://llm.example/v1`.
    pub url: String,
    /// Address of its gRPC, such as `https://models.example:8001`.
    #[serde(default)]
    pub grpc_url: Option<String>,
    /// Name of the model there; by default that of the request.
    #[serde(default)]
    pub model_name: Option<String>,
    /// File with the bearer token; read again when it changes.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// Certificates to trust in addition to those of the system, PEM.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// Permits `http://` to an address other than loopback.
    #[serde(default)]
    pub allow_plain_http: bool,
    /// Addresses of host names in the URLs, which then need no name server.
    #[serde(default)]
    pub addresses: BTreeMap<String, IpAddr>,
}

/// See [`Config::on_cloud_failure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum OnCloudFailure {
    /// The edge's answer.
    #[default]
    EdgeAnswer,
    /// 502.
    Error,
}

/// See [`Config::on_edge_failure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum OnEdgeFailure {
    /// The cloud's answer, within the cap.
    #[default]
    Cloud,
    /// 503.
    Error,
}

/// See [`Config::streaming`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Timeouts {
    /// Of an answer of the edge; 10 s, with `openai` 120 s.
    #[serde(deserialize_with = "optional_duration")]
    pub edge: Option<Duration>,
    /// Of connecting to the cloud.
    #[serde(deserialize_with = "duration")]
    pub cloud_connect: Duration,
    /// Until the head of the cloud's answer; 2 s, with `openai` 10 s.
    #[serde(deserialize_with = "optional_duration")]
    pub cloud_first_byte: Option<Duration>,
    /// Of the cloud's whole answer, with a retry; 5 s, with `openai` 120 s.
    #[serde(deserialize_with = "optional_duration")]
    pub cloud_total: Option<Duration>,
    /// Of a client that sends nothing within a request.
    #[serde(deserialize_with = "duration")]
    pub client: Duration,
    /// For requests in flight at SIGTERM.
    #[serde(deserialize_with = "duration")]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
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

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let parsed = text.parse::<jiff::SignedDuration>().ok();
    parsed
        .and_then(|duration| Duration::try_from(duration).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| D::Error::custom(format!("{text:?} is no duration; write 500ms or 10s")))
}

fn optional_duration<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
    duration(d).map(Some)
}
