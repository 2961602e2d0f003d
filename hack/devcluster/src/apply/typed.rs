//! Determines the fields that a value sets by its schema, and checks that the value matches the
//! schema. Pure.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::path::{Element, FieldSet};
use crate::schema::validate::identity_of;
use crate::schema::{ListKind, Schema, json_type};

/// The way in which apply merges a value.
pub enum MergeKind<'a> {
    /// The value is replaced as a whole.
    Leaf,
    /// The value is merged field by field.
    Fields(Option<Schema<'a>>),
    /// The value is merged element by element.
    Elements(Schema<'a>),
}

/// How apply merges a value (or the two sides of a merge) under a schema; no schema means a
/// free-form value.
pub fn merge_kind<'a>(schema: Option<Schema<'a>>, sample: &Value) -> MergeKind<'a> {
    let schema = schema.map(|schema| schema.for_value(sample));
    match sample {
        Value::Object(_) if schema.is_some_and(Schema::is_atomic_map) => MergeKind::Leaf,
        Value::Object(_) => MergeKind::Fields(schema),
        Value::Array(_) => match schema {
            Some(schema) if schema.list_kind() != ListKind::Atomic => MergeKind::Elements(schema),
            _ => MergeKind::Leaf,
        },
        _ => MergeKind::Leaf,
    }
}

/// The identity of a list element; none when it lacks a key.
pub fn element(schema: Schema<'_>, item: &Value) -> Option<Element> {
    match schema.list_kind() {
        ListKind::Map(keys) => {
            let identity = identity_of(item, &keys, schema.items());
            let keys_present = identity.as_object().map_or(0, Map::len);
            (keys_present > 0).then(|| Element::key(&identity))
        }
        _ => Some(Element::value(item)),
    }
}

/// The fields that a value sets.
pub fn field_set(value: &Value, schema: Schema<'_>) -> FieldSet {
    let mut set = FieldSet::default();
    collect(value, Some(schema), &mut Vec::new(), &mut set);
    set
}

fn collect(value: &Value, schema: Option<Schema<'_>>, path: &mut Vec<Element>, set: &mut FieldSet) {
    match merge_kind(schema, value) {
        MergeKind::Leaf => set.insert(path),
        MergeKind::Fields(schema) => {
            for (name, child) in value.as_object().into_iter().flatten() {
                path.push(Element::field(name));
                collect(child, schema.and_then(|schema| schema.field(name)), path, set);
                let declared = schema.is_some_and(|schema| schema.property(name).is_some());
                let is_empty = child.is_null() || child.as_object().is_some_and(Map::is_empty);
                if is_empty || !declared {
                    set.insert(path);
                }
                path.pop();
            }
        }
        MergeKind::Elements(schema) => {
            for item in value.as_array().into_iter().flatten() {
                let Some(element) = element(schema, item) else { continue };
                path.push(element);
                collect(item, schema.items(), path, set);
                set.insert(path);
                path.pop();
            }
        }
    }
}

/// Checks that every field is declared and has the declared type.
///
/// # Errors
/// All violations, in the API server's form.
pub fn check(value: &Value, schema: Schema<'_>) -> Result<(), String> {
    let mut faults = Vec::new();
    walk(value, schema, "", &mut faults);
    match faults.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("errors:\n  {}", many.join("\n  "))),
    }
}

fn walk(value: &Value, schema: Schema<'_>, path: &str, faults: &mut Vec<String>) {
    let schema = schema.for_value(value);
    if value.is_null() {
        return;
    }
    if let Some(wanted) = schema.kind()
        && !schema.is_int_or_string()
    {
        let actual = json_type(value);
        let numeric =
            matches!(wanted, "integer" | "number") && matches!(actual, "integer" | "number");
        if wanted != actual && !numeric {
            let wanted = match wanted {
                "integer" | "number" => "numeric (int or float)",
                "object" => "map",
                "array" => "list",
                other => other,
            };
            faults.push(format!("{path}: expected {wanted}, got {}", shown(value)));
            return;
        }
    }
    match value {
        Value::Object(map) => {
            let open = schema.preserves_unknown() || schema.is_open() || schema.kind().is_none();
            for (name, child) in map {
                let child_path = format!("{path}.{name}");
                match schema.field(name) {
                    Some(child_schema) => walk(child, child_schema, &child_path, faults),
                    None if open => {}
                    None => faults.push(format!("{child_path}: field not declared in schema")),
                }
            }
        }
        Value::Array(items) => walk_list(items, schema, path, faults),
        _ => {}
    }
}

fn walk_list(items: &[Value], schema: Schema<'_>, path: &str, faults: &mut Vec<String>) {
    let Some(item_schema) = schema.items() else { return };
    let mut seen = HashSet::new();
    for (position, item) in items.iter().enumerate() {
        if let ListKind::Map(keys) = schema.list_kind() {
            let identity = identity_of(item, &keys, schema.items());
            if keys.iter().all(|key| identity.get(*key).is_none()) {
                let quoted: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
                let keys = quoted.join(" ");
                faults.push(format!("{path}: element {position}: associative list with keys has an element that omits all key fields [{keys}] (and doesn't have default values for any key fields)"));
            }
        }
        if schema.list_kind() != ListKind::Atomic
            && let Some(element) = element(schema, item)
        {
            let mut one = FieldSet::default();
            one.add_member(element);
            let name = one.paths().concat();
            if !seen.insert(name.clone()) {
                faults.push(format!("{path}: duplicate entries for key {name}"));
            }
        }
        walk(item, item_schema, &format!("{path}[{position}]"), faults);
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(_) => "string".to_owned(),
        Value::Bool(_) => "boolean".to_owned(),
        Value::Array(_) => "list".to_owned(),
        Value::Object(_) => "map".to_owned(),
        other => format!("&value.valueUnstructured{{Value:{other}}}"),
    }
}
