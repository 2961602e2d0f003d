//! Workers with probes: at an agent that supports them, and in a Pod.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use harness::{Agent, Harness, sample};
use neptune_api::Probe;
use neptune_wire::AgentFeature;
use serde_json::{Value, json};

fn probe(probe: Value) -> Probe {
    serde_json::from_value(probe).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_with_probes_is_sent_to_an_agent_that_supports_them() {
    let harness = Harness::start().await;
    harness.models().await;
    // An agent of an earlier version.
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    let mut service = sample();
    let startup = json!({"httpGet": {"path": "/ready", "port": 8000}, "failureThreshold": 60});
    let liveness = json!({"exec": {"command": ["nvidia-smi", "-L"]}, "periodSeconds": 30});
    let readiness = json!({"httpGet": {"path": "/ready", "port": 5000}, "timeoutSeconds": 2});
    let edge = service.spec.edge_worker.worker_spec.as_mut().unwrap();
    edge.startup_probe = Some(Box::new(probe(startup)));
    edge.liveness_probe = Some(Box::new(probe(liveness)));
    let cloud = service.spec.cloud_worker.worker_spec.as_mut().unwrap();
    cloud.readiness_probe = Some(Box::new(probe(readiness.clone())));
    harness.apply(service).await;
    let text = "the agent of node edge0 does not support probes; upgrade it";
    harness.status("AgentTooOld", |s| s.reason == "AgentTooOld" && s.message.contains(text)).await;

    agent.report_offer(vec![AgentFeature::Probes], Vec::new());
    let task = agent.task().await;
    let expected = json!({
        "startup": {"httpGet": {"path": "/ready", "port": 8000}, "periodMs": 10_000, "timeoutMs": 1000, "failures": 60},
        "liveness": {"exec": ["nvidia-smi", "-L"], "periodMs": 30_000, "timeoutMs": 1000, "failures": 3},
    });
    assert_eq!(serde_json::to_value(&task.workers[0].program.probes).unwrap(), expected);

    let deployment = serde_json::to_value(harness.deployment().await).unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let rendered = &container["readinessProbe"];
    assert_eq!(rendered["httpGet"]["path"], readiness["httpGet"]["path"]);
    assert_eq!(rendered["httpGet"]["port"], readiness["httpGet"]["port"]);
    assert_eq!(rendered["timeoutSeconds"], readiness["timeoutSeconds"]);
    assert!(rendered["tcpSocket"].is_null(), "it replaces the check of the port");
    assert!(container["livenessProbe"].is_null());
}
