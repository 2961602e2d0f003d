//! The rules of built-in kinds that their schemas do not say. Pure; only the rules that users of the served kinds run into.

use serde_json::Value;

use super::workload;
use crate::crd_check;
use crate::field::{FieldError, index, join};
use crate::names::check_labels;
use crate::schema::format::is_base64;

/// Findings on an object that is written; `old` is none for a create.
pub fn check(plural: &str, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match plural {
        "deployments" => workload::deployment(value, old, &mut errors),
        "daemonsets" => workload::daemon_set(value, old, &mut errors),
        "networkpolicies" => network_policy(value, &mut errors),
        "poddisruptionbudgets" => disruption_budget(value, &mut errors),
        "pods" => workload::pod(value, old, &mut errors),
        "services" => service(value, old, &mut errors),
        "configmaps" => data_keys(value, &["data", "binaryData"], &mut errors),
        "secrets" => secret(value, old, &mut errors),
        "leases" => lease(value, &mut errors),
        "events" => event(value, old, &mut errors),
        "validatingwebhookconfigurations" => super::webhooks::check(value, &mut errors),
        "customresourcedefinitions" => {
            errors.extend(crd_check::check_definition(value));
            if let Some(old) = old {
                immutable(
                    value,
                    old,
                    &["spec.group", "spec.names.plural", "spec.scope"],
                    &mut errors,
                );
                errors.extend(crd_check::check_stored_versions(value));
            }
        }
        "rolebindings" | "clusterrolebindings" => {
            if let Some(old) = old
                && old["roleRef"] != value["roleRef"]
            {
                errors.push(FieldError::invalid(
                    "roleRef",
                    value["roleRef"].clone(),
                    "cannot change roleRef",
                ));
            }
        }
        _ => {}
    }
    errors
}

/// Fields that no update may change.
pub(super) fn immutable(value: &Value, old: &Value, paths: &[&str], errors: &mut Vec<FieldError>) {
    for path in paths {
        let at = |object: &Value| crate::object::at_path(object, path).cloned().unwrap_or_default();
        if at(value) != at(old) {
            errors.push(FieldError::invalid(path, at(value), "field is immutable"));
        }
    }
}

fn service(value: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let spec = &value["spec"];
    let kind = spec["type"].as_str().unwrap_or_default();
    if !matches!(kind, "ClusterIP" | "NodePort" | "LoadBalancer" | "ExternalName") {
        errors.push(FieldError::unsupported(
            "spec.type",
            kind,
            &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"],
        ));
    }
    let ports = spec["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    if ports.is_empty() && kind != "ExternalName" && spec["clusterIP"] != "None" {
        errors.push(FieldError::required("spec.ports", ""));
    }
    for (position, port) in ports.iter().enumerate() {
        let path = index("spec.ports", position);
        check_port(&port["port"], &join(&path, "port"), errors);
        check_choice(port, "protocol", &path, &["SCTP", "TCP", "UDP"], errors);
        if ports.len() > 1 && port["name"].as_str().unwrap_or_default().is_empty() {
            errors.push(FieldError::required(&join(&path, "name"), ""));
        }
        let same =
            |other: &&Value| other["port"] == port["port"] && other["protocol"] == port["protocol"];
        if ports[..position].iter().any(|other| same(&other)) {
            errors.push(FieldError::duplicate(&path, port.clone()));
        }
    }
    check_labels(&spec["selector"], "spec.selector", errors);
    if let Some(old) = old
        && old["spec"]["type"] == spec["type"]
        && kind != "ExternalName"
        && old["spec"]["clusterIP"] != spec["clusterIP"]
    {
        errors.push(FieldError::invalid(
            "spec.clusterIPs[0]",
            spec["clusterIP"].clone(),
            "may not change once set",
        ));
    }
}

fn data_keys(value: &Value, fields: &[&str], errors: &mut Vec<FieldError>) {
    for field in fields {
        for key in value[*field].as_object().into_iter().flat_map(serde_json::Map::keys) {
            let fits = !key.is_empty()
                && key.len() <= 253
                && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
            if !fits || matches!(key.as_str(), "." | "..") {
                errors.push(FieldError::invalid(&format!("{field}[{key}]"), key.as_str(), "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"));
            }
        }
    }
}

fn secret(value: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    data_keys(value, &["data"], errors);
    for (key, text) in value["data"].as_object().into_iter().flatten() {
        if !is_base64(text.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid(
                &format!("data[{key}]"),
                "<secret contents redacted>",
                "illegal base64 data",
            ));
        }
    }
    if let Some(old) = old {
        immutable(value, old, &["type"], errors);
    }
}

/// Events of the newer group have more rules than those of the core group.
fn event(value: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let newer = value["apiVersion"] == "events.k8s.io/v1";
    let subject = if newer { "regarding" } else { "involvedObject" };
    let (own, of_subject) =
        (text(&value["metadata"]["namespace"]), text(&value[subject]["namespace"]));
    let fits = if of_subject.is_empty() {
        matches!(own.as_str(), "default" | "kube-system")
    } else {
        own == of_subject
    };
    if !fits {
        errors.push(FieldError::invalid(
            "involvedObject.namespace",
            of_subject,
            "does not match event.namespace",
        ));
    }
    if !newer || old.is_some() {
        return;
    }
    if value["eventTime"].is_null() {
        errors.push(FieldError::required("eventTime", ""));
    }
    for (field, limit) in [
        ("reportingController", usize::MAX),
        ("reportingInstance", 128),
        ("action", 128),
        ("reason", 128),
    ] {
        let given = text(&value[field]);
        if given.is_empty() {
            errors.push(FieldError::required(field, ""));
        } else if given.len() > limit {
            errors.push(FieldError::invalid(
                field,
                "",
                format!("can have at most {limit} characters"),
            ));
        }
    }
    if text(&value["note"]).len() > 1024 {
        errors.push(FieldError::invalid("note", "", "can have at most 1024 characters"));
    }
    let kind = text(&value["type"]);
    if !matches!(kind.as_str(), "Normal" | "Warning") {
        errors.push(FieldError::invalid("type", "", format!("has invalid value: {kind}")));
    }
}

fn network_policy(value: &Value, errors: &mut Vec<FieldError>) {
    let spec = &value["spec"];
    check_labels(&spec["podSelector"]["matchLabels"], "spec.podSelector.matchLabels", errors);
    for (position, kind) in spec["policyTypes"].as_array().into_iter().flatten().enumerate() {
        let given = kind.as_str().unwrap_or_default();
        if !matches!(given, "Ingress" | "Egress") {
            let path = index("spec.policyTypes", position);
            errors.push(FieldError::unsupported(&path, given, &["Egress", "Ingress"]));
        }
    }
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for (position, rule) in spec[direction].as_array().into_iter().flatten().enumerate() {
            let path = index(&join("spec", direction), position);
            for (position, peer) in rule[peers].as_array().into_iter().flatten().enumerate() {
                check_peer(peer, &index(&join(&path, peers), position), errors);
            }
            for (position, port) in rule["ports"].as_array().into_iter().flatten().enumerate() {
                let path = index(&join(&path, "ports"), position);
                check_choice(port, "protocol", &path, &["SCTP", "TCP", "UDP"], errors);
                if port["port"].is_number() {
                    check_port(&port["port"], &join(&path, "port"), errors);
                }
            }
        }
    }
}

fn check_peer(peer: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let has = |field: &str| !peer[field].is_null();
    if has("ipBlock") && (has("podSelector") || has("namespaceSelector")) {
        errors.push(FieldError::forbidden(path, "may not specify both ipBlock and another peer"));
    } else if !has("ipBlock") && !has("podSelector") && !has("namespaceSelector") {
        errors.push(FieldError::required(path, "must specify a peer"));
    }
    for selector in ["podSelector", "namespaceSelector"] {
        let path = join(&join(path, selector), "matchLabels");
        check_labels(&peer[selector]["matchLabels"], &path, errors);
    }
}

fn disruption_budget(value: &Value, errors: &mut Vec<FieldError>) {
    let spec = &value["spec"];
    if !spec["minAvailable"].is_null() && !spec["maxUnavailable"].is_null() {
        errors.push(FieldError::invalid(
            "spec",
            spec.clone(),
            "minAvailable and maxUnavailable cannot be both set",
        ));
    }
    check_labels(&spec["selector"]["matchLabels"], "spec.selector.matchLabels", errors);
}

fn lease(value: &Value, errors: &mut Vec<FieldError>) {
    if let Some(seconds) =
        value["spec"]["leaseDurationSeconds"].as_i64().filter(|seconds| *seconds <= 0)
    {
        errors.push(FieldError::invalid(
            "spec.leaseDurationSeconds",
            seconds,
            "must be greater than 0",
        ));
    }
}

pub(super) fn check_port(port: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if !port.as_i64().is_some_and(|port| (1..=65535).contains(&port)) {
        errors.push(FieldError::invalid(
            path,
            port.clone(),
            "must be between 1 and 65535, inclusive",
        ));
    }
}

/// A text that must be one of a few.
pub(super) fn check_choice(
    parent: &Value,
    field: &str,
    path: &str,
    choices: &[&str],
    errors: &mut Vec<FieldError>,
) {
    if let Some(given) = parent[field].as_str().filter(|given| !choices.contains(given)) {
        errors.push(FieldError::unsupported(&join(path, field), given, choices));
    }
}
