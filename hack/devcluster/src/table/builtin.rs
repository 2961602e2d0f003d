//! The columns of built-in kinds that a user of the demo lists with kubectl; other kinds have name
//! and age. Pure.

use jiff::Timestamp;
use serde_json::Value;

use super::{Cell, Column, age};
use crate::object::{at_path, meta_str, strings};

type Build = fn(&Value, Timestamp) -> Value;

fn column(name: &str, kind: &str, build: Build) -> Column {
    let format = if name == "Name" { "name" } else { "" };
    Column {
        name: name.into(),
        kind: kind.into(),
        format: format.into(),
        description: String::new(),
        priority: 0,
        cell: Cell::Built(build),
    }
}

fn text(name: &str, build: Build) -> Column {
    column(name, "string", build)
}

fn integer(name: &str, build: Build) -> Column {
    column(name, "integer", build)
}

pub fn name_column() -> Column {
    let description = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
    Column {
        description: description.into(),
        ..text("Name", |object, _| meta_str(object, "name").into())
    }
}

pub fn age_column() -> Column {
    text("Age", |object, now| age::since(meta_str(object, "creationTimestamp"), now).into())
}

/// The text at a path, or `<none>`.
fn at(object: &Value, path: &str) -> Value {
    match at_path(object, path) {
        Some(Value::String(text)) if !text.is_empty() => text.as_str().into(),
        _ => "<none>".into(),
    }
}

fn number(object: &Value, path: &str) -> i64 {
    at_path(object, path).and_then(Value::as_i64).unwrap_or_default()
}

fn items<'a>(object: &'a Value, path: &str) -> &'a [Value] {
    at_path(object, path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn joined(parts: &[&str]) -> Value {
    if parts.is_empty() { "<none>".into() } else { parts.join(",").into() }
}

/// All columns of a kind.
pub fn columns(plural: &str) -> Vec<Column> {
    let mut columns = vec![name_column()];
    match plural {
        "namespaces" => columns.push(text("Status", |object, _| at(object, "status.phase"))),
        "nodes" => columns.extend(node()),
        "pods" => columns.extend(pod()),
        "services" => columns.extend(service()),
        "deployments" => columns.extend(deployment()),
        "daemonsets" => columns.extend(daemon_set()),
        "events" => return event(),
        "leases" => columns.push(text("Holder", |object, _| {
            object["spec"]["holderIdentity"].as_str().unwrap_or_default().into()
        })),
        "customresourcedefinitions" => {
            columns
                .push(text("Created At", |object, _| meta_str(object, "creationTimestamp").into()));
            return columns;
        }
        _ => {}
    }
    columns.push(age_column());
    columns
}

fn node() -> Vec<Column> {
    vec![
        text("Status", |object, _| {
            let ready = items(object, "status.conditions")
                .iter()
                .find(|condition| condition["type"] == "Ready");
            let mut status = match ready.map(|condition| condition["status"] == "True") {
                Some(true) => "Ready",
                Some(false) => "NotReady",
                None => "Unknown",
            }
            .to_owned();
            if object["spec"]["unschedulable"] == true {
                status.push_str(",SchedulingDisabled");
            }
            status.into()
        }),
        text("Roles", |object, _| {
            let labels = object["metadata"]["labels"].as_object();
            let roles: Vec<&str> = labels
                .into_iter()
                .flatten()
                .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"))
                .collect();
            joined(&roles)
        }),
    ]
}

fn pod() -> Vec<Column> {
    vec![
        text("Ready", |object, _| {
            let ready = items(object, "status.containerStatuses")
                .iter()
                .filter(|status| status["ready"] == true)
                .count();
            format!("{ready}/{}", items(object, "spec.containers").len()).into()
        }),
        text("Status", |object, _| at(object, "status.phase")),
    ]
}

fn service() -> Vec<Column> {
    vec![
        text("Type", |object, _| at(object, "spec.type")),
        text("Cluster-IP", |object, _| at(object, "spec.clusterIP")),
        text("External-IP", |object, _| joined(&strings(&object["spec"]["externalIPs"]))),
        text("Port(s)", |object, _| {
            let ports: Vec<String> = items(object, "spec.ports")
                .iter()
                .map(|port| {
                    let protocol = port["protocol"].as_str().unwrap_or("TCP");
                    match port["nodePort"].as_i64() {
                        Some(node) => format!("{}:{node}/{protocol}", port["port"]),
                        None => format!("{}/{protocol}", port["port"]),
                    }
                })
                .collect();
            joined(&ports.iter().map(String::as_str).collect::<Vec<_>>())
        }),
    ]
}

fn deployment() -> Vec<Column> {
    vec![
        text("Ready", |object, _| {
            let ready = number(object, "status.readyReplicas");
            format!("{ready}/{}", number(object, "spec.replicas")).into()
        }),
        integer("Up-to-date", |object, _| number(object, "status.updatedReplicas").into()),
        integer("Available", |object, _| number(object, "status.availableReplicas").into()),
    ]
}

fn daemon_set() -> Vec<Column> {
    vec![
        integer("Desired", |object, _| number(object, "status.desiredNumberScheduled").into()),
        integer("Current", |object, _| number(object, "status.currentNumberScheduled").into()),
        integer("Ready", |object, _| number(object, "status.numberReady").into()),
    ]
}

/// The first of these times that is set.
fn event_time<'a>(object: &'a Value, fields: &[&str]) -> &'a str {
    fields
        .iter()
        .filter_map(|field| at_path(object, field).and_then(Value::as_str))
        .find(|text| !text.is_empty())
        .unwrap_or_default()
}

/// The columns read the form of the core group.
fn event() -> Vec<Column> {
    const LAST: &[&str] =
        &["series.lastObservedTime", "lastTimestamp", "firstTimestamp", "eventTime"];
    vec![
        text("Last Seen", |object, now| age::since(event_time(object, LAST), now).into()),
        text("Type", |object, _| object["type"].clone()),
        text("Reason", |object, _| object["reason"].clone()),
        text("Object", |object, _| {
            let part = |field: &str| object["involvedObject"][field].as_str().unwrap_or_default();
            format!("{}/{}", part("kind").to_lowercase(), part("name")).into()
        }),
        text("Message", |object, _| object["message"].as_str().unwrap_or_default().trim().into()),
        Column { priority: 1, ..name_column() },
    ]
}
