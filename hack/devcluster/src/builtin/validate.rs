//! Validation of built-in kinds beyond their schemas. Pure.
//!
//! Covers the kinds that Neptune's programs write: a lenient server would hide their defects.

use serde_json::Value;

use super::workload;
use crate::crd;
use crate::field::{FieldError, check_choice, check_port, immutable, index, join};
use crate::names::check_labels;
use crate::schema::format::is_base64;

/// All violations of an object; `old` is none for a create.
pub fn check(plural: &str, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match plural {
        "deployments" => workload::deployment(value, old, &mut errors),
        "daemonsets" => workload::daemon_set(value, old, &mut errors),
        "services" => service(value, old, &mut errors),
        "secrets" => secret(value, old, &mut errors),
        "events" => event(value, old, &mut errors),
        "validatingwebhookconfigurations" => super::webhooks::check(value, &mut errors),
        "customresourcedefinitions" => {
            errors.extend(crd::check(value));
            if let Some(old) = old {
                immutable(
                    value,
                    old,
                    &["spec.group", "spec.names.plural", "spec.scope"],
                    &mut errors,
                );
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

fn secret(value: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
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

/// Events of `events.k8s.io` have more rules than events of the core group.
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
