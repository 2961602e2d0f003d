//! Restarts of workers that a person requests, with the built command and a controller.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use harness::{Agent, Harness, SERVICE, agent::key};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams};
use neptune_api::JointInferenceService;
use neptune_harness::{eventually_async, eventually_some};
use neptune_wire::{AgentFeature, ObjectContent};
use serde_json::{Value, json};

const ANNOTATION: &str = "neptune.io/restartedAt";

fn restart(content: &ObjectContent) -> Option<String> {
    content.workers[0].restarted_at.clone().map(String::from)
}

async fn annotate(harness: &Harness, value: Value) {
    let patch = Patch::Merge(json!({"metadata": {"annotations": {ANNOTATION: value}}}));
    let services = harness.api::<JointInferenceService>();
    services.patch(SERVICE, &PatchParams::default(), &patch).await.unwrap();
}

fn pod_restart(deployment: &Deployment) -> Option<String> {
    let template = deployment.spec.as_ref()?.template.metadata.as_ref()?;
    template.annotations.as_ref()?.get(ANNOTATION).cloned()
}

#[tokio::test(flavor = "multi_thread")]
async fn command_restarts_workers_at_agents_and_in_pods_once() {
    let harness = Harness::start().await;
    let (mut agent, task) = harness.counting_agent().await;
    assert_eq!(restart(&task), None);
    let is_seen = |it: &neptune_api::EdgeNode| {
        it.status.as_ref().is_some_and(|status| status.agent_version.is_some())
    };
    harness.until_edge_node("edge0", "its version", is_seen).await;
    let (text, warning, ok) = harness.try_neptune(&["restart", SERVICE]);
    assert!(ok, "{warning}");
    assert_eq!(text, format!("jis/{SERVICE}: restart requested\n"));
    assert_eq!(
        warning.trim(),
        "warning: these agents restart nothing until they are upgraded: edge0"
    );
    let task = agent.has(&key(), "the restart", |task| restart(task).is_some()).await;
    let first = restart(&task);
    eventually_async("the restart of the Pod", async || {
        pod_restart(&harness.deployment().await) == first
    })
    .await;

    // GitOps removes the annotation: the Pod is not restarted again.
    annotate(&harness, Value::Null).await;
    agent.has(&key(), "no restart", |task| restart(task).is_none()).await;
    annotate(&harness, json!("2020-01-01T00:00:00Z edge0 worker=edge")).await;
    let time = Some("2020-01-01T00:00:00.000Z".to_owned());
    agent.has(&key(), "an earlier restart", |task| restart(task) == time).await;
    assert_eq!(pod_restart(&harness.deployment().await), first);

    agent.report_offer(vec![AgentFeature::Restart], Vec::new());
    let supports = |it: &neptune_api::EdgeNode| {
        it.status.as_ref().is_some_and(|status| status.supports == ["restart"])
    };
    harness.until_edge_node("edge0", "what it supports", supports).await;
    let arguments = ["restart", SERVICE, "edge", "--node", "edge0"];
    let (text, warning, ok) = harness.try_neptune(&arguments);
    assert!(ok && warning.is_empty(), "{warning}");
    assert_eq!(text, format!("jis/{SERVICE}: restart of the edge worker on edge0 requested\n"));
    let later = |task: &ObjectContent| restart(task) > first;
    agent.has(&key(), "a later restart", later).await;
    assert_eq!(pod_restart(&harness.deployment().await), first, "only the edge worker");

    let (_, error, ok) = harness.try_neptune(&["restart", "tm/digits"]);
    assert!(!ok && error.contains("training restart tm/digits"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_reaches_a_node_that_was_offline() {
    let harness = Harness::start().await;
    let (agent, _) = harness.counting_agent().await;
    let replica = agent.vanish();
    harness.neptune(&["restart", SERVICE, "--node", "edge0"]);
    let annotated = eventually_some("the annotation", async || {
        let service = harness.api::<JointInferenceService>().get(SERVICE).await.unwrap();
        service.metadata.annotations?.get(ANNOTATION).cloned()
    })
    .await;
    let (time, nodes) = annotated.split_once(' ').unwrap();
    assert_eq!(nodes, "edge0");
    let mut agent = Agent::with(&harness, "edge0", "a", 2, replica).await;
    let time = Some(time.to_owned());
    agent.has(&key(), "the restart", |task| restart(task) == time).await;
}
