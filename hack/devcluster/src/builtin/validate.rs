//! The rules of built-in kinds that their schemas do not say. Pure; only the rules that users of the served kinds run into.

use serde_json::Value;

use crate::crd_check;
use crate::field::{FieldError, index, join};
use crate::names::{check_labels, name_fault};
use crate::resource::NameRule;
use crate::schema::format::is_base64;

/// Findings on an object that is written; `old` is none for a create.
pub fn check(plural: &str, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match plural {
        "deployments" => deployment(value, old, &mut errors),
        "pods" => pod(value, old, &mut errors),
        "services" => service(value, old, &mut errors),
        "configmaps" => data_keys(value, &["data", "binaryData"], &mut errors),
        "secrets" => secret(value, old, &mut errors),
        "leases" => lease(value, &mut errors),
        "events" => event(value, old, &mut errors),
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

fn immutable(value: &Value, old: &Value, paths: &[&str], errors: &mut Vec<FieldError>) {
    for path in paths {
        let at = |object: &Value| crate::object::at_path(object, path).cloned().unwrap_or_default();
        if at(value) != at(old) {
            errors.push(FieldError::invalid(path, at(value), "field is immutable"));
        }
    }
}

fn deployment(value: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let spec = &value["spec"];
    if spec["replicas"].as_i64().unwrap_or_default() < 0 {
        errors.push(FieldError::invalid(
            "spec.replicas",
            spec["replicas"].clone(),
            "must be greater than or equal to 0",
        ));
    }
    let labels = &spec["template"]["metadata"]["labels"];
    let wanted = spec["selector"]["matchLabels"].as_object();
    let expressions = spec["selector"]["matchExpressions"].as_array().map_or(0, Vec::len);
    if wanted.is_none_or(serde_json::Map::is_empty) && expressions == 0 {
        errors.push(FieldError::invalid(
            "spec.selector",
            spec["selector"].clone(),
            "empty selector is invalid for deployment",
        ));
    } else if wanted.into_iter().flatten().any(|(key, value)| &labels[key] != value) {
        errors.push(FieldError::invalid(
            "spec.template.metadata.labels",
            labels.clone(),
            "`selector` does not match template `labels`",
        ));
    }
    check_labels(labels, "spec.template.labels", errors);
    pod_spec(&spec["template"]["spec"], "spec.template.spec", errors);
    let restart = spec["template"]["spec"]["restartPolicy"].as_str().unwrap_or_default();
    if !matches!(restart, "" | "Always") {
        errors.push(FieldError::unsupported(
            "spec.template.spec.restartPolicy",
            restart,
            &["Always"],
        ));
    }
    if let Some(old) = old {
        immutable(value, old, &["spec.selector"], errors);
    }
}

fn pod(value: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    pod_spec(&value["spec"], "spec", errors);
    let Some(old) = old else { return };
    // Everything but these is fixed once a pod exists.
    let fixed = |object: &Value| {
        let mut spec = object["spec"].clone();
        for field in [
            "activeDeadlineSeconds",
            "tolerations",
            "terminationGracePeriodSeconds",
            "schedulingGates",
            "nodeName",
        ] {
            crate::object::fields(&mut spec).remove(field);
        }
        for list in ["containers", "initContainers"] {
            for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
            {
                crate::object::fields(container).remove("image");
            }
        }
        spec
    };
    let rebound =
        !old["spec"]["nodeName"].is_null() && old["spec"]["nodeName"] != value["spec"]["nodeName"];
    if fixed(value) != fixed(old) || rebound {
        errors.push(FieldError::forbidden("spec", "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"));
    }
}

fn pod_spec(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let list = |field: &str| spec[field].as_array().map(Vec::as_slice).unwrap_or_default();
    if list("containers").is_empty() {
        errors.push(FieldError::required(&join(path, "containers"), ""));
    }
    let volumes: Vec<&str> =
        list("volumes").iter().filter_map(|volume| volume["name"].as_str()).collect();
    for (position, volume) in list("volumes").iter().enumerate() {
        let path = join(&index(&join(path, "volumes"), position), "name");
        check_name(&volume["name"], &path, NameRule::Label, errors);
        if list("volumes")[..position].iter().any(|other| other["name"] == volume["name"]) {
            errors.push(FieldError::duplicate(&path, volume["name"].clone()));
        }
    }
    for (position, container) in list("containers").iter().enumerate() {
        let path = index(&join(path, "containers"), position);
        check_name(&container["name"], &join(&path, "name"), NameRule::Label, errors);
        check_choice(
            container,
            "imagePullPolicy",
            &path,
            &["Always", "IfNotPresent", "Never"],
            errors,
        );
        if list("containers")[..position].iter().any(|other| other["name"] == container["name"]) {
            errors.push(FieldError::duplicate(&join(&path, "name"), container["name"].clone()));
        }
        if container["image"].as_str().unwrap_or_default().is_empty() {
            errors.push(FieldError::required(&join(&path, "image"), ""));
        }
        for (position, mount) in
            container["volumeMounts"].as_array().into_iter().flatten().enumerate()
        {
            let name = mount["name"].as_str().unwrap_or_default();
            if !volumes.contains(&name) {
                let path = join(&index(&join(&path, "volumeMounts"), position), "name");
                errors.push(FieldError::new(
                    crate::field::Fault::NotFound,
                    &path,
                    Some(name.into()),
                    "",
                ));
            }
        }
        for (position, port) in container["ports"].as_array().into_iter().flatten().enumerate() {
            check_port(
                &port["containerPort"],
                &join(&index(&join(&path, "ports"), position), "containerPort"),
                errors,
            );
        }
    }
}

/// A text that must be one of a few.
fn check_choice(
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

fn check_name(name: &Value, path: &str, rule: NameRule, errors: &mut Vec<FieldError>) {
    match name.as_str().unwrap_or_default() {
        "" => errors.push(FieldError::required(path, "")),
        name => {
            if let Some(fault) = name_fault(rule, name) {
                errors.push(FieldError::invalid(path, name, fault));
            }
        }
    }
}

fn check_port(port: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if !port.as_i64().is_some_and(|port| (1..=65535).contains(&port)) {
        errors.push(FieldError::invalid(
            path,
            port.clone(),
            "must be between 1 and 65535, inclusive",
        ));
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
