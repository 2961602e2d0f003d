//! Builds the status page of an object from the objects of the API server. Pure.

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{Event, Node},
    },
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use kube::ResourceExt as _;
use neptune_api::{
    EdgeNode, InferenceModel, InferenceModelStatus, JointInferenceService, Model, TransitionStatus,
};
use neptune_wire::TRANSFORMER_FAILED;

use super::{
    fleet::{NodeNumbers, RolloutLines},
    format::or_none,
    page::{Endpoint, EventLine, NodeLine, Page, Worker},
};

/// Number of events on the page, newest last. `kubectl get events` shows all of them.
const EVENTS: usize = 8;
/// How to check the controller.
const CONTROLLER: &str =
    "check that it is running: kubectl -n neptune-system logs deploy/neptune-cloud";

/// Objects of the API server that belong to the object on the page.
#[derive(Debug, Clone, Default)]
pub struct RelatedObjects {
    /// Models in the same namespace.
    pub models: Vec<Model>,
    /// Nodes that the object references.
    pub nodes: Vec<Node>,
    /// The `EdgeNodes` of nodes without a Node.
    pub edge_nodes: Vec<EdgeNode>,
    /// Deployments that the object owns.
    pub deployments: Vec<Deployment>,
    /// `InferenceModels` in the same namespace, for a service.
    pub inference_models: Vec<InferenceModel>,
    /// The service whose gateway answers hard samples.
    pub cloud_service: Option<JointInferenceService>,
    /// Events of the object.
    pub events: Vec<Event>,
}

/// The time, if there is one.
pub fn time(time: Option<&Time>) -> Option<Timestamp> {
    time.map(|Time(at)| *at)
}

/// The page of an `InferenceModel`.
pub fn of_inference_model(model: &InferenceModel, related: &RelatedObjects) -> Page {
    let status = model.status.clone().unwrap_or_default();
    let is_edge = model.spec.deploy_to_layer == "edge";
    let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
    let is_ready = ready.is_some_and(|ready| ready.status == "True");
    let deployment = related.deployments.first();
    let worker = |node: Option<&str>, state: String, version: Option<&str>| Worker {
        role: if is_edge { "edge" } else { "cloud" },
        name: model.name_any(),
        node: or_none(node),
        run_by: if deployment.is_some() { "Deployment" } else { "agent" },
        state,
        model: model.spec.model_name.clone(),
        version: or_none(version),
    };
    let node = status.node.as_deref().or(model.spec.node_name.as_deref());
    let state = match deployment {
        Some(deployment) => pods_of(deployment),
        None if is_ready => "Running".to_owned(),
        None => "-".to_owned(),
    };
    let node_counts = status.node_counts.as_deref().map(NodeNumbers::from_servers);
    let workers = match &status.servers[..] {
        // Of many nodes, none needs attention.
        [] if node_counts.is_some() => Vec::new(),
        [] => vec![worker(node, state, status.serving_version.as_deref())],
        servers => servers
            .iter()
            .map(|it| {
                let state = if it.ready == "True" { "Running" } else { &it.reason };
                worker(Some(&it.node), state.to_owned(), it.serving_version.as_deref())
            })
            .collect(),
    };
    let urls: Vec<_> = status.servers.iter().filter_map(|server| server.url.as_deref()).collect();
    let urls = (!urls.is_empty()).then(|| urls.join(", "));
    let mut advice = common_advice(model, status.observed_generation, &workers, related);
    // Problems first, then progress.
    let output = ["Degraded", "Progressing", "Ready"].iter().filter_map(|wanted| {
        let condition = status.conditions.iter().find(|condition| condition.type_ == *wanted)?;
        let is_trouble = (condition.status == "True") != (*wanted == "Ready");
        (is_trouble && !condition.message.is_empty()).then(|| condition.message.clone())
    });
    for message in output {
        if !advice.contains(&message) {
            advice.push(message);
        }
    }
    let transformer = transformer(model, &status, is_ready);
    Page {
        kind: "InferenceModel",
        namespace: model.namespace().unwrap_or_default(),
        name: model.name_any(),
        state: status
            .transition_status
            .map_or_else(|| "Unknown".to_owned(), |transition| transition.to_string()),
        reason: or_none(ready.map(|ready| ready.reason.as_str())),
        since: ready.map(|ready| ready.last_transition_time.0),
        message: or_none(ready.map(|ready| ready.message.as_str())),
        nodes: node_lines(&workers, related),
        workers,
        node_counts,
        rollout: status.rollout.as_deref().map(RolloutLines::from_status),
        serving: Some(Endpoint {
            transformer,
            url: or_none(status.url.or(urls).as_deref()),
            serving_version: or_none(status.serving_version.as_deref()),
            target_version: or_none(status.target_version.as_deref()),
            progress: status.progress.map(|progress| progress.summary),
            last_failure: status
                .last_failure
                .map(|failure| format!("{}: {}", failure.version, failure.message)),
        }),
        events: event_lines(related),
        advice,
        ..Page::default()
    }
}

/// The program of the transformer and its state, if the spec has one.
fn transformer(
    model: &InferenceModel,
    status: &InferenceModelStatus,
    is_ready: bool,
) -> Option<String> {
    let spec = model.spec.transformer.as_deref()?;
    let script = spec.script_boot_file.as_deref().filter(|file| !file.is_empty());
    let program = or_none(script.or(spec.image.as_deref()));
    let is_blocked = status.transition_status == Some(TransitionStatus::BlockedByFailedLoad);
    let failure = status.last_failure.as_ref().filter(|_| is_blocked);
    let has_failed = failure.is_some_and(|failure| failure.reason == TRANSFORMER_FAILED);
    let state = match (has_failed, is_ready) {
        (true, true) => "failed; the previous one is used",
        (true, false) => "failed",
        (false, true) => "running",
        (false, false) => "not ready",
    };
    Some(format!("transformer {program}: {state}"))
}

/// The Pods of a Deployment that are ready.
pub fn pods_of(deployment: &Deployment) -> String {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let ready = deployment.status.as_ref().and_then(|status| status.ready_replicas);
    format!("{}/{wanted} ready", ready.unwrap_or_default())
}

/// The nodes of the workers.
pub fn node_lines(workers: &[Worker], related: &RelatedObjects) -> Vec<NodeLine> {
    let names = workers.iter().map(|worker| worker.node.as_str());
    lines_of_nodes(names.filter(|name| *name != "-"), related)
}

/// The nodes with these names, each once.
pub fn lines_of_nodes<'a>(
    names: impl Iterator<Item = &'a str>,
    related: &RelatedObjects,
) -> Vec<NodeLine> {
    let mut lines: Vec<NodeLine> = Vec::new();
    for name in names {
        if lines.iter().any(|line| line.name == name) {
            continue;
        }
        lines.push(node_line(name, related));
    }
    lines
}

/// The row of a node: its readiness by the Node, or else by the `EdgeNode`.
fn node_line(name: &str, related: &RelatedObjects) -> NodeLine {
    let line = |ready: &str, last_seen: Option<&Time>| NodeLine {
        name: name.to_owned(),
        ready: ready.to_owned(),
        last_seen: time(last_seen),
    };
    if let Some(node) = related.nodes.iter().find(|node| node.name_any() == name) {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        let ready = conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
        let last_seen = ready.and_then(|ready| ready.last_heartbeat_time.as_ref());
        return line(ready.map_or("Unknown", |ready| &ready.status), last_seen);
    }
    let Some(edge_node) = related.edge_nodes.iter().find(|object| object.name_any() == name) else {
        return line("no such node", None);
    };
    let conditions = edge_node.status.iter().flat_map(|status| &status.conditions);
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    line(ready.map_or("Unknown", |ready| &ready.status), None)
}

/// Advice that applies to every kind with workers.
pub fn common_advice(
    object: &impl kube::Resource,
    observed: Option<i64>,
    workers: &[Worker],
    related: &RelatedObjects,
) -> Vec<String> {
    advice_on(object, observed, &node_lines(workers, related))
}

/// Advice on an object and its nodes.
pub fn advice_on(
    object: &impl kube::Resource,
    observed: Option<i64>,
    nodes: &[NodeLine],
) -> Vec<String> {
    let mut advice = Vec::new();
    match (observed, object.meta().generation) {
        (None, _) => advice.push(format!("no controller has reconciled this object; {CONTROLLER}")),
        (Some(seen), Some(now)) if seen < now => {
            advice.push(format!("the controller has not reconciled the last change; {CONTROLLER}"));
        }
        _ => {}
    }
    for node in nodes {
        match node.ready.as_str() {
            "True" | "Unknown" => {}
            "False" => advice.push(format!(
                "node {} is not ready; counters are reported on reconnect; see kubectl describe node {}",
                node.name, node.name
            )),
            _ => advice.push(format!(
                "node {} not found; correct the name or join the node (kubectl get nodes)",
                node.name
            )),
        }
    }
    advice
}

/// The last Events, the newest last.
pub fn event_lines(related: &RelatedObjects) -> Vec<EventLine> {
    let line = |event: &Event| EventLine {
        time: event
            .series
            .as_ref()
            .and_then(|series| series.last_observed_time.as_ref())
            .or(event.event_time.as_ref())
            .map(|at| at.0)
            .or(time(event.last_timestamp.as_ref())),
        kind: or_none(event.type_.as_deref()),
        reason: or_none(event.reason.as_deref()),
        message: event.message.clone().unwrap_or_default(),
    };
    let mut lines: Vec<EventLine> = related.events.iter().map(line).collect();
    lines.sort_by_key(|line| line.time);
    lines.split_off(lines.len().saturating_sub(EVENTS))
}
