//! The rows of each kind, from its status and its slices. Pure.

use std::collections::HashMap;

use neptune_api::{
    AgentCounters, EdgeWorkerStatus, InferenceModel, JointInferenceService, Model, NodeReportSlice,
    NodeServer, SliceRow, TransitionStatus,
};
use neptune_cloud_kinds::reason::Reason;

use super::{ObjectId, Wanted, row::NodeRow};
use crate::{
    cli::{NodeFilter, ObjectArgument},
    commands::status::{format::short, worker_rows::current},
};

/// The states of the workers of a service.
const OF_WORKERS: [NodeFilter; 5] = [
    NodeFilter::Pending,
    NodeFilter::Running,
    NodeFilter::Completed,
    NodeFilter::Failed,
    NodeFilter::Unknown,
];

/// The states of the servers of an `InferenceModel`.
const OF_SERVERS: [NodeFilter; 4] =
    [NodeFilter::Pending, NodeFilter::Running, NodeFilter::Failed, NodeFilter::Unknown];

/// The states of the file of a `Model`.
const OF_MODELS: [NodeFilter; 5] = [
    NodeFilter::Present,
    NodeFilter::Downloading,
    NodeFilter::Outdated,
    NodeFilter::Failed,
    NodeFilter::Unknown,
];

/// Why the nodes of an object cannot be printed: its kind has no rows, or not this state.
pub fn refused(object: &ObjectArgument, wanted: &Wanted) -> Option<String> {
    let (states, name): (&[NodeFilter], _) = match object {
        ObjectArgument::Service(name) => (&OF_WORKERS, format!("jis/{name}")),
        ObjectArgument::InferenceModel(name) => (&OF_SERVERS, format!("im/{name}")),
        ObjectArgument::Model(name) => (&OF_MODELS, format!("model/{name}")),
        ObjectArgument::TrainingModel(name) => (&[], format!("tm/{name}")),
        ObjectArgument::Dataset(name) => (&[], format!("dataset/{name}")),
    };
    if states.is_empty() {
        return Some(format!(
            "{name} has no rows of nodes; run kubectl neptune status {name} without --nodes and --node"
        ));
    }
    let Wanted::InState(state) = wanted else { return None };
    if *state == NodeFilter::All || states.contains(state) {
        return None;
    }
    let states: Vec<_> = states.iter().map(|state| format!("{state:?}")).collect();
    Some(format!("{name} has no nodes in state {state:?}; use one of {}", states.join(", ")))
}

/// Why rows are missing in a status that has this many.
pub fn listed_only(id: ObjectId<'_>, listed: usize) -> Option<String> {
    let nodes = id.nodes.filter(|nodes| *nodes > listed)?;
    Some(format!(
        "the status has {listed} of {nodes} nodes, those that need attention; the others are only counted"
    ))
}

/// The nodes of a slice, in its order. `listed` are the nodes of the status.
pub fn of_slice(
    slice: &NodeReportSlice,
    listed: &HashMap<&str, &EdgeWorkerStatus>,
) -> Vec<NodeRow> {
    let nodes = slice.rows.chunk_by(|a, b| a.node == b.node);
    nodes.map(|of_node| of_rows(slice, of_node, listed)).collect()
}

fn of_rows(
    slice: &NodeReportSlice,
    of_node: &[SliceRow],
    listed: &HashMap<&str, &EdgeWorkerStatus>,
) -> NodeRow {
    let mut row = NodeRow {
        node: of_node[0].node.clone(),
        state: of_node.iter().find_map(|row| row.state.clone()),
        reason: of_node.iter().find_map(|row| row.reason.clone()),
        slice: slice.metadata.name.clone(),
        ..NodeRow::default()
    };
    for SliceRow { node, instance, epoch, seq, counters, .. } in of_node {
        if let (Some(instance), Some(counters)) = (instance, counters) {
            row.count(AgentCounters {
                node: node.clone(),
                instance: instance.clone(),
                epoch: *epoch,
                seq: *seq,
                counters: counters.clone(),
            });
        }
    }
    if let Some(worker) = listed.get(&*row.node) {
        row.explain(worker);
    }
    row
}

/// The nodes of a service without slices.
pub fn of_status(service: &JointInferenceService) -> Vec<NodeRow> {
    let status = service.status.as_ref();
    let mut rows: Vec<NodeRow> = Vec::new();
    for worker in status.iter().flat_map(|status| &status.edge_workers) {
        let mut row = NodeRow::new(&worker.node, &worker.state);
        row.explain(worker);
        rows.push(row);
    }
    if let Some(node) = service.spec.edge_worker.node_name.as_ref().filter(|_| rows.is_empty()) {
        // The state of a service with one edge worker is that of both workers.
        let condition = current(service).filter(|condition| condition.status != "Unknown");
        let state = condition.map_or("Unknown".to_owned(), |condition| condition.type_.to_string());
        let mut row = NodeRow::new(node, &state);
        row.reason = current(service).and_then(|condition| condition.reason.clone());
        row.message = current(service).and_then(|condition| condition.message.clone());
        rows.push(row);
    }
    for report in status.iter().flat_map(|status| &status.reports) {
        let at = rows.iter().position(|row| row.node == report.node).unwrap_or_else(|| {
            rows.push(NodeRow { node: report.node.clone(), ..NodeRow::default() });
            rows.len() - 1
        });
        rows[at].count(report.clone());
    }
    rows
}

/// The nodes of an `InferenceModel` in its status.
pub fn of_servers(model: &InferenceModel) -> Vec<NodeRow> {
    let Some(status) = &model.status else { return Vec::new() };
    if let (Some(node), []) = (&status.node, &status.servers[..]) {
        let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
        return ready
            .map(|ready| NodeServer {
                node: node.clone(),
                url: status.url.clone(),
                serving_version: status.serving_version.clone(),
                transition_status: status.transition_status.unwrap_or(TransitionStatus::Pending),
                ready: ready.status.clone(),
                reason: ready.reason.clone(),
                message: ready.message.clone(),
                progress: status.progress.clone(),
                last_failure: status.last_failure.clone(),
            })
            .iter()
            .map(of_server)
            .collect();
    }
    status.servers.iter().map(of_server).collect()
}

fn of_server(server: &NodeServer) -> NodeRow {
    // As status.nodeCounts counts it.
    let state = match (server.transition_status, server.ready.as_str()) {
        _ if server.reason == Reason::NodeOffline.to_string() => NodeFilter::Unknown,
        (TransitionStatus::BlockedByFailedLoad | TransitionStatus::InvalidSpec, _) => {
            NodeFilter::Failed
        }
        (_, "True") => NodeFilter::Running,
        (_, "False") => NodeFilter::Pending,
        _ => NodeFilter::Unknown,
    };
    let mut row = NodeRow::new(&server.node, &format!("{state:?}"));
    row.reason = Some(server.reason.clone());
    row.message = Some(server.message.clone()).filter(|message| !message.is_empty());
    row.set("url", server.url.clone());
    row.set("version", server.serving_version.clone());
    row.set("transition", Some(server.transition_status.to_string()));
    row.set("downloaded", server.progress.as_ref().map(|progress| progress.summary.clone()));
    let failure = server.last_failure.as_ref();
    row.set("lastFailure", failure.map(|it| format!("{}: {}", it.version, it.message)));
    row
}

/// The nodes of a `Model` in its status.
pub fn of_model(model: &Model) -> Vec<NodeRow> {
    let nodes = model.status.iter().flat_map(|status| &status.nodes);
    nodes
        .map(|node| {
            let mut row = NodeRow::new(&node.node, &format!("{:?}", node.state));
            row.reason.clone_from(&node.reason);
            row.message.clone_from(&node.message);
            let digest = node.sha256sum.as_deref();
            row.set("version", digest.map(|digest| format!("sha256 {}", short(digest))));
            row.set("source", node.source.clone());
            row.set("bytes", node.bytes.map(|bytes| bytes.to_string()));
            row
        })
        .collect()
}
