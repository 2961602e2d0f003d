//! The probes that agents run on the containers of workers.

use serde::{Deserialize, Serialize};

/// The probes of a container, in the terms of Kubernetes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerProbes {
    /// Until it succeeds, the other probes are not run. The container is restarted if it fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup: Option<Box<ContainerProbe>>,
    /// The container is restarted if it fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness: Option<Box<ContainerProbe>>,
    /// The worker is `Starting` until it succeeds. It is not run afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness: Option<Box<ContainerProbe>>,
}

impl ContainerProbes {
    /// Returns whether there is no probe.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One probe of a container. One of the actions is set; none is an action of a newer controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerProbe {
    /// An HTTP request, which succeeds with status 200 to 399.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_get: Option<HttpGetProbe>,
    /// A TCP port, which succeeds if a connection is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_port: Option<u16>,
    /// A program in the container with its arguments, which succeeds with exit code 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exec: Vec<String>,
    /// Time from the start of the container to the first probe, in milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub initial_delay_ms: u64,
    /// Time from the start of a probe to the start of the next one, in milliseconds.
    #[serde(default = "default_period_ms")]
    pub period_ms: u64,
    /// Time after which a probe without an answer fails, in milliseconds.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
    /// Consecutive failures after which the probe counts as failed.
    #[serde(default = "default_failures")]
    pub failures: u32,
    /// Consecutive successes after which the probe counts as successful.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub successes: u32,
}

/// An HTTP request to a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpGetProbe {
    /// Path with an optional query, which begins with `/`.
    pub path: String,
    /// Port of the container.
    pub port: u16,
    /// Whether the request is sent over TLS. The certificate is not verified.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub https: bool,
}

/// What a probe does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeAction<'a> {
    /// It sends an HTTP request.
    Http(&'a HttpGetProbe),
    /// It connects to a TCP port.
    Tcp(u16),
    /// It runs a program in the container.
    Exec(&'a [String]),
}

impl ContainerProbe {
    /// Returns what the probe does; `None` for an action of a newer controller.
    pub fn action(&self) -> Option<ProbeAction<'_>> {
        match (&self.http_get, self.tcp_port, self.exec.as_slice()) {
            (Some(http), None, []) => Some(ProbeAction::Http(http)),
            (None, Some(port), []) => Some(ProbeAction::Tcp(port)),
            (None, None, command @ [_, ..]) => Some(ProbeAction::Exec(command)),
            _ => None,
        }
    }
}

impl Default for ContainerProbe {
    /// The defaults of Kubernetes, without an action.
    fn default() -> Self {
        Self {
            http_get: None,
            tcp_port: None,
            exec: Vec::new(),
            initial_delay_ms: 0,
            period_ms: default_period_ms(),
            timeout_ms: default_timeout_ms(),
            failures: default_failures(),
            successes: one(),
        }
    }
}

fn default_period_ms() -> u64 {
    10_000
}

fn default_timeout_ms() -> u64 {
    1_000
}

fn default_failures() -> u32 {
    3
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
fn is_one(number: &u32) -> bool {
    *number == 1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn probes_have_the_form_of_the_protocol_and_unknown_actions_are_none() {
        let numbers = |mut action: serde_json::Value| {
            let numbers = json!({"periodMs": 30_000, "timeoutMs": 1_000, "failures": 3});
            action.as_object_mut().unwrap().extend(numbers.as_object().unwrap().clone());
            action
        };
        let command = ["nvidia-smi".to_owned(), "-L".to_owned()];
        let http = HttpGetProbe { path: "/ready".to_owned(), port: 8000, https: true };
        for (sent, action) in [
            (json!({"exec": command}), Some(ProbeAction::Exec(&command))),
            (json!({"tcpPort": 5}), Some(ProbeAction::Tcp(5))),
            (
                json!({"httpGet": {"path": "/ready", "port": 8000, "https": true}}),
                Some(ProbeAction::Http(&http)),
            ),
            (json!({"tcpPort": 5, "initialDelayMs": 7, "successes": 2}), Some(ProbeAction::Tcp(5))),
            (json!({}), None),
            (json!({"tcpPort": 5, "exec": command}), None),
        ] {
            let sent = numbers(sent);
            let probe: ContainerProbe = serde_json::from_value(sent.clone()).unwrap();
            assert_eq!(probe.action(), action, "{sent}");
            assert_eq!(serde_json::to_value(&probe).unwrap(), sent);
        }
        let newer: ContainerProbe = serde_json::from_value(json!({"grpcPort": 5})).unwrap();
        assert_eq!(newer, ContainerProbe::default());
        assert_eq!((newer.period_ms, newer.timeout_ms, newer.failures), (10_000, 1_000, 3));
        assert_eq!(newer.action(), None);
        assert_eq!(serde_json::to_value(ContainerProbes::default()).unwrap(), json!({}));
    }
}
