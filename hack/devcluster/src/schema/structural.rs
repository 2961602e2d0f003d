//! Whether a schema is structural, which a `CustomResourceDefinition` must have: every field typed, and nothing that pruning cannot follow. Pure.

use serde_json::Value;

use crate::field::{FieldError, index, join};
use crate::object::strings;

/// The root of a schema has rules of its own.
pub fn check(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if schema["type"] != "object" {
        let fault = schema["type"].as_str().unwrap_or_default();
        if fault.is_empty() {
            errors.push(FieldError::required(&join(path, "type"), "must not be empty at the root"));
        } else {
            errors.push(FieldError::invalid(
                &join(path, "type"),
                fault,
                "must be object at the root",
            ));
        }
    }
    let mut found = Vec::new();
    check_node(schema, path, Level::Structural, &mut found);
    let is_said = errors.iter().any(|error| error.field == join(path, "type"));
    found.retain(|error| !is_said || error.field != join(path, "type"));
    errors.append(&mut found);
    check_metadata(&schema["properties"]["metadata"], path, errors);
}

/// Every object has metadata; a schema may only narrow its names.
fn check_metadata(metadata: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let known = |node: &Value, names: &[&str]| {
        node.as_object().is_none_or(|map| map.keys().all(|name| names.contains(&name.as_str())))
    };
    if !known(metadata, &["type", "description", "properties"])
        || !known(&metadata["properties"], &["name", "generateName"])
    {
        let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        errors.push(FieldError::forbidden(&format!("{path}.properties[metadata]"), detail));
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Level {
    /// A node that describes a field.
    Structural,
    /// A node inside allOf, anyOf, oneOf or not: it may only restrict values.
    Restriction,
}

const TYPES: &[&str] = &["array", "boolean", "integer", "number", "object", "string"];

fn check_node(node: &Value, path: &str, level: Level, errors: &mut Vec<FieldError>) {
    let Some(map) = node.as_object() else { return };
    for (field, detail) in [
        ("$ref", "$ref is not supported"),
        ("definitions", "definitions is not supported"),
        ("dependencies", "dependencies is not supported"),
        ("patternProperties", "patternProperties is not supported"),
        ("additionalItems", "additionalItems is not supported"),
        ("id", "id is not supported"),
    ] {
        if map.contains_key(field) {
            errors.push(FieldError::forbidden(&join(path, field), detail));
        }
    }
    if node["uniqueItems"] == true {
        errors.push(FieldError::forbidden(
            &join(path, "uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ));
    }
    if let Some(pattern) = node["pattern"].as_str()
        && let Err(fault) = regex::Regex::new(pattern)
    {
        errors.push(FieldError::invalid(
            &join(path, "pattern"),
            pattern,
            format!("must be a valid regular expression, but isn't: {fault}"),
        ));
    }
    match level {
        Level::Structural => check_structural_node(node, path, errors),
        Level::Restriction => check_restriction(node, path, errors),
    }
    for keyword in ["allOf", "anyOf", "oneOf"] {
        for (position, branch) in node[keyword].as_array().into_iter().flatten().enumerate() {
            check_node(branch, &index(&join(path, keyword), position), Level::Restriction, errors);
        }
    }
    check_node(&node["not"], &join(path, "not"), Level::Restriction, errors);
    for (name, child) in node["properties"].as_object().into_iter().flatten() {
        check_node(child, &format!("{path}.properties[{name}]"), level, errors);
    }
    if node["items"].is_array() {
        errors.push(FieldError::forbidden(
            &join(path, "items"),
            "items must be a schema object and not an array",
        ));
    }
    check_node(&node["items"], &join(path, "items"), level, errors);
    check_node(&node["additionalProperties"], &join(path, "additionalProperties"), level, errors);
}

fn check_structural_node(node: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let free = node["x-kubernetes-preserve-unknown-fields"] == true
        || node["x-kubernetes-int-or-string"] == true;
    let kind = node["type"].as_str().unwrap_or_default();
    if kind.is_empty() && !free {
        errors.push(FieldError::required(
            &join(path, "type"),
            "must not be empty for specified object fields",
        ));
    }
    if !kind.is_empty() && !TYPES.contains(&kind) {
        errors.push(FieldError::unsupported(&join(path, "type"), kind, TYPES));
    }
    if node["x-kubernetes-int-or-string"] == true && !kind.is_empty() {
        errors.push(FieldError::invalid(
            &join(path, "type"),
            kind,
            "must be empty if x-kubernetes-int-or-string is true",
        ));
    }
    if kind == "array" && !node["items"].is_object() {
        errors.push(FieldError::required(&join(path, "items"), "must be specified"));
    }
    let has_properties = node["properties"].as_object().is_some_and(|map| !map.is_empty());
    if has_properties && node["additionalProperties"].is_object() {
        errors.push(FieldError::forbidden(
            &join(path, "additionalProperties"),
            "additionalProperties and properties are mutual exclusive",
        ));
    }
    if node["additionalProperties"] == false {
        errors.push(FieldError::forbidden(
            &join(path, "additionalProperties"),
            "additionalProperties cannot be set to false",
        ));
    }
    check_list_type(node, path, errors);
    if let Some(default) = node.get("default")
        && let Some(schema) = super::Schema::new(node)
    {
        let at = join(path, "default");
        let findings = super::validate::validate(default, schema, "");
        errors.extend(findings.into_iter().map(|error| {
            let field = if error.field == "<nil>" { at.clone() } else { join(&at, &error.field) };
            FieldError { field, ..error }
        }));
    }
}

fn check_list_type(node: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let keys = strings(&node["x-kubernetes-list-map-keys"]);
    let kind = node["x-kubernetes-list-type"].as_str();
    if kind.is_some() && node["type"] != "array" {
        errors.push(FieldError::invalid(
            &join(path, "type"),
            node["type"].clone(),
            "must be array if x-kubernetes-list-type is set",
        ));
    }
    match kind {
        Some("map") => {
            if keys.is_empty() {
                errors.push(FieldError::required(
                    &join(path, "x-kubernetes-list-map-keys"),
                    "must not be empty if x-kubernetes-list-type is map",
                ));
            }
            let items = &node["items"];
            for key in keys {
                if items["properties"][key].is_null() {
                    errors.push(FieldError::invalid(
                        &join(path, "x-kubernetes-list-map-keys"),
                        key,
                        "must be the name of a property in items",
                    ));
                } else if items["properties"][key].get("default").is_none()
                    && !strings(&items["required"]).contains(&key)
                {
                    errors.push(FieldError::required(&format!("{path}.items.properties[{key}].default"), "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"));
                }
            }
        }
        Some("set") if matches!(node["items"]["type"].as_str(), Some("object" | "array")) => {
            let atomic = node["items"]["x-kubernetes-map-type"] == "atomic"
                || node["items"]["x-kubernetes-list-type"] == "atomic";
            if !atomic {
                errors.push(FieldError::invalid(
                    &join(path, "items.x-kubernetes-map-type"),
                    Value::Null,
                    "must be atomic as item of a list with x-kubernetes-list-type=set",
                ));
            }
        }
        Some("set" | "atomic") | None => {}
        Some(other) => errors.push(FieldError::unsupported(
            &join(path, "x-kubernetes-list-type"),
            other,
            &["atomic", "map", "set"],
        )),
    }
    if kind != Some("map") && !node["x-kubernetes-list-map-keys"].is_null() {
        errors.push(FieldError::forbidden(
            &join(path, "x-kubernetes-list-map-keys"),
            "must be set only if x-kubernetes-list-type is map",
        ));
    }
}

/// Restrictions may not say anything that changes pruning, defaults or documentation.
fn check_restriction(node: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for field in [
        "type",
        "default",
        "description",
        "title",
        "nullable",
        "additionalProperties",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-int-or-string",
        "x-kubernetes-validations",
    ] {
        if !node[field].is_null() {
            // "anyOf: [type: integer, type: string]" beside int-or-string is the one exception.
            if field == "type"
                && matches!(node["type"].as_str(), Some("integer" | "string"))
                && node.as_object().is_some_and(|map| map.len() == 1)
            {
                continue;
            }
            errors
                .push(FieldError::forbidden(&join(path, field), "must be empty to be structural"));
        }
    }
}
