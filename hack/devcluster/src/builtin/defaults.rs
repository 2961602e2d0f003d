//! The defaults of an API server for the commonly used fields of built-in kinds. Pure.

use serde_json::{Map, Value, json};

use crate::object;

/// Sets the defaults of an object.
pub fn apply(plural: &str, value: &mut Value) {
    match plural {
        "deployments" => deployment(value),
        "daemonsets" => daemon_set(value),
        "networkpolicies" => network_policy(value),
        "services" => service(value),
        "secrets" => secret(value),
        "namespaces" => {
            default(value, "spec", json!({}));
            default(&mut value["spec"], "finalizers", json!(["kubernetes"]));
            let name = object::name(value).to_owned();
            if !name.is_empty() {
                let labels = object::metadata(value).entry("labels").or_insert_with(|| json!({}));
                object::fields(labels).insert("kubernetes.io/metadata.name".into(), name.into());
            }
        }
        "validatingwebhookconfigurations" => super::webhooks::apply_defaults(value),
        "customresourcedefinitions" => crate::crd::apply_defaults(value),
        _ => {}
    }
}

/// Removes nulls: for built-in kinds and for all metadata a null means "not set".
pub fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, child| !child.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn default(parent: &mut Value, field: &str, value: Value) {
    let Some(map) = parent.as_object_mut() else { return };
    set(map, field, value);
}

fn set(map: &mut Map<String, Value>, field: &str, value: Value) {
    if map.get(field).is_none_or(Value::is_null) {
        map.insert(field.to_owned(), value);
    }
}

fn deployment(value: &mut Value) {
    let Some(spec) = value.get_mut("spec").filter(|spec| spec.is_object()) else {
        return;
    };
    default(spec, "replicas", 1.into());
    default(spec, "revisionHistoryLimit", 10.into());
    default(spec, "progressDeadlineSeconds", 600.into());
    default(spec, "strategy", json!({}));
    default(&mut spec["strategy"], "type", "RollingUpdate".into());
    if spec["strategy"]["type"] == "RollingUpdate" {
        default(&mut spec["strategy"], "rollingUpdate", json!({}));
        default(&mut spec["strategy"]["rollingUpdate"], "maxUnavailable", "25%".into());
        default(&mut spec["strategy"]["rollingUpdate"], "maxSurge", "25%".into());
    }
    if let Some(template) = spec.pointer_mut("/template/spec") {
        pod_spec(template);
    }
}

fn daemon_set(value: &mut Value) {
    let Some(spec) = value.get_mut("spec").filter(|spec| spec.is_object()) else {
        return;
    };
    default(spec, "revisionHistoryLimit", 10.into());
    default(spec, "updateStrategy", json!({}));
    default(&mut spec["updateStrategy"], "type", "RollingUpdate".into());
    if spec["updateStrategy"]["type"] == "RollingUpdate" {
        default(&mut spec["updateStrategy"], "rollingUpdate", json!({}));
        default(&mut spec["updateStrategy"]["rollingUpdate"], "maxUnavailable", 1.into());
        default(&mut spec["updateStrategy"]["rollingUpdate"], "maxSurge", 0.into());
    }
    if let Some(template) = spec.pointer_mut("/template/spec") {
        pod_spec(template);
    }
}

fn network_policy(value: &mut Value) {
    let Some(spec) = value.get_mut("spec").filter(|spec| spec.is_object()) else {
        return;
    };
    let has_egress = spec["egress"].as_array().is_some_and(|rules| !rules.is_empty());
    let types = if has_egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
    default(spec, "policyTypes", types);
    for direction in ["ingress", "egress"] {
        let rules = spec.get_mut(direction).and_then(Value::as_array_mut);
        for rule in rules.into_iter().flatten() {
            for port in rule.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
                default(port, "protocol", "TCP".into());
            }
        }
    }
}

fn pod_spec(spec: &mut Value) {
    if !spec.is_object() {
        return;
    }
    default(spec, "restartPolicy", "Always".into());
    default(spec, "terminationGracePeriodSeconds", 30.into());
    default(spec, "dnsPolicy", "ClusterFirst".into());
    default(spec, "securityContext", json!({}));
    default(spec, "schedulerName", "default-scheduler".into());
    for list in ["containers", "initContainers"] {
        for one in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            container(one);
        }
    }
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        volume_defaults(volume);
    }
}

fn container(one: &mut Value) {
    default(one, "resources", json!({}));
    default(one, "terminationMessagePath", "/dev/termination-log".into());
    default(one, "terminationMessagePolicy", "File".into());
    if let Some(image) = one["image"].as_str() {
        let name = image.rsplit('/').next().unwrap_or(image);
        let latest = !image.contains('@') && (name.ends_with(":latest") || !name.contains(':'));
        default(one, "imagePullPolicy", if latest { "Always" } else { "IfNotPresent" }.into());
    }
    for port in one.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        default(port, "protocol", "TCP".into());
    }
    for variable in one.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(field) = variable.get_mut("valueFrom").and_then(|from| from.get_mut("fieldRef"))
        {
            default(field, "apiVersion", "v1".into());
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = one.get_mut(name) {
            for (field, number) in [
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ] {
                default(probe, field, number.into());
            }
            if let Some(get) = probe.get_mut("httpGet") {
                default(get, "path", "/".into());
                default(get, "scheme", "HTTP".into());
            }
        }
    }
}

fn volume_defaults(volume: &mut Value) {
    let sources = ["configMap", "secret", "projected", "downwardAPI"];
    for source in sources {
        if let Some(source) = volume.get_mut(source) {
            default(source, "defaultMode", 420.into());
        }
    }
    if let Some(host) = volume.get_mut("hostPath") {
        default(host, "type", "".into());
    }
    let has_source = volume.as_object().is_some_and(|map| map.len() > 1);
    if !has_source {
        default(volume, "emptyDir", json!({}));
    }
}

fn service(value: &mut Value) {
    default(value, "spec", json!({}));
    let spec = &mut value["spec"];
    default(spec, "type", "ClusterIP".into());
    default(spec, "sessionAffinity", "None".into());
    if spec["type"] != "ExternalName" {
        default(spec, "internalTrafficPolicy", "Cluster".into());
        default(spec, "ipFamilies", json!(["IPv4"]));
        default(spec, "ipFamilyPolicy", "SingleStack".into());
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        default(port, "protocol", "TCP".into());
        let number = port["port"].clone();
        default(port, "targetPort", number);
    }
}

fn secret(value: &mut Value) {
    default(value, "type", "Opaque".into());
}

/// Moves `stringData` into `data`.
pub fn fold_string_data(value: &mut Value) {
    let Some(plain) = object::fields(value).remove("stringData") else { return };
    for (key, text) in plain.as_object().into_iter().flatten() {
        let encoded = base64(text.as_str().unwrap_or_default().as_bytes());
        if !value["data"].is_object() {
            value["data"] = json!({});
        }
        value["data"][key] = encoded.into();
    }
}

/// Standard base64 with padding.
pub fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0_u32, |group, byte| group << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for position in 0..4 {
            let symbol = ALPHABET[(group >> (18 - 6 * position) & 63) as usize];
            text.push(if position <= chunk.len() { char::from(symbol) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimal_deployment_gets_stable_defaults() {
        let mut value = json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "x/y:1", "ports": [{"containerPort": 80}]}]}}}});
        apply("deployments", &mut value);
        let container = &value["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(value["spec"]["replicas"], 1);
        assert_eq!(container["imagePullPolicy"], "IfNotPresent");
        assert_eq!(container["ports"][0]["protocol"], "TCP");
        assert_eq!(value["spec"]["template"]["spec"].get("volumes"), None);
        let once = value.clone();
        apply("deployments", &mut value);
        assert_eq!(value, once, "defaults are stable");
    }

    #[test]
    fn string_data_becomes_base64() {
        for (plain, expected) in
            [("", ""), ("a", "YQ=="), ("ab", "YWI="), ("abc", "YWJj"), ("hello", "aGVsbG8=")]
        {
            let mut value = json!({"stringData": {"k": plain}});
            fold_string_data(&mut value);
            assert_eq!(value, json!({"data": {"k": expected}}));
        }
    }
}
