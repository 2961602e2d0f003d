//! The rules of pods and of what makes pods. Pure.

use serde_json::Value;

use super::validate::{check_choice, check_port, immutable};
use crate::field::{Fault, FieldError, index, join};
use crate::names::{check_labels, name_fault};
use crate::resource::NameRule;

pub fn deployment(value: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let spec = &value["spec"];
    if spec["replicas"].as_i64().unwrap_or_default() < 0 {
        errors.push(FieldError::invalid(
            "spec.replicas",
            spec["replicas"].clone(),
            "must be greater than or equal to 0",
        ));
    }
    runs_pods(value, old, "deployment", errors);
}

pub fn daemon_set(value: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    runs_pods(value, old, "daemonset", errors);
    let strategy = &value["spec"]["updateStrategy"];
    check_choice(strategy, "type", "spec.updateStrategy", &["OnDelete", "RollingUpdate"], errors);
    let rolling = &strategy["rollingUpdate"];
    let is_zero = |field: &str| match &rolling[field] {
        Value::Null => true,
        Value::String(text) => text.trim_end_matches('%').parse() == Ok(0),
        number => number.as_i64() == Some(0),
    };
    if strategy["type"] == "RollingUpdate" && is_zero("maxUnavailable") && is_zero("maxSurge") {
        errors.push(FieldError::invalid(
            "spec.updateStrategy.rollingUpdate.maxUnavailable",
            rolling["maxUnavailable"].clone(),
            "cannot be 0 when `maxSurge` is 0",
        ));
    }
}

/// What holds for everything with a selector and a template.
fn runs_pods(value: &Value, old: Option<&Value>, kind: &str, errors: &mut Vec<FieldError>) {
    let spec = &value["spec"];
    let labels = &spec["template"]["metadata"]["labels"];
    let wanted = spec["selector"]["matchLabels"].as_object();
    let expressions = spec["selector"]["matchExpressions"].as_array().map_or(0, Vec::len);
    if spec["selector"].is_null() {
        // Its absence is said already.
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

pub fn pod(value: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
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
