//! The columns of the built-in kinds, as kubectl users know them. Pure.

use jiff::Timestamp;
use serde_json::Value;

use super::{Cell, Column, age};
use crate::object::{at_path, meta_str, strings};

type Build = fn(&Value, Timestamp) -> Value;

fn column(name: &str, kind: &str, priority: i64, build: Build) -> Column {
    let format = if name == "Name" { "name" } else { "" };
    Column {
        name: name.into(),
        kind: kind.into(),
        format: format.into(),
        description: String::new(),
        priority,
        cell: Cell::Built(build),
    }
}

fn text(name: &str, build: Build) -> Column {
    column(name, "string", 0, build)
}

fn wide(name: &str, build: Build) -> Column {
    column(name, "string", 1, build)
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

fn created_at() -> Column {
    text("Created At", |object, _| meta_str(object, "creationTimestamp").into())
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

fn size(object: &Value, field: &str) -> i64 {
    i64::try_from(object[field].as_object().map_or(0, serde_json::Map::len)).unwrap_or(i64::MAX)
}

fn joined(parts: &[&str]) -> Value {
    if parts.is_empty() { "<none>".into() } else { parts.join(",").into() }
}

pub fn columns(plural: &str) -> Vec<Column> {
    let mut columns = vec![name_column()];
    match plural {
        "namespaces" => columns.extend([text("Status", |object, _| at(object, "status.phase"))]),
        "nodes" => return node(),
        "pods" => return pod(),
        "services" => return service(),
        "deployments" => return deployment(),
        "daemonsets" => return daemon_set(),
        "networkpolicies" => columns.push(text("Pod-Selector", |object, _| {
            selector(&object["spec"]["podSelector"]["matchLabels"])
        })),
        "poddisruptionbudgets" => columns.extend([
            text("Min Available", |object, _| amount(object, "spec.minAvailable")),
            text("Max Unavailable", |object, _| amount(object, "spec.maxUnavailable")),
            column("Allowed Disruptions", "integer", 0, |object, _| {
                number(object, "status.disruptionsAllowed").into()
            }),
        ]),
        "events" => return event(),
        "configmaps" => columns.push(column("Data", "integer", 0, |object, _| {
            (size(object, "data") + size(object, "binaryData")).into()
        })),
        "secrets" => columns.extend([
            text("Type", |object, _| at(object, "type")),
            column("Data", "integer", 0, |object, _| size(object, "data").into()),
        ]),
        "serviceaccounts" => columns.push(column("Secrets", "integer", 0, |object, _| {
            items(object, "secrets").len().into()
        })),
        "leases" => columns.push(text("Holder", |object, _| {
            object["spec"]["holderIdentity"].as_str().unwrap_or_default().into()
        })),
        "rolebindings" | "clusterrolebindings" => columns.push(text("Role", |object, _| {
            let part = |field: &str| object["roleRef"][field].as_str().unwrap_or_default();
            format!("{}/{}", part("kind"), part("name")).into()
        })),
        "validatingwebhookconfigurations" => {
            columns.push(column("Webhooks", "integer", 0, |object, _| {
                items(object, "webhooks").len().into()
            }));
        }
        "customresourcedefinitions" | "roles" | "clusterroles" => {
            columns.push(created_at());
            return columns;
        }
        _ => {}
    }
    columns.push(age_column());
    columns
}

fn node() -> Vec<Column> {
    fn address(object: &Value, kind: &str) -> Value {
        let found =
            items(object, "status.addresses").iter().find(|address| address["type"] == kind);
        found.and_then(|address| address["address"].as_str()).unwrap_or("<none>").into()
    }
    fn info(object: &Value, field: &str) -> Value {
        object["status"]["nodeInfo"][field]
            .as_str()
            .filter(|text| !text.is_empty())
            .unwrap_or("<unknown>")
            .into()
    }
    vec![
        name_column(),
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
            let mut roles: Vec<&str> = labels
                .into_iter()
                .flatten()
                .filter_map(|(key, value)| match key.as_str() {
                    "kubernetes.io/role" => value.as_str(),
                    other => other.strip_prefix("node-role.kubernetes.io/"),
                })
                .filter(|role| !role.is_empty())
                .collect();
            roles.sort_unstable();
            joined(&roles)
        }),
        age_column(),
        text("Version", |object, _| {
            object["status"]["nodeInfo"]["kubeletVersion"].as_str().unwrap_or_default().into()
        }),
        wide("Internal-IP", |object, _| address(object, "InternalIP")),
        wide("External-IP", |object, _| address(object, "ExternalIP")),
        wide("OS-Image", |object, _| info(object, "osImage")),
        wide("Kernel-Version", |object, _| info(object, "kernelVersion")),
        wide("Container-Runtime", |object, _| info(object, "containerRuntimeVersion")),
    ]
}

fn pod() -> Vec<Column> {
    vec![
        name_column(),
        text("Ready", |object, _| {
            let ready = items(object, "status.containerStatuses")
                .iter()
                .filter(|status| status["ready"] == true)
                .count();
            format!("{ready}/{}", items(object, "spec.containers").len()).into()
        }),
        text("Status", |object, _| {
            if crate::object::is_deleting(object) {
                return "Terminating".into();
            }
            let waiting = items(object, "status.containerStatuses")
                .iter()
                .find_map(|status| status["state"]["waiting"]["reason"].as_str());
            waiting
                .or(object["status"]["reason"].as_str())
                .or(object["status"]["phase"].as_str())
                .unwrap_or("Unknown")
                .into()
        }),
        text("Restarts", |object, _| {
            let count: i64 = items(object, "status.containerStatuses")
                .iter()
                .filter_map(|status| status["restartCount"].as_i64())
                .sum();
            count.to_string().into()
        }),
        age_column(),
        wide("IP", |object, _| at(object, "status.podIP")),
        wide("Node", |object, _| at(object, "spec.nodeName")),
        wide("Nominated Node", |object, _| at(object, "status.nominatedNodeName")),
        wide("Readiness Gates", |_, _| "<none>".into()),
    ]
}

/// `a=b,c=d` in the order of the keys.
fn selector(map: &Value) -> Value {
    let pairs: Vec<String> = map
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    joined(&pairs.iter().map(String::as_str).collect::<Vec<_>>())
}

fn service() -> Vec<Column> {
    vec![
        name_column(),
        text("Type", |object, _| at(object, "spec.type")),
        text("Cluster-IP", |object, _| at(object, "spec.clusterIP")),
        text("External-IP", |object, _| match object["spec"]["type"].as_str() {
            Some("ExternalName") => at(object, "spec.externalName"),
            Some("LoadBalancer") if items(object, "status.loadBalancer.ingress").is_empty() => {
                "<pending>".into()
            }
            _ => joined(&strings(&object["spec"]["externalIPs"])),
        }),
        text("Port(s)", |object, _| {
            let ports: Vec<String> = items(object, "spec.ports")
                .iter()
                .map(|port| {
                    let protocol = port["protocol"].as_str().unwrap_or("TCP");
                    match port["nodePort"].as_i64() {
                        Some(node) if node > 0 => format!("{}:{node}/{protocol}", port["port"]),
                        _ => format!("{}/{protocol}", port["port"]),
                    }
                })
                .collect();
            joined(&ports.iter().map(String::as_str).collect::<Vec<_>>())
        }),
        age_column(),
        wide("Selector", |object, _| selector(&object["spec"]["selector"])),
    ]
}

fn deployment() -> Vec<Column> {
    vec![
        name_column(),
        text("Ready", |object, _| {
            format!(
                "{}/{}",
                number(object, "status.readyReplicas"),
                number(object, "spec.replicas")
            )
            .into()
        }),
        column("Up-to-date", "integer", 0, |object, _| {
            number(object, "status.updatedReplicas").into()
        }),
        column("Available", "integer", 0, |object, _| {
            number(object, "status.availableReplicas").into()
        }),
        age_column(),
        wide("Containers", |object, _| of_containers(object, "name")),
        wide("Images", |object, _| of_containers(object, "image")),
        wide("Selector", |object, _| selector(&object["spec"]["selector"]["matchLabels"])),
    ]
}

fn daemon_set() -> Vec<Column> {
    fn status(name: &str, build: Build) -> Column {
        column(name, "integer", 0, build)
    }
    vec![
        name_column(),
        status("Desired", |object, _| number(object, "status.desiredNumberScheduled").into()),
        status("Current", |object, _| number(object, "status.currentNumberScheduled").into()),
        status("Ready", |object, _| number(object, "status.numberReady").into()),
        status("Up-to-date", |object, _| number(object, "status.updatedNumberScheduled").into()),
        status("Available", |object, _| number(object, "status.numberAvailable").into()),
        text("Node Selector", |object, _| {
            selector(&object["spec"]["template"]["spec"]["nodeSelector"])
        }),
        age_column(),
        wide("Containers", |object, _| of_containers(object, "name")),
        wide("Images", |object, _| of_containers(object, "image")),
        wide("Selector", |object, _| selector(&object["spec"]["selector"]["matchLabels"])),
    ]
}

/// A number or a percentage, or that there is none.
fn amount(object: &Value, path: &str) -> Value {
    match at_path(object, path) {
        Some(Value::String(text)) => text.as_str().into(),
        Some(Value::Number(number)) => number.to_string().into(),
        _ => "N/A".into(),
    }
}

/// A field of each container of a template.
fn of_containers(object: &Value, field: &str) -> Value {
    let containers = items(object, "spec.template.spec.containers");
    let texts: Vec<&str> = containers.iter().filter_map(|item| item[field].as_str()).collect();
    texts.join(",").into()
}

/// The first of these times that is set.
fn event_time<'a>(object: &'a Value, fields: &[&str]) -> &'a str {
    fields
        .iter()
        .filter_map(|field| at_path(object, field).and_then(Value::as_str))
        .find(|text| !text.is_empty())
        .unwrap_or_default()
}

/// Events are shown in their core form; `resource::in_version` runs after the table is made.
fn event() -> Vec<Column> {
    const FIRST: &[&str] = &["firstTimestamp", "eventTime"];
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
        wide("Subobject", |object, _| {
            object["involvedObject"]["fieldPath"].as_str().unwrap_or_default().into()
        }),
        wide("Source", |object, _| {
            let component = object["source"]["component"]
                .as_str()
                .or(object["reportingComponent"].as_str())
                .unwrap_or_default();
            match object["source"]["host"].as_str().or(object["reportingInstance"].as_str()) {
                Some(host) if !host.is_empty() => format!("{component}, {host}").into(),
                _ => component.into(),
            }
        }),
        text("Message", |object, _| object["message"].as_str().unwrap_or_default().trim().into()),
        wide("First Seen", |object, now| age::since(event_time(object, FIRST), now).into()),
        column("Count", "integer", 1, |object, _| {
            object["series"]["count"]
                .as_i64()
                .or(object["count"].as_i64())
                .filter(|count| *count > 0)
                .unwrap_or(1)
                .into()
        }),
        Column { priority: 1, ..name_column() },
    ]
}
