//! Validates a value against a schema, with the messages of the API server. Pure; `prune` handles
//! unknown fields.

use std::collections::BTreeSet;

use regex::Regex;
use serde_json::{Map, Value};

use super::{ListKind, Schema, format, json_type};
use crate::field::{Fault, FieldError, index, join};

/// All violations, depth first.
pub fn validate(value: &Value, schema: Schema<'_>, path: &str) -> Vec<FieldError> {
    validate_update(value, None, schema, path)
}

/// The violations in the changed parts of an update; as in Kubernetes 1.30, unchanged parts are not
/// checked.
pub fn validate_update(
    value: &Value,
    old: Option<&Value>,
    schema: Schema<'_>,
    path: &str,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check(value, old, schema, path, &mut errors);
    errors
}

fn check(
    value: &Value,
    old: Option<&Value>,
    schema: Schema<'_>,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    if old == Some(value) {
        return;
    }
    let schema = schema.for_value(value);
    if value.is_null() && schema.flag("nullable") {
        return;
    }
    if !check_type(value, schema, path, errors) {
        return;
    }
    check_enum(value, schema, path, errors);
    match value {
        Value::String(text) => check_string(text, schema, path, errors),
        Value::Number(_) => check_number(value, schema, path, errors),
        Value::Array(items) => check_list(items, old, schema, path, errors),
        Value::Object(map) => check_object(map, old, schema, path, errors),
        Value::Null | Value::Bool(_) => {}
    }
}

/// False when the value has a wrong type; other checks do not apply then.
fn check_type(value: &Value, schema: Schema<'_>, path: &str, errors: &mut Vec<FieldError>) -> bool {
    let actual = json_type(value);
    if schema.is_int_or_string() {
        if matches!(actual, "integer" | "string") {
            return true;
        }
        errors.push(type_error(path, "integer,string", actual));
        return false;
    }
    let Some(wanted) = schema.kind() else { return true };
    let fits = wanted == actual
        || (wanted == "number" && actual == "integer")
        || (wanted == "integer" && value.as_f64().is_some_and(|number| number.fract() == 0.0));
    if !fits {
        errors.push(type_error(path, wanted, actual));
        if wanted == "integer" && actual == "number" {
            errors.push(out_of_format(schema, path));
        }
    }
    fits
}

/// The error for a number outside its format. The API server reports the path in the text only.
fn out_of_format(schema: Schema<'_>, path: &str) -> FieldError {
    let format = match schema.text("format") {
        Some(name) => format!("with format {name}"),
        None => "(default format)".to_owned(),
    };
    let kind = schema.kind().unwrap_or("integer");
    let detail = format!("Checked value must be of type {kind} {format} in {path}");
    FieldError::invalid("", "", detail)
}

fn type_error(path: &str, wanted: &str, actual: &str) -> FieldError {
    let detail = format!("{} must be of type {wanted}: {actual:?}", place(path));
    FieldError::new(Fault::TypeInvalid, path, Some(actual.into()), detail)
}

/// `spec.x in body`, or `` in body`` for the root.
fn place(path: &str) -> String {
    format!("{path} in body")
}

fn check_enum(value: &Value, schema: Schema<'_>, path: &str, errors: &mut Vec<FieldError>) {
    let allowed = schema.list("enum");
    if allowed.is_empty() || allowed.contains(value) {
        return;
    }
    let shown: Vec<String> = allowed
        .iter()
        .map(|item| match item {
            Value::String(text) => format!("{text:?}"),
            other => format!("{:?}", other.to_string()),
        })
        .collect();
    let detail = format!("supported values: {}", shown.join(", "));
    errors.push(FieldError::new(Fault::Unsupported, path, Some(value.clone()), detail));
}

fn check_string(text: &str, schema: Schema<'_>, path: &str, errors: &mut Vec<FieldError>) {
    let length = text.chars().count();
    if let Some(limit) = schema.count("maxLength").filter(|limit| length > *limit) {
        errors.push(FieldError::new(
            Fault::TooLong,
            path,
            None,
            format!("may not be more than {limit} bytes"),
        ));
    }
    if let Some(limit) = schema.count("minLength").filter(|limit| length < *limit) {
        errors.push(FieldError::invalid(
            path,
            text,
            format!("{} should be at least {limit} chars long", place(path)),
        ));
    }
    if let Some(pattern) = schema.text("pattern")
        && Regex::new(pattern).is_ok_and(|regex| !regex.is_match(text))
    {
        errors.push(FieldError::invalid(
            path,
            text,
            format!("{} should match '{pattern}'", place(path)),
        ));
    }
    if let Some(name) = schema.text("format")
        && !format::matches(name, text)
    {
        errors.push(FieldError::new(
            Fault::TypeInvalid,
            path,
            Some(text.into()),
            format!("{} must be of type {name}: {text:?}", place(path)),
        ));
    }
}

fn check_number(value: &Value, schema: Schema<'_>, path: &str, errors: &mut Vec<FieldError>) {
    let number = value.as_f64().unwrap_or_default();
    if let Some(name) = schema.text("format") {
        let fits = match name {
            "int32" => (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&number),
            "int64" => value.is_i64() || value.is_f64(),
            _ => true,
        };
        if !fits {
            errors.push(out_of_format(schema, path));
        }
    }
    let mut refuse = |detail: String| errors.push(FieldError::invalid(path, value.clone(), detail));
    if let Some(limit) = schema.number("maximum").filter(|limit| number > *limit) {
        refuse(format!("{} should be less than or equal to {limit}", place(path)));
    }
    if let Some(limit) = schema.number("minimum").filter(|limit| number < *limit) {
        refuse(format!("{} should be greater than or equal to {limit}", place(path)));
    }
}

fn check_list(
    items: &[Value],
    old: Option<&Value>,
    schema: Schema<'_>,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let count = items.len();
    if let Some(limit) = schema.count("maxItems").filter(|limit| count > *limit) {
        errors.push(FieldError::new(
            Fault::TooMany,
            path,
            Some(count.into()),
            format!("must have at most {limit} items"),
        ));
    }
    if let Some(limit) = schema.count("minItems").filter(|limit| count < *limit) {
        errors.push(FieldError::invalid(
            path,
            count,
            format!("{} should have at least {limit} items", place(path)),
        ));
    }
    if let Some(item_schema) = schema.items() {
        for (position, item) in items.iter().enumerate() {
            let old = old.and_then(|old| counterpart(item, old, schema));
            check(item, old, item_schema, &index(path, position), errors);
        }
    }
    check_identities(items, schema, path, errors);
}

/// Checks that a set or map list has no duplicates.
fn check_identities(items: &[Value], schema: Schema<'_>, path: &str, errors: &mut Vec<FieldError>) {
    let kind = schema.list_kind();
    if kind == ListKind::Atomic {
        return;
    }
    let mut seen = BTreeSet::new();
    for (position, item) in items.iter().enumerate() {
        let identity = match &kind {
            ListKind::Map(keys) => identity_of(item, keys, schema.items()),
            _ => item.clone(),
        };
        if !seen.insert(identity.to_string()) {
            errors.push(FieldError::duplicate(&index(path, position), identity));
        }
    }
}

/// The key fields of a map-list element, with defaults for absent keys.
pub fn identity_of(item: &Value, keys: &[&str], items: Option<Schema<'_>>) -> Value {
    let mut identity = Map::new();
    for key in keys {
        let default = || {
            items
                .and_then(|schema| schema.property(key))
                .and_then(|property| property.get("default"))
        };
        if let Some(value) = item.get(*key).or_else(default) {
            identity.insert((*key).to_owned(), value.clone());
        }
    }
    Value::Object(identity)
}

/// The element of the old list with the same keys.
pub fn counterpart<'a>(item: &Value, old: &'a Value, schema: Schema<'_>) -> Option<&'a Value> {
    let ListKind::Map(keys) = schema.list_kind() else { return None };
    let identity = identity_of(item, &keys, schema.items());
    old.as_array()?.iter().find(|other| identity_of(other, &keys, schema.items()) == identity)
}

fn check_object(
    map: &Map<String, Value>,
    old: Option<&Value>,
    schema: Schema<'_>,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    for name in schema.list("required").iter().filter_map(Value::as_str) {
        if !map.contains_key(name) {
            errors.push(FieldError::required(&join(path, name), ""));
        }
    }
    for (name, child) in map {
        if let Some(child_schema) = schema.field(name) {
            let old = old.filter(|_| !schema.is_atomic_map()).and_then(|old| old.get(name));
            check(child, old, child_schema, &join(path, name), errors);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn messages(schema: &Value, value: &Value) -> Vec<String> {
        validate(value, Schema::new(schema).expect("an object"), "spec")
            .iter()
            .map(FieldError::message)
            .collect()
    }

    #[test]
    fn scalar_violations_have_the_messages_of_the_api_server() {
        let table = [
            (
                json!({"type": "integer"}),
                json!("x"),
                r#"spec: Invalid value: "string": spec in body must be of type integer: "string""#,
            ),
            (
                json!({"type": "string"}),
                json!(1),
                r#"spec: Invalid value: "integer": spec in body must be of type string: "integer""#,
            ),
            (
                json!({"type": "string"}),
                json!(null),
                r#"spec: Invalid value: "null": spec in body must be of type string: "null""#,
            ),
            (
                json!({"type": "string", "enum": ["a", "b"]}),
                json!("c"),
                r#"spec: Unsupported value: "c": supported values: "a", "b""#,
            ),
            (
                json!({"type": "string", "pattern": "^a$"}),
                json!("b"),
                r#"spec: Invalid value: "b": spec in body should match '^a$'"#,
            ),
            (
                json!({"type": "string", "minLength": 1}),
                json!(""),
                r#"spec: Invalid value: "": spec in body should be at least 1 chars long"#,
            ),
            (
                json!({"type": "string", "maxLength": 1}),
                json!("ab"),
                "spec: Too long: may not be more than 1 bytes",
            ),
            (
                json!({"type": "integer", "maximum": 1}),
                json!(2),
                "spec: Invalid value: 2: spec in body should be less than or equal to 1",
            ),
            (
                json!({"type": "integer", "minimum": 1}),
                json!(0),
                "spec: Invalid value: 0: spec in body should be greater than or equal to 1",
            ),
            (
                json!({"type": "string", "format": "date-time"}),
                json!("x"),
                r#"spec: Invalid value: "x": spec in body must be of type date-time: "x""#,
            ),
            (
                json!({"x-kubernetes-int-or-string": true}),
                json!(true),
                r#"spec: Invalid value: "boolean": spec in body must be of type integer,string: "boolean""#,
            ),
        ];
        for (schema, value, expected) in table {
            assert_eq!(messages(&schema, &value), [expected], "{schema}");
        }
    }

    #[test]
    fn int32_has_its_range() {
        let schema = json!({"type": "integer", "format": "int32"});
        assert!(messages(&schema, &json!(2_147_483_647)).is_empty());
        assert_eq!(messages(&schema, &json!(2_147_483_648_i64)).len(), 1);
    }

    #[test]
    fn whole_floats_are_integers_and_integers_are_numbers() {
        assert!(messages(&json!({"type": "integer"}), &json!(3.0)).is_empty());
        assert!(messages(&json!({"type": "number"}), &json!(3)).is_empty());
        assert_eq!(
            messages(&json!({"type": "integer"}), &json!(3.5)),
            [
                r#"spec: Invalid value: "number": spec in body must be of type integer: "number""#,
                r#"<nil>: Invalid value: "": Checked value must be of type integer (default format) in spec"#
            ]
        );
    }

    #[test]
    fn missing_fields_have_their_path() {
        let schema = json!({"type": "object", "required": ["edgeWorker"], "properties": {
            "edgeWorker": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}}});
        assert_eq!(messages(&schema, &json!({})), ["spec.edgeWorker: Required value"]);
        assert_eq!(
            messages(&schema, &json!({"edgeWorker": {}})),
            ["spec.edgeWorker.name: Required value"]
        );
    }

    #[test]
    fn map_lists_and_sets_refuse_duplicates() {
        let map = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k", "p"],
            "items": {"type": "object", "properties": {"k": {"type": "string"}, "p": {"type": "string", "default": "TCP"}}}});
        assert_eq!(
            messages(&map, &json!([{"k": "a"}, {"k": "a", "p": "TCP"}, {"k": "a", "p": "UDP"}])),
            [r#"spec[1]: Duplicate value: {"k":"a","p":"TCP"}"#]
        );
        let set =
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
        assert_eq!(messages(&set, &json!(["a", "b", "a"])), [r#"spec[2]: Duplicate value: "a""#]);
    }

    #[test]
    fn nullable_accepts_null() {
        assert!(messages(&json!({"type": "string", "nullable": true}), &json!(null)).is_empty());
    }
}
