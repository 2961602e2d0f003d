//! Selects the webhooks whose rules match a write. Pure.

use std::sync::Arc;

use serde_json::Value;

use crate::cluster::State;
use crate::object::strings;
use crate::resource::Resource;

/// The store's key of the configurations.
pub const STORAGE: &str = "admissionregistration.k8s.io/validatingwebhookconfigurations";
const GROUP: &str = "admissionregistration.k8s.io";

/// A write as rules match it.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    pub resource: &'a Resource,
    /// `status`, or empty for the object itself.
    pub subresource: &'a str,
    /// `CREATE`, `UPDATE` or `DELETE`.
    pub operation: &'a str,
    /// Empty for cluster-scoped kinds.
    pub namespace: &'a str,
    /// Null for a delete.
    pub object: &'a Value,
    /// Null for a create.
    pub old: &'a Value,
}

/// Whether any webhook is configured.
pub fn any(state: &State) -> bool {
    state.store.list(STORAGE, None).next().is_some()
}

/// The webhooks that match, each as its entry of the configuration, in the order of the
/// configurations' names.
pub fn matching(state: &State, write: &Write<'_>) -> Vec<Value> {
    // A webhook must not be able to forbid its own removal.
    if write.resource.group == GROUP {
        return Vec::new();
    }
    let mut configurations: Vec<&Arc<Value>> = state.store.list(STORAGE, None).collect();
    configurations.sort_by_key(|configuration| crate::object::name(configuration).to_owned());
    let webhooks = configurations
        .iter()
        .flat_map(|configuration| configuration["webhooks"].as_array().into_iter().flatten());
    let matches = |webhook: &&Value| {
        let mut rules = webhook["rules"].as_array().into_iter().flatten();
        rules.any(|rule| rule_matches(rule, write))
    };
    webhooks.filter(matches).cloned().collect()
}

fn rule_matches(rule: &Value, write: &Write<'_>) -> bool {
    let resource = write.resource;
    let has = |field: &str, wanted: &str| {
        strings(&rule[field]).iter().any(|entry| *entry == "*" || *entry == wanted)
    };
    let scope = match rule["scope"].as_str() {
        Some("Namespaced") => resource.namespaced,
        Some("Cluster") => !resource.namespaced,
        _ => true,
    };
    let entry_matches = |entry: &&str| {
        let (plural, subresource) = entry.split_once('/').unwrap_or((entry, ""));
        // `*` alone means all resources without their subresources.
        (plural == "*" || plural == resource.plural)
            && (subresource == "*" || subresource == write.subresource)
    };
    scope
        && has("operations", write.operation)
        && has("apiGroups", &resource.group)
        && has("apiVersions", &resource.version)
        && strings(&rule["resources"]).iter().any(entry_matches)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn is_matched(rule: &Value, resource: &str, operation: &str) -> bool {
        let mut state = State::new();
        let configuration = json!({"metadata": {"name": "c"}, "webhooks": [{"rules": [rule]}]});
        state.put(STORAGE, configuration);
        let (plural, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let resource = state.registry.all().find(|resource| resource.plural == plural).cloned();
        let resource = resource.expect("a built-in kind");
        let namespace = if resource.namespaced { "n" } else { "" };
        let (object, old) = (&json!({"metadata": {"name": "x"}}), &Value::Null);
        let write = Write { resource: &resource, subresource, operation, namespace, object, old };
        !matching(&state, &write).is_empty()
    }

    fn rule(field: &str, value: Value) -> Value {
        let mut rule = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"],
            "resources": ["*"], "scope": "*"});
        rule[field] = value;
        rule
    }

    #[test]
    fn rules_match_as_documented() {
        let maps = || {
            json!({"operations": ["CREATE", "UPDATE"], "apiGroups": [""],
            "apiVersions": ["v1"], "resources": ["configmaps"], "scope": "*"})
        };
        let table = [
            (maps(), "configmaps", "CREATE", true),
            (maps(), "configmaps", "DELETE", false),
            (maps(), "secrets", "CREATE", false),
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
        for (rule, resource, operation, expected) in table {
            let case = format!("{rule} {resource} {operation}");
            assert_eq!(is_matched(&rule, resource, operation), expected, "{case}");
        }
    }
}
