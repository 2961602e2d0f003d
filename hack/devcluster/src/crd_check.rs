//! Whether the `CustomResourceDefinition` that a user wrote is a valid one: its names, versions, columns and subresources. Pure.

use serde_json::{Value, json};

use crate::cel;
use crate::field::{FieldError, index, join};
use crate::names::is_subdomain;
use crate::object::strings;
use crate::schema::{Schema, structural};
use crate::table::jsonpath::JsonPath;

const LABEL: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";

/// A DNS-1035 label; kinds may have capitals.
fn is_label(name: &str, capitals: bool) -> bool {
    let name = if capitals { name.to_lowercase() } else { name.to_owned() };
    name.len() <= 63
        && is_subdomain(&name)
        && !name.contains('.')
        && name.starts_with(|c: char| c.is_ascii_lowercase())
}

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
    if spec["preserveUnknownFields"] == true {
        errors.push(FieldError::invalid("spec.preserveUnknownFields", true, "must be false"));
    }
    check_names(&spec["names"], &mut errors);
    check_versions(&spec["versions"], &mut errors);
    errors
}

/// Versions in which objects were stored may not be taken away.
pub fn check_stored_versions(definition: &Value) -> Vec<FieldError> {
    let versions = definition["spec"]["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    strings(&definition["status"]["storedVersions"])
        .into_iter()
        .enumerate()
        .filter(|(_, stored)| !versions.iter().any(|version| version["name"] == *stored))
        .map(|(position, stored)| FieldError::invalid(&index("status.storedVersions", position), stored, "missing from spec.versions; use the storage version migrator to migrate stored resources"))
        .collect()
}

fn check_names(names: &Value, errors: &mut Vec<FieldError>) {
    for field in ["plural", "singular", "kind", "listKind"] {
        let name = names[field].as_str().unwrap_or_default();
        let path = format!("spec.names.{field}");
        if name.is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else if matches!(field, "kind" | "listKind") && !is_label(name, true) {
            let detail = format!("may have mixed case, but should otherwise match: {LABEL}");
            errors.push(FieldError::invalid(&path, name, detail));
        } else if matches!(field, "plural" | "singular") && !is_label(name, false) {
            errors.push(FieldError::invalid(&path, name, LABEL));
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
        if !is_label(short, false) {
            errors.push(FieldError::invalid(
                &index("spec.names.shortNames", position),
                short,
                LABEL,
            ));
        }
    }
}

fn check_versions(versions: &Value, errors: &mut Vec<FieldError>) {
    let list = versions.as_array().map(Vec::as_slice).unwrap_or_default();
    if list.is_empty() {
        let none = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid("spec.versions", json!([]), none));
        errors.push(unstored());
        return;
    }
    let storage = list.iter().filter(|version| version["storage"] == true).count();
    if storage != 1 {
        errors.push(FieldError::invalid(
            "spec.versions",
            versions.clone(),
            "must have exactly one version marked as storage version",
        ));
        if storage == 0 {
            errors.push(unstored());
        }
    }
    if !is_label(list[0]["name"].as_str().unwrap_or_default(), false) {
        errors.push(FieldError::invalid("spec.version", list[0]["name"].clone(), LABEL));
    }
    for (position, version) in list.iter().enumerate() {
        let path = index("spec.versions", position);
        let name = version["name"].as_str().unwrap_or_default();
        if !is_label(name, false) {
            errors.push(FieldError::invalid(&join(&path, "name"), name, LABEL));
        }
        if list[..position].iter().any(|other| other["name"] == version["name"]) {
            errors.push(FieldError::invalid(
                "spec.versions",
                versions.clone(),
                "must contain unique version names",
            ));
        }
        // What all versions have alike stands above them for the API server, where it was before there were versions.
        let place = |field: &str, above: &str| {
            let alike = list.iter().all(|other| other[field] == version[field]);
            if alike { format!("spec.{above}") } else { join(&path, field) }
        };
        let schema_path = join(&place("schema", "validation"), "openAPIV3Schema");
        match &version["schema"]["openAPIV3Schema"] {
            Value::Object(_) if position > 0 && !schema_path.starts_with(&path) => {}
            Value::Object(_) => {
                check_schema(&version["schema"]["openAPIV3Schema"], &schema_path, errors);
            }
            _ => {
                let path = join(&path, "schema.openAPIV3Schema");
                errors.push(FieldError::required(&path, ""));
            }
        }
        check_columns(
            &version["additionalPrinterColumns"],
            &place("additionalPrinterColumns", "additionalPrinterColumns"),
            errors,
        );
        let subresources = place("subresources", "subresources");
        check_subresources(&version["subresources"], &subresources, errors);
        let selectable = place("selectableFields", "selectableFields");
        check_selectable(version, &selectable, errors);
    }
}

fn unstored() -> FieldError {
    let detail = "must have at least one stored version";
    FieldError::invalid("status.storedVersions", Value::Null, detail)
}

/// Fields to select by must be in the schema.
fn check_selectable(version: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let schema = Schema::new(&version["schema"]["openAPIV3Schema"]);
    for (position, field) in
        version["selectableFields"].as_array().into_iter().flatten().enumerate()
    {
        let text = field["jsonPath"].as_str().unwrap_or_default();
        let names = text.trim_start_matches('.').split('.');
        let found = schema.and_then(|schema| names.into_iter().try_fold(schema, Schema::field));
        if found.is_none() {
            let detail = "is an invalid path: does not refer to a valid field";
            errors.push(FieldError::invalid(&format!("{path}[{position}].jsonPath"), text, detail));
        }
    }
}

/// The rules can be read only in a schema that is structural.
fn check_schema(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let before = errors.len();
    structural::check(schema, path, errors);
    if errors.len() == before {
        cel::definition::check(schema, path, errors);
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
            "" => errors.push(FieldError::required(&join(&path, "JSONPath"), "")),
            text if !text.starts_with('.') => {
                let detail = "must be a simple json path starting with .";
                errors.push(FieldError::invalid(&join(&path, "JSONPath"), text, detail));
            }
            text => {
                if let Err(fault) = JsonPath::parse(text) {
                    errors.push(FieldError::invalid(&join(&path, "JSONPath"), text, fault));
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
                format!("should be a json path under {}", prefix.trim_end_matches('.')),
            )),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let at = "spec.validation.openAPIV3Schema";
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
