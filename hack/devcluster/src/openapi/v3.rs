//! `OpenAPI` v3: one document per group and version. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::definitions::definitions;
use crate::registry::Registry;
use crate::resource::Resource;

/// `/openapi/v3`: the paths of the documents.
pub fn index(registry: &Registry) -> Value {
    let mut paths = Map::new();
    for (group, versions) in registry.groups() {
        for version in versions {
            let path = document_path(&group, &version);
            paths.insert(path.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{path}")}));
        }
    }
    json!({"paths": paths})
}

fn document_path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// The document of a group and version; none when it is not served.
pub fn document(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let served: Vec<&Resource> = registry
        .all()
        .map(AsRef::as_ref)
        .filter(|resource| resource.group == group && resource.version == version)
        .collect();
    if served.is_empty() {
        return None;
    }
    let mut paths = Map::new();
    let mut schemas = Map::new();
    for resource in &served {
        let name = schema_name(resource);
        let mut schema = whole_schema(resource);
        schema["x-kubernetes-group-version-kind"] = json!([gvk(resource)]);
        schemas.insert(name.clone(), schema);
        add_paths(&mut paths, resource, &name);
    }
    add_referenced(&mut schemas);
    for schema in schemas.values_mut() {
        rewrite(schema);
    }
    Some(json!({
        "openapi": "3.0.0", "info": {"title": "devcluster", "version": "v1.32.0"}, "paths": paths, "components": {"schemas": schemas},
    }))
}

pub fn gvk(resource: &Resource) -> Value {
    json!({"group": resource.group, "version": resource.version, "kind": resource.kind})
}

/// The name of a schema, such as `io.neptune.v1alpha1.JointInferenceService`.
pub fn schema_name(resource: &Resource) -> String {
    if let Some(reference) = resource.schema.get("$ref").and_then(Value::as_str) {
        return reference.rsplit('/').next().unwrap_or(reference).to_owned();
    }
    let reversed: Vec<&str> = resource.group.rsplit('.').collect();
    format!("{}.{}.{}", reversed.join("."), resource.version, resource.kind)
}

fn collection_path(resource: &Resource) -> String {
    let base = document_path(&resource.group, &resource.version);
    let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
    format!("/{base}{scope}/{}", resource.plural)
}

/// The path of one object.
pub fn object_path(resource: &Resource) -> String {
    format!("{}/{{name}}", collection_path(resource))
}

fn add_paths(paths: &mut Map<String, Value>, resource: &Resource, schema: &str) {
    let collection = collection_path(resource);
    let parameter = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
    let operation = |action: &str, parameters: &[&str]| {
        json!({
            "x-kubernetes-action": action, "x-kubernetes-group-version-kind": gvk(resource),
            "parameters": parameters.iter().map(|name| parameter(name)).collect::<Vec<_>>(),
            "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": {"$ref": format!("#/components/schemas/{schema}")}}}}},
        })
    };
    let write: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
    paths.insert(
        collection.clone(),
        json!({"get": operation("list", &["labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "watch"]), "post": operation("post", write)}),
    );
    let patch: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];
    let object = json!({
        "get": operation("get", &[]), "put": operation("put", write), "patch": operation("patch", patch), "delete": operation("delete", &["dryRun"]),
    });
    paths.insert(object_path(resource), object);
}

/// The schema of a kind, with the reference to a built-in definition resolved.
pub fn whole_schema(resource: &Resource) -> Value {
    match resource.schema.get("$ref").and_then(Value::as_str) {
        Some(reference) => definitions()[reference.rsplit('/').next().unwrap_or(reference)].clone(),
        None => resource.schema.clone(),
    }
}

/// Adds all definitions that the schemas reference directly or indirectly.
pub fn add_referenced(schemas: &mut Map<String, Value>) {
    let mut open: BTreeSet<String> = schemas.values().flat_map(references).collect();
    while let Some(name) = open.pop_first() {
        if schemas.contains_key(&name) {
            continue;
        }
        if let Some(definition) = definitions().get(&name) {
            open.extend(references(definition));
            schemas.insert(name, definition.clone());
        }
    }
}

fn references(node: &Value) -> Vec<String> {
    match node {
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, child)| match (key.as_str(), child) {
                ("$ref", Value::String(reference)) => {
                    vec![reference.rsplit('/').next().unwrap_or(reference).to_owned()]
                }
                _ => references(child),
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

/// Converts references into the form of `OpenAPI`, where `allOf` keeps the description beside a
/// reference.
fn rewrite(node: &mut Value) {
    match node {
        Value::Object(map) => {
            map.remove("x-devcluster-micro-time");
            map.remove("x-devcluster-quantity").inspect(|_| {
                map.insert("type".into(), "string".into());
            });
            if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
                let name = reference.rsplit('/').next().unwrap_or(reference);
                let target = json!({"$ref": format!("#/components/schemas/{name}")});
                map.remove("$ref");
                if map.is_empty() {
                    *node = target;
                    return;
                }
                map.insert("allOf".into(), json!([target]));
            }
            for (key, child) in map.iter_mut() {
                if key != "allOf" || child[0].get("$ref").is_none() {
                    rewrite(child);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(rewrite),
        _ => {}
    }
}
