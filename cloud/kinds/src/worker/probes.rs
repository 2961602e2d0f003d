//! Validates the probes of a worker, and converts them to those of a container of an agent. Those of
//! Pods are rendered by `kubernetes/pod_probes`.

use neptune_api::{HttpGetAction, HttpScheme, Probe, WorkerSpec};
use neptune_wire::{ContainerProbe, ContainerProbes, HttpGetProbe};

use crate::{finding::Finding, reason::Reason};

/// The path of a request without one.
const ROOT: &str = "/";

/// Milliseconds of a second.
const SECOND: u64 = 1000;

/// Adds a finding for each invalid probe. `field` is the `workerSpec`.
pub fn check(field: &str, spec: &WorkerSpec, findings: &mut Vec<Finding>) {
    let probes = [
        ("startupProbe", &spec.startup_probe, true),
        ("livenessProbe", &spec.liveness_probe, true),
        ("readinessProbe", &spec.readiness_probe, false),
    ];
    for (name, probe, restarts) in probes {
        let Some(probe) = probe else { continue };
        let problems = problems(probe, restarts);
        findings.extend(problems.into_iter().map(|problem| {
            Finding::new(Reason::WorkerInvalid, format!("{field}.{name}{problem}"))
        }));
    }
}

fn problems(probe: &Probe, restarts: bool) -> Vec<String> {
    let Probe { exec, http_get, tcp_socket, .. } = probe;
    let mut problems = Vec::new();
    let actions = [exec.is_some(), http_get.is_some(), tcp_socket.is_some()].into_iter();
    if actions.filter(|it| *it).count() != 1 {
        problems.push(" must have exactly one of exec, httpGet and tcpSocket".to_owned());
    }
    if exec.as_ref().is_some_and(|exec| exec.command.is_empty()) {
        problems.push(".exec.command is empty; set it to a program in the container".to_owned());
    }
    let path = http_get.as_ref().and_then(|http| http.path.as_ref());
    if let Some(path) = path.filter(|path| !is_path(path)) {
        problems.push(format!(
            ".httpGet.path {path:?} must begin with '/' and have neither spaces nor other characters than those of ASCII"
        ));
    }
    let http_port = http_get.as_ref().map(|http| (".httpGet.port", http.port));
    let tcp_port = tcp_socket.as_ref().map(|tcp| (".tcpSocket.port", tcp.port));
    for (field, _) in [http_port, tcp_port].into_iter().flatten().filter(|(_, port)| *port == 0) {
        problems.push(format!("{field} is 0; it must be 1 to 65535"));
    }
    let numbers = [
        ("initialDelaySeconds", probe.initial_delay_seconds, 0),
        ("periodSeconds", probe.period_seconds, 1),
        ("timeoutSeconds", probe.timeout_seconds, 1),
        ("failureThreshold", probe.failure_threshold, 1),
        ("successThreshold", probe.success_threshold, 1),
    ];
    for (field, number, least) in numbers {
        if let Some(number) = number.filter(|number| *number < least) {
            problems.push(format!(".{field} is {number}; it must be at least {least}"));
        }
    }
    if let Some(number) = probe.success_threshold.filter(|number| restarts && *number > 1) {
        problems.push(format!(
            ".successThreshold is {number}; it must be 1, only readinessProbe may require more"
        ));
    }
    problems
}

/// Whether a path can be sent in a request as it is.
fn is_path(path: &str) -> bool {
    path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The probes of a container of an agent. They passed [`check`].
pub fn agent_probes(spec: &WorkerSpec) -> ContainerProbes {
    let probe = |probe: &Option<Box<Probe>>| probe.as_deref().map(agent_probe).map(Box::new);
    ContainerProbes {
        startup: probe(&spec.startup_probe),
        liveness: probe(&spec.liveness_probe),
        readiness: probe(&spec.readiness_probe),
    }
}

fn agent_probe(probe: &Probe) -> ContainerProbe {
    let defaults = ContainerProbe::default();
    let milliseconds = |seconds: Option<i32>, default: u64| {
        seconds.and_then(|it| u64::try_from(it).ok()).map_or(default, |it| it * SECOND)
    };
    let number = |number: Option<i32>, default: u32| {
        number.and_then(|it| u32::try_from(it).ok()).unwrap_or(default)
    };
    ContainerProbe {
        http_get: probe.http_get.as_ref().map(http_get),
        tcp_port: probe.tcp_socket.as_ref().map(|tcp| tcp.port),
        exec: probe.exec.as_ref().map(|exec| exec.command.clone()).unwrap_or_default(),
        initial_delay_ms: milliseconds(probe.initial_delay_seconds, defaults.initial_delay_ms),
        period_ms: milliseconds(probe.period_seconds, defaults.period_ms),
        timeout_ms: milliseconds(probe.timeout_seconds, defaults.timeout_ms),
        failures: number(probe.failure_threshold, defaults.failures),
        successes: number(probe.success_threshold, defaults.successes),
    }
}

fn http_get(action: &HttpGetAction) -> HttpGetProbe {
    HttpGetProbe {
        path: action.path.clone().unwrap_or_else(|| ROOT.to_owned()),
        port: action.port,
        https: action.scheme == Some(HttpScheme::Https),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn spec(probes: &Value) -> WorkerSpec {
        let mut spec = json!({"frameworkType": "container", "image": "a:1"});
        spec.as_object_mut().unwrap().extend(probes.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    fn problems(probes: &Value) -> Vec<String> {
        let mut findings = Vec::new();
        check("spec", &spec(probes), &mut findings);
        assert!(findings.iter().all(|finding| finding.reason == Reason::WorkerInvalid));
        findings.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn probes_become_those_of_an_agent_with_the_defaults_of_kubernetes() {
        let probes = json!({
            "startupProbe": {"httpGet": {"path": "/ready", "port": 8000}, "periodSeconds": 2, "failureThreshold": 60},
            "livenessProbe": {"exec": {"command": ["nvidia-smi", "-L"]}, "periodSeconds": 30},
            "readinessProbe": {
                "httpGet": {"port": 8443, "scheme": "HTTPS"},
                "initialDelaySeconds": 5, "timeoutSeconds": 3, "successThreshold": 2,
            },
        });
        assert_eq!(problems(&probes), [""; 0]);
        let expected = json!({
            "startup": {"httpGet": {"path": "/ready", "port": 8000}, "periodMs": 2000, "timeoutMs": 1000, "failures": 60},
            "liveness": {"exec": ["nvidia-smi", "-L"], "periodMs": 30_000, "timeoutMs": 1000, "failures": 3},
            "readiness": {
                "httpGet": {"path": "/", "port": 8443, "https": true}, "initialDelayMs": 5000,
                "periodMs": 10_000, "timeoutMs": 3000, "failures": 3, "successes": 2,
            },
        });
        assert_eq!(serde_json::to_value(agent_probes(&spec(&probes))).unwrap(), expected);
        assert!(agent_probes(&spec(&json!({}))).is_empty());
    }

    #[test]
    fn invalid_probe_is_named_with_its_remedy() {
        let tcp = |fields: Value| {
            let mut probe = json!({"tcpSocket": {"port": 1}});
            probe.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            probe
        };
        for (probe, problem) in [
            (json!({}), " must have exactly one of exec, httpGet and tcpSocket"),
            (tcp(json!({"exec": {"command": ["a"]}})), " must have exactly one of"),
            (json!({"exec": {"command": []}}), ".exec.command is empty"),
            (json!({"httpGet": {"port": 0}}), ".httpGet.port is 0; it must be 1 to 65535"),
            (json!({"tcpSocket": {"port": 0}}), ".tcpSocket.port is 0"),
            (json!({"httpGet": {"port": 1, "path": "a"}}), ".httpGet.path \"a\" must begin with"),
            (json!({"httpGet": {"port": 1, "path": "/ a"}}), ".httpGet.path \"/ a\" must"),
            (json!({"httpGet": {"port": 1, "path": "/\r\nA: b"}}), ".httpGet.path \"/\\r\\nA: b\""),
            (tcp(json!({"initialDelaySeconds": -1})), ".initialDelaySeconds is -1; it must be at"),
            (tcp(json!({"periodSeconds": 0})), ".periodSeconds is 0; it must be at least 1"),
            (tcp(json!({"timeoutSeconds": 0})), ".timeoutSeconds is 0"),
            (tcp(json!({"failureThreshold": 0})), ".failureThreshold is 0"),
            (tcp(json!({"successThreshold": 0})), ".successThreshold is 0"),
        ] {
            for name in ["startupProbe", "livenessProbe", "readinessProbe"] {
                let problems = problems(&json!({ name: probe }));
                assert_eq!(problems.len(), 1, "{probe}: {problems:?}");
                let start = format!("spec.{name}{problem}");
                assert!(problems[0].starts_with(&start), "{}", problems[0]);
            }
        }
        let twice = tcp(json!({"successThreshold": 2}));
        for (name, count) in [("startupProbe", 1), ("livenessProbe", 1), ("readinessProbe", 0)] {
            assert_eq!(problems(&json!({ name: twice })).len(), count, "{name}");
        }
    }
}
