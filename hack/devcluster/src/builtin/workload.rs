//! Validation of workloads and their pod templates. Pure.

use serde_json::Value;

use crate::field::{Fault, FieldError, check_choice, check_port, immutable, index, join};
use crate::names::{check_labels, name_fault};
use crate::resource::NameRule;

pub fn deployment(value: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let replicas = &value["spec"]["replicas"];
    if replicas.as_i64().unwrap_or_default() < 0 {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("spec.replicas", replicas.clone(), detail));
    }
    workload(value, old, "deployment", errors);
}

pub fn daemon_set(value: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    workload(value, old, "daemonset", errors);
}

/// The rules for every kind with a selector and a template.
fn workload(value: &Value, old: Option<&Value>, kind: &str, errors: &mut Vec<FieldError>) {
    let spec = &value["spec"];
    let labels = &spec["template"]["metadata"]["labels"];
    let wanted = spec["selector"]["matchLabels"].as_object();
    let expressions = spec["selector"]["matchExpressions"].as_array().map_or(0, Vec::len);
    if spec["selector"].is_null() {
        // The schema reports a missing selector.
    } else if wanted.is_none_or(serde_json::Map::is_empty) && expressions == 0 {
        errors.push(FieldError::invalid(
            "spec.selector",
            spec["selector"].clone(),
            format!("empty selector is invalid for {kind}"),
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

fn pod_spec(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let list = |field: &str| spec[field].as_array().map(Vec::as_slice).unwrap_or_default();
    if list("containers").is_empty() {
        errors.push(FieldError::required(&join(path, "containers"), ""));
    }
    for field in ["volumes", "containers"] {
        for (position, item) in list(field).iter().enumerate() {
            let path = join(&index(&join(path, field), position), "name");
            check_name(&item["name"], &path, errors);
            if list(field)[..position].iter().any(|other| other["name"] == item["name"]) {
                errors.push(FieldError::duplicate(&path, item["name"].clone()));
            }
        }
    }
    let volumes: Vec<&str> =
        list("volumes").iter().filter_map(|volume| volume["name"].as_str()).collect();
    for (position, container) in list("containers").iter().enumerate() {
        let path = index(&join(path, "containers"), position);
        let policies = ["Always", "IfNotPresent", "Never"];
        check_choice(container, "imagePullPolicy", &path, &policies, errors);
        if container["image"].as_str().unwrap_or_default().is_empty() {
            errors.push(FieldError::required(&join(&path, "image"), ""));
        }
        for (position, mount) in
            container["volumeMounts"].as_array().into_iter().flatten().enumerate()
        {
            let name = mount["name"].as_str().unwrap_or_default();
            if !volumes.contains(&name) {
                let path = join(&index(&join(&path, "volumeMounts"), position), "name");
                errors.push(FieldError::new(Fault::NotFound, &path, Some(name.into()), ""));
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

fn check_name(name: &Value, path: &str, errors: &mut Vec<FieldError>) {
    match name.as_str().unwrap_or_default() {
        "" => errors.push(FieldError::required(path, "")),
        name => {
            if let Some(fault) = name_fault(NameRule::Label, name) {
                errors.push(FieldError::invalid(path, name, fault));
            }
        }
    }
}
