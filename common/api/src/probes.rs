//! The probes of a container, in the form of a Pod.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{rules, schema};

/// Probe is a check of a container. Exactly one of exec, httpGet and tcpSocket is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::probe_has_one_action())]
pub struct Probe {
    /// exec runs a program in the container. The probe succeeds with exit code 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecAction>,
    /// httpGet sends an HTTP request to the container. The probe succeeds with status 200 to 399;
    /// redirects are not followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_get: Option<HttpGetAction>,
    /// tcpSocket connects to a port of the container. The probe succeeds if the connection is
    /// accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<TcpSocketAction>,
    /// initialDelaySeconds is the time from the start of the container to the first probe, in
    /// seconds. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub initial_delay_seconds: Option<i32>,
    /// periodSeconds is the time between two probes, in seconds. Defaults to 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub period_seconds: Option<i32>,
    /// timeoutSeconds is the time after which a probe without an answer fails, in seconds. Defaults to
    /// 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub timeout_seconds: Option<i32>,
    /// failureThreshold is the number of consecutive failures after which the probe counts as failed.
    /// Defaults to 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub failure_threshold: Option<i32>,
    /// successThreshold is the number of consecutive successes after which the probe counts as
    /// successful. Must be 1 for startupProbe and livenessProbe. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub success_threshold: Option<i32>,
}

/// ExecAction runs a program in the container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecAction {
    /// command is the program and its arguments. It is not run in a shell.
    #[schemars(length(min = 1, max = 1024))]
    pub command: Vec<String>,
}

/// HttpGetAction is an HTTP request to the container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpGetAction {
    /// path is the path of the request, which begins with '/'. Defaults to "/".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_URL_LENGTH), regex(pattern = "^/[!-~]*$"))]
    pub path: Option<String>,
    /// port is the number of the port.
    #[schemars(range(min = 1, max = 65535), extend("format" = "int32"))]
    pub port: u16,
    /// scheme is HTTP or HTTPS. The certificate of the server is not verified. Defaults to HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<HttpScheme>,
}

/// HttpScheme is the protocol of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum HttpScheme {
    /// The request is sent in plain text.
    Http,
    /// The request is sent over TLS.
    Https,
}

/// TcpSocketAction is a connection to the container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TcpSocketAction {
    /// port is the number of the port.
    #[schemars(range(min = 1, max = 65535), extend("format" = "int32"))]
    pub port: u16,
}
