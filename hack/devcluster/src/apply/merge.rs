//! Merges an applied configuration into the live object. Pure.

use std::collections::VecDeque;

use serde_json::{Map, Value};

use super::compare::indexed;
use super::path::Element;
use super::typed::{MergeKind, merge_kind};
use crate::schema::Schema;

pub fn merge(live: &Value, config: &Value, schema: Schema<'_>) -> Value {
    visit(Some(live), Some(config), Some(schema)).unwrap_or_else(|| Value::Object(Map::new()))
}

fn visit(
    live: Option<&Value>,
    config: Option<&Value>,
    schema: Option<Schema<'_>>,
) -> Option<Value> {
    let (Some(left), Some(right)) = (live, config) else { return config.or(live).cloned() };
    match (merge_kind(schema, right), left) {
        (MergeKind::Fields(schema), Value::Object(left)) => {
            let right = right.as_object()?;
            let mut merged = Map::new();
            for (name, value) in left {
                let field = schema.and_then(|schema| schema.field(name));
                if let Some(value) = visit(Some(value), right.get(name), field) {
                    merged.insert(name.clone(), value);
                }
            }
            for (name, value) in right {
                if !left.contains_key(name) {
                    merged.insert(name.clone(), value.clone());
                }
            }
            Some(Value::Object(merged))
        }
        (MergeKind::Elements(schema), Value::Array(_)) => Some(merge_elements(left, right, schema)),
        _ => Some(right.clone()),
    }
}

/// Keeps the order of both lists where they agree; otherwise the order of the configuration.
fn merge_elements(left: &Value, right: &Value, schema: Schema<'_>) -> Value {
    let (left, right) = (indexed(Some(left), schema), indexed(Some(right), schema));
    let find = |side: &[(Element, Value)], wanted: &Element| {
        side.iter().find(|(element, _)| element == wanted).map(|(_, value)| value.clone())
    };
    let in_left = |element: &Element| left.iter().any(|(known, _)| known == element);
    let in_right = |element: &Element| right.iter().any(|(known, _)| known == element);
    let mut shared: VecDeque<&Element> =
        right.iter().map(|(element, _)| element).filter(|element| in_left(element)).collect();
    let mut next_shared = shared.pop_front();
    let (mut l, mut r) = (0, 0);
    let mut merged = Vec::new();
    while l < left.len() || r < right.len() {
        if let (Some((mine, value)), Some((theirs, other))) = (left.get(l), right.get(r)) {
            if mine == theirs {
                merged.extend(visit(Some(value), Some(other), schema.items()));
                (l, r) = (l + 1, r + 1);
                next_shared = shared.pop_front();
                continue;
            }
            if in_right(mine) && next_shared.is_some_and(|next| next != mine) {
                l += 1;
                continue;
            }
        }
        if let Some((mine, value)) = left.get(l)
            && !in_right(mine)
        {
            merged.push(value.clone());
            l += 1;
            continue;
        }
        if let Some((theirs, other)) = right.get(r) {
            merged.extend(visit(find(&left, theirs).as_ref(), Some(other), schema.items()));
            r += 1;
            if next_shared == Some(theirs) {
                next_shared = shared.pop_front();
            }
            continue;
        }
        // Only elements remain that were merged already.
        l += 1;
    }
    Value::Array(merged)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn merged(live: &[&str], config: &[&str]) -> Vec<String> {
        let schema = json!({"type": "object", "properties": {"l": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}}});
        let result =
            merge(&json!({"l": live}), &json!({"l": config}), Schema::new(&schema).unwrap());
        result["l"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item.as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn lists_have_the_order_of_the_configuration() {
        let table: &[(&[&str], &[&str], &[&str])] = &[
            (&["a", "b"], &["b", "c"], &["a", "b", "c"]),
            (&["a", "b"], &["b", "a"], &["b", "a"]),
            (&["a", "x", "b"], &["b", "a"], &["x", "b", "a"]),
            (&[], &["a"], &["a"]),
            (&["a"], &["a"], &["a"]),
        ];
        for (live, config, expected) in table {
            assert_eq!(merged(live, config), *expected, "{live:?} {config:?}");
        }
    }
}
