//! Which groups, versions and resources there are, in the plain and in the aggregated form. Pure.

use serde_json::{Value, json};

use crate::registry::Registry;
use crate::resource::{Resource, api_version};

const VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const SUBRESOURCE_VERBS: &[&str] = &["get", "patch", "update"];

/// `/version`: what clients take this server for.
pub fn version() -> Value {
    json!({
        "major": "1", "minor": "32", "gitVersion": "v1.32.0-devcluster", "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "2024-12-11T00:00:00Z", "goVersion": "", "compiler": "rustc", "platform": "linux/amd64",
    })
}

/// `/api`.
pub fn core_versions(address: &str) -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]})
}

/// `/apis`.
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

/// `/apis/<group>`.
pub fn group(registry: &Registry, name: &str) -> Option<Value> {
    let groups = registry.groups();
    let (name, versions) = groups.iter().find(|(known, _)| known == name && !name.is_empty())?;
    let mut entry = group_entry(name, versions);
    entry["kind"] = "APIGroup".into();
    entry["apiVersion"] = "v1".into();
    Some(entry)
}

/// `/api/v1` and `/apis/<group>/<version>`.
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
        for (subresource, (group, version, kind)) in subresources(resource) {
            let mut entry = json!({
                "name": format!("{}/{subresource}", resource.plural), "singularName": "", "namespaced": resource.namespaced,
                "kind": kind, "verbs": SUBRESOURCE_VERBS,
            });
            if subresource == "scale" {
                entry["group"] = group.into();
                entry["version"] = version.into();
            }
            list.push(entry);
        }
    }
    (!list.is_empty()).then(|| json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version(group, version), "resources": list}))
}

fn subresources(resource: &Resource) -> Vec<(&'static str, (String, String, String))> {
    let mut list = Vec::new();
    if resource.scale.is_some() {
        list.push(("scale", ("autoscaling".to_owned(), "v1".to_owned(), "Scale".to_owned())));
    }
    if resource.has_status {
        list.push((
            "status",
            (resource.group.clone(), resource.version.clone(), resource.kind.clone()),
        ));
    }
    list
}

/// The aggregated form of `/api` (core group) or `/apis` (all others), in `v2` or `v2beta1`.
pub fn aggregated(registry: &Registry, core: bool, form: &str) -> Value {
    let items: Vec<Value> = registry
        .groups()
        .iter()
        .filter(|(group, _)| group.is_empty() == core)
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    let resources: Vec<Value> = registry
                        .all()
                        .filter(|resource| resource.group == *group && resource.version == *version)
                        .map(|resource| aggregated_resource(resource))
                        .collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let metadata = if core {
                json!({"creationTimestamp": null})
            } else {
                json!({"name": group, "creationTimestamp": null})
            };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{form}"), "metadata": {}, "items": items})
}

fn aggregated_resource(resource: &Resource) -> Value {
    let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let mut entry = json!({
        "resource": resource.plural, "responseKind": kind(&resource.group, &resource.version, &resource.kind),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" }, "singularResource": resource.singular, "verbs": VERBS,
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    let subresources: Vec<Value> = subresources(resource)
        .iter()
        .map(|(name, (group, version, name_of_kind))| json!({"subresource": name, "responseKind": kind(group, version, name_of_kind), "verbs": SUBRESOURCE_VERBS}))
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = subresources.into();
    }
    entry
}
