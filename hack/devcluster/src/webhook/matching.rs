//! Which webhooks want to see a write: rules, namespaces and labels. Pure.

use std::sync::Arc;

use serde_json::Value;

use crate::cluster::State;
use crate::object::{ObjectKey, strings};
use crate::registry::Registry;
use crate::resource::Resource;

/// The kind under which the configurations are stored.
pub const STORAGE: &str = "admissionregistration.k8s.io/validatingwebhookconfigurations";
const GROUP: &str = "admissionregistration.k8s.io";

/// A write as rules look at it.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    pub resource: &'a Resource,
    /// "" or `status`.
    pub subresource: &'a str,
    /// `CREATE`, `UPDATE` or `DELETE`.
    pub operation: &'a str,
    /// "" for cluster-scoped kinds.
    pub namespace: &'a str,
    /// Null for a delete.
    pub object: &'a Value,
    /// Null for a create.
    pub old: &'a Value,
}

/// A webhook that wants to see a write.
#[derive(Debug, Clone)]
pub struct Hook {
    /// Its entry of the configuration.
    pub webhook: Value,
    /// The version in which it wants the object.
    pub resource: Arc<Resource>,
}

/// Whether there is any webhook.
pub fn any(state: &State) -> bool {
    state.store.list(STORAGE, None).next().is_some()
}

/// The webhooks that match, in the order of their configurations' names.
pub fn hooks(state: &State, write: &Write<'_>) -> Vec<Hook> {
    // Otherwise a webhook could forbid its own removal.
    if write.resource.group == GROUP {
        return Vec::new();
    }
    let mut configurations: Vec<&Arc<Value>> = state.store.list(STORAGE, None).collect();
    configurations.sort_by_key(|configuration| crate::object::name(configuration).to_owned());
    let namespace = state.store.get("/namespaces", &ObjectKey::new("", write.namespace));
    let webhooks = configurations
        .iter()
        .flat_map(|configuration| configuration["webhooks"].as_array().into_iter().flatten());
    webhooks
        .filter(|webhook| selects_namespace(webhook, write, namespace.as_deref()))
        .filter(|webhook| {
            let selector = &webhook["objectSelector"];
            is_empty(selector)
                || [write.object, write.old]
                    .iter()
                    .any(|object| object.is_object() && selects(selector, object))
        })
        .filter_map(|webhook| {
            let resource = wanted(webhook, write, &state.registry)?;
            Some(Hook { webhook: webhook.clone(), resource })
        })
        .collect()
}

/// The version in which a rule of the webhook names the resource: the one of the request, or, under the policy
/// `Equivalent`, another one of the same objects.
fn wanted(webhook: &Value, write: &Write<'_>, registry: &Registry) -> Option<Arc<Resource>> {
    let rules = || webhook["rules"].as_array().into_iter().flatten();
    let same = |resource: &Arc<Resource>| {
        resource.storage == write.resource.storage
            && (resource.api_version() == write.resource.api_version()
                || webhook["matchPolicy"] == "Equivalent")
    };
    let mut served: Vec<&Arc<Resource>> = registry.all().filter(|one| same(one)).collect();
    served.sort_by_key(|one| one.api_version() != write.resource.api_version());
    served.into_iter().find(|one| rules().any(|rule| rule_matches(rule, one, write))).cloned()
}

fn rule_matches(rule: &Value, resource: &Resource, write: &Write<'_>) -> bool {
    let has = |field: &str, wanted: &str| {
        strings(&rule[field]).iter().any(|entry| *entry == "*" || *entry == wanted)
    };
    let scope = match rule["scope"].as_str() {
        Some("Namespaced") => resource.namespaced,
        Some("Cluster") => !resource.namespaced,
        _ => true,
    };
    let entry_fits = |entry: &&str| {
        let (plural, subresource) = entry.split_once('/').unwrap_or((entry, ""));
        (plural == "*" || plural == resource.plural)
            // A star alone means all resources, but no subresources.
            && (subresource == "*" || subresource == write.subresource)
    };
    scope
        && has("operations", write.operation)
        && has("apiGroups", &resource.group)
        && has("apiVersions", &resource.version)
        && strings(&rule["resources"]).iter().any(entry_fits)
}

fn is_empty(selector: &Value) -> bool {
    let none = |field: &str| match &selector[field] {
        Value::Object(labels) => labels.is_empty(),
        Value::Array(expressions) => expressions.is_empty(),
        _ => true,
    };
    none("matchLabels") && none("matchExpressions")
}

/// Namespaces themselves are selected by their own labels; other objects without a namespace always.
fn selects_namespace(webhook: &Value, write: &Write<'_>, namespace: Option<&Value>) -> bool {
    let selector = &webhook["namespaceSelector"];
    if is_empty(selector) {
        return true;
    }
    if write.resource.plural == "namespaces" && write.resource.group.is_empty() {
        let shown = if write.object.is_object() { write.object } else { write.old };
        return selects(selector, shown);
    }
    !write.resource.namespaced || namespace.is_some_and(|namespace| selects(selector, namespace))
}

fn selects(selector: &Value, object: &Value) -> bool {
    let label = |key: &str| object["metadata"]["labels"][key].as_str();
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let expressions = selector["matchExpressions"].as_array().into_iter().flatten();
    labels.into_iter().all(|(key, value)| label(key) == value.as_str())
        && expressions.into_iter().all(|expression| {
            let value = label(expression["key"].as_str().unwrap_or_default());
            let values = strings(&expression["values"]);
            match expression["operator"].as_str() {
                Some("In") => value.is_some_and(|value| values.contains(&value)),
                Some("NotIn") => value.is_none_or(|value| !values.contains(&value)),
                Some("Exists") => value.is_some(),
                Some("DoesNotExist") => value.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn state(webhook: &Value) -> State {
        let mut state = State::new();
        let configuration = json!({"metadata": {"name": "c"}, "webhooks": [webhook]});
        state.put(STORAGE, configuration);
        let labels = json!({"stage": "test"});
        state.put("/namespaces", json!({"metadata": {"name": "n", "labels": labels}}));
        state
    }

    fn seen(webhook: &Value, plural: &str, operation: &str, labels: &Value) -> bool {
        let (plural, subresource) = plural.split_once('/').unwrap_or((plural, ""));
        let mut whole = json!({"rules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": [""],
            "apiVersions": ["v1"], "resources": ["configmaps"], "scope": "*"}]});
        for (field, value) in webhook.as_object().into_iter().flatten() {
            whole[field] = value.clone();
        }
        let state = state(&whole);
        let resource = state.registry.all().find(|resource| resource.plural == plural).cloned();
        let resource = resource.expect("is built in");
        let object = json!({"metadata": {"name": "x", "labels": labels}});
        let namespace = if resource.namespaced { "n" } else { "" };
        let old = &Value::Null;
        let write =
            Write { resource: &resource, subresource, operation, namespace, object: &object, old };
        !hooks(&state, &write).is_empty()
    }

    fn rule(field: &str, value: Value) -> Value {
        let mut rule = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"],
            "resources": ["*"], "scope": "*"});
        rule[field] = value;
        json!({"rules": [rule]})
    }

    #[test]
    fn rules_match_as_documented() {
        let none = || json!({});
        let table = [
            (none(), "configmaps", "CREATE", true),
            (none(), "configmaps", "DELETE", false),
            (none(), "secrets", "CREATE", false),
            (rule("resources", json!(["*"])), "secrets", "DELETE", true),
            (rule("resources", json!(["*"])), "pods/status", "UPDATE", false),
            (rule("resources", json!(["*/*"])), "pods/status", "UPDATE", true),
            (rule("resources", json!(["*/*"])), "pods", "UPDATE", true),
            (rule("resources", json!(["*/status"])), "pods/status", "UPDATE", true),
            (rule("resources", json!(["pods/*"])), "pods/status", "UPDATE", true),
            (rule("resources", json!(["pods/status"])), "pods", "UPDATE", false),
            (rule("apiGroups", json!(["apps"])), "configmaps", "CREATE", false),
            (rule("apiGroups", json!(["apps"])), "deployments", "CREATE", true),
            (rule("apiVersions", json!(["v2"])), "configmaps", "CREATE", false),
            (rule("scope", json!("Cluster")), "configmaps", "CREATE", false),
            (rule("scope", json!("Cluster")), "nodes", "CREATE", true),
            (rule("scope", json!("Namespaced")), "nodes", "CREATE", false),
            (rule("scope", json!("*")), "validatingwebhookconfigurations", "CREATE", false),
        ];
        for (webhook, plural, operation, expected) in table {
            let shown = format!("{webhook} {plural} {operation}");
            assert_eq!(seen(&webhook, plural, operation, &none()), expected, "{shown}");
        }
    }

    #[test]
    fn selectors_look_at_the_labels_of_the_namespace_and_of_the_object() {
        let of_namespace = |selector: Value| json!({ "namespaceSelector": selector });
        let of_object = |selector: Value| json!({ "objectSelector": selector });
        let expression = |operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": "stage", "operator": operator, "values": values}]});
        let table = [
            (of_namespace(json!({"matchLabels": {"stage": "test"}})), true),
            (of_namespace(json!({"matchLabels": {"stage": "live"}})), false),
            (of_namespace(expression("In", &["live", "test"])), true),
            (of_namespace(expression("NotIn", &["test"])), false),
            (of_namespace(expression("DoesNotExist", &[])), false),
            (of_object(json!({"matchLabels": {"app": "a"}})), true),
            (of_object(json!({"matchLabels": {"app": "b"}})), false),
            (of_object(expression("Exists", &[])), false),
        ];
        for (webhook, expected) in table {
            let shown = webhook.to_string();
            assert_eq!(
                seen(&webhook, "configmaps", "CREATE", &json!({"app": "a"})),
                expected,
                "{shown}"
            );
        }
    }

    #[test]
    fn an_equivalent_version_is_shown_in_the_version_of_the_rule() {
        let webhook = |policy: &str| {
            let mut webhook = rule("apiGroups", json!(["events.k8s.io"]));
            webhook["matchPolicy"] = policy.into();
            webhook
        };
        let state = |policy| state(&webhook(policy));
        for (policy, expected) in [("Equivalent", Some("events.k8s.io/v1")), ("Exact", None)] {
            let state = state(policy);
            let resource = state.registry.find("", "v1", "events").expect("is built in");
            let write = Write {
                resource,
                subresource: "",
                operation: "CREATE",
                namespace: "n",
                object: &json!({}),
                old: &Value::Null,
            };
            let found = hooks(&state, &write).first().map(|hook| hook.resource.api_version());
            assert_eq!(found.as_deref(), expected);
        }
    }
}
