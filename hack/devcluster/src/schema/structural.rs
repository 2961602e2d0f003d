//! Whether the `CustomResourceDefinition` that a user wrote is a valid one: its names, versions, and structural schemas. Pure.

use serde_json::Value;

use crate::field::{FieldError, index, join};
use crate::names::is_subdomain;
use crate::object::strings;
use crate::table::jsonpath::JsonPath;

/// All findings on `spec` of a definition.
pub fn check_definition(definition: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    let name = text(&definition["metadata"]["name"]);
    if name != format!("{plural}.{group}") {
        errors.push(FieldError::invalid(
            "metadata.name",
            name.as_str(),
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else if !is_subdomain(&group) {
        errors.push(FieldError::invalid("spec.group", group.as_str(), "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"));
    } else if group.split('.').count() < 2 {
        errors.push(FieldError::invalid(
            "spec.group",
            group.as_str(),
            "should be a domain with at least one dot",
        ));
    }
    if (group.ends_with(".k8s.io") || group.ends_with(".kubernetes.io"))
        && definition["metadata"]["annotations"]["api-approved.kubernetes.io"].is_null()
    {
        errors.push(FieldError::required("metadata.annotations[api-approved.kubernetes.io]", "protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111"));
    }
    match spec["scope"].as_str().unwrap_or_default() {
        "" => errors.push(FieldError::required("spec.scope", "")),
        "Namespaced" | "Cluster" => {}
        other => {
            errors.push(FieldError::unsupported("spec.scope", other, &["Cluster", "Namespaced"]));
        }
    }
    check_names(&spec["names"], &mut errors);
    check_versions(&spec["versions"], &mut errors);
    errors
}

fn check_names(names: &Value, errors: &mut Vec<FieldError>) {
    for field in ["plural", "singular", "kind", "listKind"] {
        let name = names[field].as_str().unwrap_or_default();
        let path = format!("spec.names.{field}");
        if name.is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else if !is_subdomain(&name.to_lowercase()) || name.contains('.') {
            errors.push(FieldError::invalid(&path, name, "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"));
        } else if matches!(field, "plural" | "singular") && name != name.to_lowercase() {
            errors.push(FieldError::invalid(&path, name, "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"));
        }
    }
    if names["kind"].is_string() && names["kind"] == names["listKind"] {
        errors.push(FieldError::invalid(
            "spec.names.listKind",
            names["listKind"].clone(),
            "kind and listKind may not be the same",
        ));
    }
    for (position, short) in strings(&names["shortNames"]).into_iter().enumerate() {
        if !is_subdomain(short) || short.contains('.') {
            errors.push(FieldError::invalid(
                &index("spec.names.shortNames", position),
                short,
                "a DNS-1035 label must consist of lower case alphanumeric characters or '-'",
            ));
        }
    }
}

fn check_versions(versions: &Value, errors: &mut Vec<FieldError>) {
    let list = versions.as_array().map(Vec::as_slice).unwrap_or_default();
    if list.is_empty() {
        errors.push(FieldError::required("spec.versions", ""));
        return;
    }
    let storage = list.iter().filter(|version| version["storage"] == true).count();
    if storage != 1 {
        errors.push(FieldError::invalid(
            "spec.versions",
            versions.clone(),
            "must have exactly one version marked as storage version",
        ));
    }
    for (position, version) in list.iter().enumerate() {
        let path = index("spec.versions", position);
        let name = version["name"].as_str().unwrap_or_default();
        if name.is_empty() || name.contains('.') || !is_subdomain(name) {
            errors.push(FieldError::invalid(&join(&path, "name"), name, "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"));
        }
        if list[..position].iter().any(|other| other["name"] == version["name"]) {
            errors.push(FieldError::invalid(
                "spec.versions",
                versions.clone(),
                "must contain unique version names",
            ));
        }
        let schema_path = join(&path, "schema.openAPIV3Schema");
        match &version["schema"]["openAPIV3Schema"] {
            Value::Object(_) => {
                check_structure(&version["schema"]["openAPIV3Schema"], &schema_path, errors);
            }
            _ => errors.push(FieldError::required(&schema_path, "schemas are required")),
        }
        check_columns(
            &version["additionalPrinterColumns"],
            &join(&path, "additionalPrinterColumns"),
            errors,
        );
        check_subresources(&version["subresources"], &join(&path, "subresources"), errors);
    }
}

fn check_columns(columns: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (position, column) in columns.as_array().into_iter().flatten().enumerate() {
        let path = index(path, position);
        if column["name"].as_str().unwrap_or_default().is_empty() {
            errors.push(FieldError::required(&join(&path, "name"), ""));
        }
        match column["type"].as_str().unwrap_or_default() {
            "" => errors.push(FieldError::required(
                &join(&path, "type"),
                "must be one of integer, number, string, boolean, date",
            )),
            "integer" | "number" | "string" | "boolean" | "date" => {}
            other => errors.push(FieldError::invalid(
                &join(&path, "type"),
                other,
                "must be one of boolean,date,integer,number,string",
            )),
        }
        match column["jsonPath"].as_str().unwrap_or_default() {
            "" => errors.push(FieldError::required(&join(&path, "jsonPath"), "")),
            text => {
                if let Err(fault) = JsonPath::parse(text) {
                    errors.push(FieldError::invalid(&join(&path, "jsonPath"), text, fault));
                }
            }
        }
    }
}

fn check_subresources(subresources: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let scale = &subresources["scale"];
    if !scale.is_object() {
        return;
    }
    for (field, prefix) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
        let path = join(path, &format!("scale.{field}"));
        match scale[field].as_str().unwrap_or_default() {
            "" => errors.push(FieldError::required(&path, "")),
            text if !text.starts_with(prefix) => errors.push(FieldError::invalid(
                &path,
                text,
                format!("should be a json path under {prefix}"),
            )),
            _ => {}
        }
    }
}

/// The root of a schema has rules of its own.
fn check_structure(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
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
    check_node(schema, path, Level::Structural, errors);
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
        errors.extend(super::validate::validate(default, schema, &join(path, "default")));
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn definition(schema: &Value) -> Value {
        json!({"metadata": {"name": "things.g.io"}, "spec": {"group": "g.io", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}})
    }

    fn faults(definition: &Value) -> Vec<String> {
        check_definition(definition).iter().map(FieldError::message).collect()
    }

    #[test]
    fn a_plain_definition_is_fine() {
        assert_eq!(faults(&definition(&json!({"type": "object"}))), Vec::<String>::new());
    }

    #[test]
    fn schemas_must_be_structural() {
        let at = "spec.versions[0].schema.openAPIV3Schema";
        let table = [
            (
                json!({"type": "object", "properties": {"a": {}}}),
                format!(
                    "{at}.properties[a].type: Required value: must not be empty for specified object fields"
                ),
            ),
            (
                json!({"properties": {}}),
                format!("{at}.type: Required value: must not be empty at the root"),
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "array"}}}),
                format!("{at}.properties[a].items: Required value: must be specified"),
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "text"}}}),
                format!(
                    r#"{at}.properties[a].type: Unsupported value: "text": supported values: "array", "boolean", "integer", "number", "object", "string""#
                ),
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "string", "$ref": "x"}}}),
                format!("{at}.properties[a].$ref: Forbidden: $ref is not supported"),
            ),
        ];
        for (schema, expected) in table {
            let found = faults(&definition(&schema));
            assert!(found.contains(&expected), "{found:?}");
        }
    }

    #[test]
    fn unknown_formats_are_fine() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string", "format": "datatime"}}});
        assert!(faults(&definition(&schema)).is_empty());
    }

    #[test]
    fn names_must_fit_the_group() {
        let mut wrong = definition(&json!({"type": "object"}));
        wrong["metadata"]["name"] = "x".into();
        assert_eq!(
            faults(&wrong),
            [r#"metadata.name: Invalid value: "x": must be spec.names.plural+"."+spec.group"#]
        );
    }
}
