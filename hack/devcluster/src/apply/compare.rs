//! Determines the fields that differ between two objects. Pure.

use serde_json::Value;

use super::path::{Element, FieldSet};
use super::typed::{MergeKind, element, merge_kind};
use crate::schema::Schema;

#[derive(Debug, Default, PartialEq)]
pub struct Changes {
    pub added: FieldSet,
    pub modified: FieldSet,
    pub removed: FieldSet,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }
}

pub fn compare(old: &Value, new: &Value, schema: Schema<'_>) -> Changes {
    let mut changes = Changes::default();
    visit(Some(old), Some(new), Some(schema), &mut Vec::new(), &mut changes);
    changes
}

fn visit(
    old: Option<&Value>,
    new: Option<&Value>,
    schema: Option<Schema<'_>>,
    path: &mut Vec<Element>,
    changes: &mut Changes,
) {
    let Some(sample) = new.filter(|new| !new.is_null()).or(old).or(new) else { return };
    if is_blank(old) && is_blank(new) || differ_in_kind(old, new) {
        return leaf(old, new, path, changes);
    }
    match merge_kind(schema, sample) {
        MergeKind::Leaf => return leaf(old, new, path, changes),
        MergeKind::Fields(schema) => {
            let mut names: Vec<&String> = old
                .and_then(Value::as_object)
                .into_iter()
                .flat_map(serde_json::Map::keys)
                .collect();
            names
                .extend(new.and_then(Value::as_object).into_iter().flat_map(serde_json::Map::keys));
            names.sort();
            names.dedup();
            for name in names {
                path.push(Element::field(name));
                let child = |side: Option<&'_ Value>| side.and_then(|side| side.get(name)).cloned();
                let (left, right) = (child(old), child(new));
                visit(
                    left.as_ref(),
                    right.as_ref(),
                    schema.and_then(|schema| schema.field(name)),
                    path,
                    changes,
                );
                path.pop();
            }
        }
        MergeKind::Elements(schema) => visit_elements(old, new, schema, path, changes),
    }
    if old.is_none() {
        changes.added.insert(path);
    } else if new.is_none() {
        changes.removed.insert(path);
    }
}

fn visit_elements(
    old: Option<&Value>,
    new: Option<&Value>,
    schema: Schema<'_>,
    path: &mut Vec<Element>,
    changes: &mut Changes,
) {
    let (left, right) = (indexed(old, schema), indexed(new, schema));
    let mut elements: Vec<&Element> =
        left.iter().chain(&right).map(|(element, _)| element).collect();
    elements.sort();
    elements.dedup();
    let find = |side: &[(Element, Value)], wanted: &Element| {
        side.iter().find(|(element, _)| element == wanted).map(|(_, value)| value.clone())
    };
    for element in elements {
        path.push(element.clone());
        visit(
            find(&left, element).as_ref(),
            find(&right, element).as_ref(),
            schema.items(),
            path,
            changes,
        );
        path.pop();
    }
}

/// Equality of an API server: 0 and 0.0 are equal.
fn equal(old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::Number(left), Value::Number(right)) => {
            left == right || (left.is_f64() || right.is_f64()) && left.as_f64() == right.as_f64()
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(l, r)| equal(l, r))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left.iter().all(|(name, l)| right.get(name).is_some_and(|r| equal(l, r)))
        }
        _ => old == new,
    }
}

fn leaf(old: Option<&Value>, new: Option<&Value>, path: &[Element], changes: &mut Changes) {
    match (old, new) {
        (None, Some(_)) => changes.added.insert(path),
        (Some(_), None) => changes.removed.insert(path),
        (Some(old), Some(new)) if !equal(old, new) => changes.modified.insert(path),
        _ => {}
    }
}

/// Absent, null or empty. Two such values are compared as a whole, so null and empty differ.
fn is_blank(side: Option<&Value>) -> bool {
    match side {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

fn differ_in_kind(old: Option<&Value>, new: Option<&Value>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) if !old.is_null() && !new.is_null() => {
            old.is_object() != new.is_object() || old.is_array() != new.is_array()
        }
        _ => false,
    }
}

/// The elements with their identities; of duplicates the first.
pub fn indexed(list: Option<&Value>, schema: Schema<'_>) -> Vec<(Element, Value)> {
    let mut elements: Vec<(Element, Value)> = Vec::new();
    for item in list.and_then(Value::as_array).into_iter().flatten() {
        if let Some(element) = element(schema, item)
            && !elements.iter().any(|(known, _)| *known == element)
        {
            elements.push((element, item.clone()));
        }
    }
    elements
}
