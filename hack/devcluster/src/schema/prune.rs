//! Removes fields that a schema does not declare, as the API server does before it stores an
//! object. Pure.

use serde_json::Value;

use super::Schema;
use crate::field::{index, join};

/// Removes unknown fields and returns their paths, in the order of the object.
pub fn prune(value: &mut Value, schema: Schema<'_>) -> Vec<String> {
    let mut unknown = Vec::new();
    walk(value, schema, "", &mut unknown);
    unknown
}

fn walk(value: &mut Value, schema: Schema<'_>, path: &str, unknown: &mut Vec<String>) {
    let schema = schema.for_value(value);
    match value {
        Value::Object(map) => {
            let keeps = schema.preserves_unknown() || schema.is_open();
            // Only a node that is declared as free-form keeps unknown fields.
            map.retain(|name, child| {
                let child_path = join(path, name);
                if let Some(child_schema) = schema.field(name) {
                    walk(child, child_schema, &child_path, unknown);
                    return true;
                }
                if !keeps {
                    unknown.push(child_path);
                }
                keeps
            });
        }
        Value::Array(items) => {
            let Some(item_schema) = schema.items() else { return };
            for (position, item) in items.iter_mut().enumerate() {
                walk(item, item_schema, &index(path, position), unknown);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pruned(schema: &Value, mut value: Value) -> (Value, Vec<String>) {
        let unknown = prune(&mut value, Schema::new(schema).expect("an object"));
        (value, unknown)
    }

    #[test]
    fn unknown_fields_are_removed_and_returned() {
        let schema = json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "a": {"type": "string"},
                "list": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}}}},
            }},
        }});
        let (value, unknown) = pruned(
            &schema,
            json!({"spec": {"a": "x", "b": 1, "list": [{"k": "y", "z": 0}]}, "extra": {}}),
        );
        assert_eq!(value, json!({"spec": {"a": "x", "list": [{"k": "y"}]}}));
        assert_eq!(unknown, ["extra", "spec.b", "spec.list[0].z"]);
    }

    #[test]
    fn free_form_parts_are_kept() {
        let schema = json!({"type": "object", "properties": {
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                     "properties": {"typed": {"type": "object", "properties": {}}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        }});
        let (value, unknown) = pruned(
            &schema,
            json!({"free": {"x": {"y": 1}, "typed": {"gone": 1}}, "labels": {"a": "b"}}),
        );
        assert_eq!(value, json!({"free": {"x": {"y": 1}, "typed": {}}, "labels": {"a": "b"}}));
        assert_eq!(unknown, ["free.typed.gone"]);
    }
}
