//! Discovery documents: the served groups, versions and resources. Pure.
//!
//! The aggregated form of newer clients is missing: they fall back to these documents.

use serde_json::{Value, json};

use crate::registry::Registry;
use crate::resource::api_version;

const VERBS: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];
const SUBRESOURCE_VERBS: &[&str] = &["get", "patch", "update"];

/// `/version`. Clients choose their behavior by it.
pub fn version() -> Value {
    json!({
        "major": "1", "minor": "32", "gitVersion": "v1.32.0-devcluster", "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "2024-12-11T00:00:00Z", "goVersion": "", "compiler": "rustc", "platform": "linux/amd64",
    })
}

/// The document at `/api`: the versions of the core group.
pub fn core_versions(address: &str) -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]})
}

/// The document at `/apis`: all named groups with their versions.
pub fn groups(registry: &Registry) -> Value {
    let groups: Vec<Value> = registry
        .groups()
        .iter()
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, versions)| group_entry(name, versions))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn group_entry(name: &str, versions: &[String]) -> Value {
    let entry =
        |version: &String| json!({"groupVersion": api_version(name, version), "version": version});
    json!({"name": name, "versions": versions.iter().map(entry).collect::<Vec<_>>(), "preferredVersion": versions.first().map(entry)})
}

/// The document at `/apis/<group>`; `None` for an unknown group.
pub fn group(registry: &Registry, name: &str) -> Option<Value> {
    let groups = registry.groups();
    let (name, versions) = groups.iter().find(|(known, _)| known == name && !name.is_empty())?;
    let mut entry = group_entry(name, versions);
    entry["kind"] = "APIGroup".into();
    entry["apiVersion"] = "v1".into();
    Some(entry)
}

/// The document at `/api/v1` or `/apis/<group>/<version>`: the resources of the version.
pub fn resources(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let mut list = Vec::new();
    for resource in
        registry.all().filter(|resource| resource.group == group && resource.version == version)
    {
        let mut entry = json!({
            "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": VERBS,
        });
        if !resource.short_names.is_empty() {
            entry["shortNames"] = json!(resource.short_names);
        }
        if !resource.categories.is_empty() {
            entry["categories"] = json!(resource.categories);
        }
        list.push(entry);
        if resource.has_status {
            list.push(json!({
                "name": format!("{}/status", resource.plural), "singularName": "", "namespaced": resource.namespaced,
                "kind": resource.kind, "verbs": SUBRESOURCE_VERBS,
            }));
        }
        if resource.scale.is_some() {
            list.push(json!({
                "name": format!("{}/scale", resource.plural), "singularName": "", "namespaced": resource.namespaced,
                "group": "autoscaling", "version": "v1", "kind": "Scale", "verbs": SUBRESOURCE_VERBS,
            }));
        }
    }
    (!list.is_empty()).then(|| json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version(group, version), "resources": list}))
}
