//! The clients of a gateway, and its certificate.

use neptune_gateway_config::{MAX_KEYS, MAX_MODELS, MAX_REQUESTS_PER_MINUTE, Uploads};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// GatewayClient is a client of the gateway, which shows one of its keys with each request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayClient {
    /// name is the name of the client in the status and in metrics.
    #[schemars(length(max = 63), regex(pattern = schema::CLIENT_NAME))]
    pub name: String,
    /// keySha256 is the SHA-256 of each key of the client, in hexadecimal: one, or several while
    /// a key is replaced. neptune-cloud client-key makes a key and prints its SHA-256.
    #[schemars(length(min = 1, max = MAX_KEYS), inner(regex(pattern = schema::KEY_SHA256)))]
    pub key_sha256: Vec<String>,
    /// requestsPerMinute is the maximum number of requests in any 60 seconds on each node. Requests
    /// above it are answered with 429. By default there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_REQUESTS_PER_MINUTE))]
    pub requests_per_minute: Option<i32>,
    /// uploads is whether the cloud may answer samples of the client. Never: all stay at the edge.
    /// Defaults to Allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uploads: Option<Uploads>,
    /// models are the names of the models that the client may use. Defaults to all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_MODELS.0), inner(length(min = 1, max = MAX_MODELS.1)))]
    pub models: Vec<String>,
}

/// GatewayTls is the certificate that clients of the gateway see. It is read again when the files
/// change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayTls {
    /// certFile is the name of a PEM file with the certificate chain, in the directory of secrets of
    /// the edge node: --secret-dir of its agent.
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH), regex(pattern = schema::FILE_NAME))]
    pub cert_file: String,
    /// keyFile is the name of a PEM file with the key of the certificate, in the same directory.
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH), regex(pattern = schema::FILE_NAME))]
    pub key_file: String,
}
