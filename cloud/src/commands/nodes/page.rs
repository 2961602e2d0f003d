//! What `nodes` prints: a line per node, or all that is known about one. Pure.

use std::collections::{HashMap, HashSet};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use kube::ResourceExt as _;
use neptune_api::{
    EdgeNode, EdgeNodeStatus, InferenceModel, JointInferenceService, NodeReportSlice, TrainingModel,
};

use crate::commands::status::{
    node_rows::{NodeRow, of_servers, of_slice, of_status},
    section::Value,
    text::{columns, plain},
    worker_rows::current,
};

/// The number of characters of a message in a table.
const MAX_MESSAGE: usize = 120;

/// A worker, model server or training on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeWorker {
    /// The node that has it.
    node: String,
    /// Its object, as on the command line.
    object: String,
    namespace: String,
    worker: String,
    state: String,
    message: String,
}

/// The workers of a service with these slices.
pub fn of_service(service: &JointInferenceService, slices: &[&NodeReportSlice]) -> Vec<NodeWorker> {
    let status = service.status.as_ref();
    let rows = if status.is_some_and(|status| status.slices.is_some()) {
        let listed = status.iter().flat_map(|status| &status.edge_workers);
        let listed: HashMap<&str, _> = listed.map(|row| (row.node.as_str(), row)).collect();
        slices.iter().flat_map(|slice| of_slice(slice, &listed)).collect()
    } else {
        of_status(service)
    };
    let edge = &service.spec.edge_worker;
    let role = if edge.worker_spec.is_some() { "edge" } else { "gateway" };
    // Another slice may have a node for a short time, too.
    let mut known = HashSet::new();
    let rows = rows.into_iter().filter(|row| row.state.is_some() && known.insert(row.node.clone()));
    let mut workers: Vec<_> = rows.map(|row| of_row(service, "jis", role, &row)).collect();
    let cloud = &service.spec.cloud_worker;
    if let (Some(node), Some(_)) = (&cloud.node_name, &cloud.worker_spec) {
        let state = current(service).map_or("Unknown".to_owned(), |it| it.type_.to_string());
        let mut row = NodeRow::new(node, &state);
        row.reason = current(service).and_then(|condition| condition.reason.clone());
        workers.push(of_row(service, "jis", "cloud", &row));
    }
    workers
}

/// The servers of a model at agents.
pub fn of_model(model: &InferenceModel) -> Vec<NodeWorker> {
    of_servers(model).iter().map(|row| of_row(model, "im", "server", row)).collect()
}

/// The workers of a training.
pub fn of_training(model: &TrainingModel) -> Vec<NodeWorker> {
    let workers = model.status.iter().flat_map(|status| &status.workers);
    let rows = workers.map(|worker| {
        let mut row = NodeRow::new(&worker.node, &format!("{:?}", worker.state));
        row.reason.clone_from(&worker.reason);
        row.message.clone_from(&worker.message);
        (worker.name.clone(), row)
    });
    rows.map(|(name, row)| of_row(model, "tm", &name, &row)).collect()
}

fn of_row(object: &impl kube::ResourceExt, kind: &str, worker: &str, row: &NodeRow) -> NodeWorker {
    let message = row.message.clone().unwrap_or_default().replace('\n', " ");
    NodeWorker {
        node: row.node.clone(),
        object: format!("{kind}/{}", object.name_any()),
        namespace: object.namespace().unwrap_or_default(),
        worker: worker.to_owned(),
        state: row.state_text(),
        message,
    }
}

/// A line per node, by name.
pub fn table(nodes: &[EdgeNode], workers: &[NodeWorker]) -> String {
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    for worker in workers {
        *numbers.entry(&worker.node).or_default() += 1;
    }
    let head = ["NAME", "READY", "VERSION", "ENGINE", "DEVICES", "WORKERS", "KEY"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut nodes: Vec<&EdgeNode> = nodes.iter().collect();
    nodes.sort_by_key(|node| node.name_any());
    for node in nodes {
        let (name, status) = (node.name_any(), node.status.clone().unwrap_or_default());
        let number = numbers.get(name.as_str()).copied().unwrap_or_default();
        let status_of = |type_| condition(&status, type_).map(|it| it.status.clone());
        let reason_of = |type_| condition(&status, type_).map(|it| it.reason.clone());
        let cells = [
            Some(name),
            status_of("Ready"),
            status.agent_version.clone(),
            status.engine.clone(),
            status.device_summary.clone(),
            Some(number.to_string()),
            reason_of("KeyTrusted"),
        ];
        rows.push(cells.map(|cell| cell.unwrap_or_else(|| "-".to_owned())).to_vec());
    }
    columns(&rows, &mut Vec::new())
}

/// All that is known about a node.
pub fn details(node: &EdgeNode, workers: &[NodeWorker], now: Timestamp) -> String {
    let name = node.name_any();
    let mut text = plain(&values(node, now));
    let own: Vec<_> = workers.iter().filter(|worker| worker.node == name).collect();
    if own.is_empty() {
        text.push_str("\nno worker of an object that can be read\n");
        return text;
    }
    let head = ["NAMESPACE", "OBJECT", "WORKER", "STATE", "MESSAGE"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(own.into_iter().map(|worker| {
        let NodeWorker { object, namespace, worker, state, message, .. } = worker;
        let cut = message.chars().count() > MAX_MESSAGE;
        let message: String = message.chars().take(MAX_MESSAGE).collect();
        let message = if cut { format!("{message}...") } else { message };
        vec![namespace.clone(), object.clone(), worker.clone(), state.clone(), message]
    }));
    text.push('\n');
    text.push_str(&columns(&rows, &mut Vec::new()));
    text
}

fn values(node: &EdgeNode, now: Timestamp) -> Vec<Value> {
    let status = node.status.clone().unwrap_or_default();
    let state = |type_| {
        let condition = condition(&status, type_)?;
        let Condition { status, reason, message, last_transition_time, .. } = condition;
        let age = crate::commands::status::format::age(last_transition_time.0, now);
        let message = if message.is_empty() { String::new() } else { format!(": {message}") };
        Some(format!("{status} ({reason}) for {age}{message}"))
    };
    let machine = status.capacity.as_ref().map(|capacity| {
        format!("{} CPUs, {} MiB memory", capacity.cpus, capacity.memory_bytes >> 20)
    });
    let key = status.reported_key.as_ref().or(status.trusted_key.as_ref());
    let values = [
        ("Node", Some(node.name_any())),
        ("Ready", state("Ready")),
        ("Agent", status.agent_version.clone()),
        ("Engine", status.engine.clone()),
        ("Address", status.address.clone()),
        ("Machine", machine),
        ("Supports", Some(status.supports.join(", ")).filter(|text| !text.is_empty())),
        ("Key", key.cloned()),
        ("Key state", state("KeyTrusted")),
    ];
    let mut values: Vec<_> =
        values.iter().filter_map(|(name, value)| Value::optional(name, value.as_ref())).collect();
    let logs = if status.remote_logs.is_empty() {
        "none may leave the node".to_owned()
    } else {
        format!("those of {} may leave the node", status.remote_logs.join(", "))
    };
    if status.agent_version.is_some() {
        values.push(Value::new("Logs", logs));
    }
    let devices = status.devices.iter().map(|device| {
        let missing = match device.missing {
            0 => String::new(),
            missing => format!(", {missing} missing"),
        };
        format!("{}: {} of {} free{missing}", device.resource, device.free, device.total)
    });
    let problems = status.problems.iter().map(|it| format!("{}: {}", it.reason, it.message));
    for (name, lines) in [("Devices", devices.collect()), ("Problems", problems.collect())] {
        let lines: Vec<String> = lines;
        if !lines.is_empty() {
            values.push(Value { name: name.to_owned(), lines });
        }
    }
    values
}

fn condition<'a>(status: &'a EdgeNodeStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn node(name: &str) -> EdgeNode {
        let condition = |type_: &str, status: &str, reason: &str, message: &str| {
            json!({"type": type_, "status": status, "reason": reason, "message": message,
                "lastTransitionTime": "2026-11-24T06:00:00Z"})
        };
        serde_json::from_value(json!({
            "apiVersion": "neptune.io/v1alpha1", "kind": "EdgeNode", "metadata": {"name": name},
            "spec": {},
            "status": {
                "online": true, "agentVersion": "0.2.0", "engine": "docker 28.2.2",
                "address": "192.0.2.7", "capacity": {"cpus": 4, "memoryBytes": 8_589_934_592_u64},
                "devices": [{"resource": "neptune.io/camera", "total": 2, "free": 0, "missing": 1}],
                "deviceSummary": "neptune.io/camera 0/2",
                "supports": ["devices", "restart"], "remoteLogs": ["worker", "server"],
                "trustedKey": "sha256:ab",
                "problems": [{"reason": "DiskFull", "message": "free at least 8 MiB"}],
                "conditions": [
                    condition("Ready", "False", "DiskFull", "free at least 8 MiB"),
                    condition("KeyTrusted", "True", "KeyInUse", ""),
                ],
            },
        }))
        .unwrap()
    }

    fn service(status: &serde_json::Value) -> JointInferenceService {
        let worker = json!({"frameworkType": "container", "image": "i"});
        serde_json::from_value(json!({
            "apiVersion": "neptune.io/v1alpha1", "kind": "JointInferenceService",
            "metadata": {"name": "digits", "namespace": "default"},
            "spec": {
                "edgeWorker": {"name": "e", "model": {"name": "m"}, "workerSpec": worker,
                    "hardExampleAlgorithm": {"name": "IBT"}},
                "cloudWorker": {"name": "c", "nodeName": "cloud0", "workerSpec": worker},
            },
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn nodes_are_listed_by_name_with_their_workers() {
        let rows = json!([
            {"node": "edge0", "state": "Running"},
            {"node": "edge1", "state": "Failed", "reason": "CrashLoopBackOff", "message": "exit code 1\nTraceback"},
        ]);
        let workers = of_service(&service(&json!({ "edgeWorkers": rows })), &[]);
        let mut unseen = node("a");
        unseen.status = None;
        let text = table(&[node("edge1"), unseen], &workers);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split("  ").map(str::trim).filter(|it| !it.is_empty()).collect())
            .collect();
        assert_eq!(lines[0], ["NAME", "READY", "VERSION", "ENGINE", "DEVICES", "WORKERS", "KEY"]);
        assert_eq!(lines[1], ["a", "-", "-", "-", "-", "0", "-"]);
        assert_eq!(
            lines[2],
            ["edge1", "False", "0.2.0", "docker 28.2.2", "neptune.io/camera 0/2", "1", "KeyInUse"]
        );
        let now = "2026-11-24T09:00:00Z".parse().unwrap();
        let text = details(&node("edge1"), &workers, now);
        for line in [
            "Ready      False (DiskFull) for 3h: free at least 8 MiB",
            "Machine    4 CPUs, 8192 MiB memory",
            "Logs       those of worker, server may leave the node",
            "Devices    neptune.io/camera: 0 of 2 free, 1 missing",
            "Problems   DiskFull: free at least 8 MiB",
            "default     jis/digits   edge     Failed (CrashLoopBackOff)   exit code 1 Traceback",
        ] {
            assert!(text.lines().any(|it| it == line), "{line:?} in\n{text}");
        }
        let text = details(&node("edge7"), &workers, now);
        assert!(text.ends_with("\nno worker of an object that can be read\n"), "{text}");
    }

    #[test]
    fn workers_come_from_slices_servers_and_trainings() {
        let slice = |rows: serde_json::Value| -> NodeReportSlice {
            serde_json::from_value(json!({ "rows": rows })).unwrap()
        };
        let first = slice(json!([
            {"node": "shop-1", "state": "Running"}, {"node": "gone", "instance": "a"},
        ]));
        let second = slice(json!([
            {"node": "shop-1", "state": "Running"},
            {"node": "shop-2", "state": "Pending", "reason": "Starting"},
        ]));
        let status = json!({"slices": {"count": 2, "nodes": 2}});
        let workers = of_service(&service(&status), &[&first, &second]);
        let text = |workers: &[NodeWorker]| -> Vec<String> {
            let text =
                |it: &NodeWorker| format!("{} {} {} {}", it.node, it.object, it.worker, it.state);
            workers.iter().map(text).collect()
        };
        assert_eq!(
            text(&workers),
            [
                "shop-1 jis/digits edge Running",
                "shop-2 jis/digits edge Pending (Starting)",
                "cloud0 jis/digits cloud Unknown",
            ]
        );
        assert_eq!(text(&of_training(&sample_training())), ["edge0 tm/digits w Training"]);
    }

    fn sample_training() -> TrainingModel {
        let sample = include_str!("../../../../common/api/tests/samples/trainingmodel.yaml");
        let mut value: serde_json::Value = serde_saphyr::from_str(sample).unwrap();
        value["metadata"]["name"] = "digits".into();
        let worker =
            json!({"name": "w", "node": "edge0", "dataset": "d", "round": 1, "state": "Training"});
        value["status"] = json!({ "workers": [worker] });
        serde_json::from_value(value).unwrap()
    }
}
