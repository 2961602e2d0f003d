//! The probes of a worker in a Pod, as its spec has them.

use k8s_openapi::{
    api::core::v1::{Container, ExecAction, HTTPGetAction, Probe, TCPSocketAction},
    apimachinery::pkg::util::intstr::IntOrString,
};
use neptune_api::{HttpScheme, WorkerSpec};

/// Gives a container the probes of its spec. Without a readiness probe it has that of Neptune: it is
/// ready when this port is open.
pub fn set_probes(container: &mut Container, spec: &WorkerSpec, port: u16) {
    let probe = |probe: &Option<Box<neptune_api::Probe>>| probe.as_deref().map(pod_probe);
    container.startup_probe = probe(&spec.startup_probe);
    container.liveness_probe = probe(&spec.liveness_probe);
    container.readiness_probe = probe(&spec.readiness_probe).or_else(|| Some(port_is_open(port)));
}

/// Ready when the port is open: until then requests of edge workers fail.
fn port_is_open(port: u16) -> Probe {
    Probe {
        tcp_socket: Some(tcp_socket(port)),
        // Not the default of 10 s: an edge worker with little data may have finished by then.
        period_seconds: Some(1),
        ..Probe::default()
    }
}

fn pod_probe(probe: &neptune_api::Probe) -> Probe {
    Probe {
        exec: probe.exec.as_ref().map(|exec| ExecAction { command: Some(exec.command.clone()) }),
        http_get: probe.http_get.as_ref().map(|http| HTTPGetAction {
            path: http.path.clone(),
            port: IntOrString::Int(i32::from(http.port)),
            scheme: http.scheme.map(|scheme| match scheme {
                HttpScheme::Http => "HTTP".to_owned(),
                HttpScheme::Https => "HTTPS".to_owned(),
            }),
            ..HTTPGetAction::default()
        }),
        tcp_socket: probe.tcp_socket.as_ref().map(|tcp| tcp_socket(tcp.port)),
        initial_delay_seconds: probe.initial_delay_seconds,
        period_seconds: probe.period_seconds,
        timeout_seconds: probe.timeout_seconds,
        failure_threshold: probe.failure_threshold,
        success_threshold: probe.success_threshold,
        ..Probe::default()
    }
}

fn tcp_socket(port: u16) -> TCPSocketAction {
    TCPSocketAction { port: IntOrString::Int(i32::from(port)), ..TCPSocketAction::default() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn rendered(probes: &Value) -> Value {
        let mut spec = json!({"frameworkType": "container"});
        spec.as_object_mut().unwrap().extend(probes.as_object().unwrap().clone());
        let spec: WorkerSpec = serde_json::from_value(spec).unwrap();
        let mut container = Container::default();
        set_probes(&mut container, &spec, 5000);
        let mut container = serde_json::to_value(container).unwrap();
        container.as_object_mut().unwrap().remove("name");
        container
    }

    #[test]
    fn pod_has_the_probes_of_the_spec_unchanged() {
        let probes = json!({
            "startupProbe": {"httpGet": {"path": "/ready", "port": 8000, "scheme": "HTTPS"}, "periodSeconds": 2, "failureThreshold": 60},
            "livenessProbe": {"exec": {"command": ["nvidia-smi", "-L"]}, "initialDelaySeconds": 1, "timeoutSeconds": 3},
            "readinessProbe": {"tcpSocket": {"port": 8001}, "successThreshold": 2},
        });
        assert_eq!(rendered(&probes), probes);
    }

    #[test]
    fn cloud_worker_without_a_readiness_probe_is_ready_when_its_port_is_open() {
        let liveness = json!({"exec": {"command": ["true"]}});
        let port = json!({"tcpSocket": {"port": 5000}, "periodSeconds": 1});
        assert_eq!(
            rendered(&json!({ "livenessProbe": liveness })),
            json!({"livenessProbe": liveness, "readinessProbe": port})
        );
    }
}
