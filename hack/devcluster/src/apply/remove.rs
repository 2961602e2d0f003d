//! Removes the fields that a manager no longer applies and no other manager applies. Pure.

use serde_json::{Map, Value};

use super::managed::{Entry, Operation};
use super::path::{Element, FieldSet};
use super::typed::{MergeKind, element, field_set, merge_kind};
use crate::schema::Schema;

/// The merged object without the fields that only the last apply of this manager has set.
pub fn prune(
    merged: &Value,
    last: &FieldSet,
    mine: &FieldSet,
    others: &[Entry],
    schema: Schema<'_>,
) -> Value {
    let last = with_parents(last, Some(schema));
    let pruned = without(merged, &last, Some(schema)).unwrap_or_else(empty);

    let mut managed = mine.clone();
    for entry in others.iter().filter(|entry| entry.operation == Operation::Apply) {
        managed = managed.union(&entry.set);
    }
    let all = with_parents(&field_set(merged, schema), Some(schema));
    let kept = with_parents(&field_set(&pruned, schema), Some(schema));
    let managed = with_parents(&managed, Some(schema));
    let pruned =
        without(merged, &all.difference(&kept.union(&managed)), Some(schema)).unwrap_or_else(empty);

    // Fields without an owner and fields of updates remain.
    let kept = with_parents(&field_set(&pruned, schema), Some(schema));
    let mut pruned = without(merged, &all.difference(&kept).intersection(&last), Some(schema))
        .unwrap_or_else(empty);
    drop_emptied(&mut pruned, merged);
    pruned
}

/// Removes the nulls that replace emptied objects. Up to this step they keep the parents in the
/// sets of fields.
fn drop_emptied(value: &mut Value, before: &Value) {
    let Some(fields) = value.as_object_mut() else { return };
    fields.retain(|name, child| !child.is_null() || before[name].is_null());
    for (name, child) in fields {
        drop_emptied(child, &before[name]);
    }
}

fn empty() -> Value {
    Value::Object(Map::new())
}

/// Adds the declared fields that are parents of members.
fn with_parents(set: &FieldSet, schema: Option<Schema<'_>>) -> FieldSet {
    let mut result = set.clone();
    for (element, child) in set.children() {
        let (child_schema, declared) = match element.as_field() {
            Some(name) => (
                schema.and_then(|schema| schema.field(name)),
                schema.is_some_and(|schema| schema.property(name).is_some()),
            ),
            None => (schema.and_then(Schema::items), false),
        };
        if declared {
            result.add_member(element.clone());
        }
        result.set_child(element.clone(), with_parents(child, child_schema));
    }
    result
}

/// The value without the paths of the set; none when it is empty then.
fn without(value: &Value, set: &FieldSet, schema: Option<Schema<'_>>) -> Option<Value> {
    match merge_kind(schema, value) {
        MergeKind::Leaf if value.is_object() || value.is_array() => None,
        MergeKind::Leaf => Some(value.clone()),
        MergeKind::Fields(schema) => {
            let mut kept = Map::new();
            for (name, child) in value.as_object()? {
                let element = Element::field(name);
                if set.has(&element) {
                    continue;
                }
                let field = schema.and_then(|schema| schema.field(name));
                match set.under(&element) {
                    Some(below) => kept
                        .insert(name.clone(), without(child, below, field).unwrap_or(Value::Null)),
                    None => kept.insert(name.clone(), child.clone()),
                };
            }
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        MergeKind::Elements(schema) => {
            let mut kept = Vec::new();
            for item in value.as_array()? {
                let Some(element) = element(schema, item) else { continue };
                if set.has(&element) {
                    continue;
                }
                match set.under(&element) {
                    Some(below) => kept.extend(without(item, below, schema.items())),
                    None => kept.push(item.clone()),
                }
            }
            (!kept.is_empty()).then_some(Value::Array(kept))
        }
    }
}
