//! Sets the defaults of a schema, and removes nulls that the schema does not allow. Pure.

use serde_json::{Map, Value};

use super::Schema;

/// Sets the defaults of a value. A default in an absent object has no effect.
pub fn apply_defaults(value: &mut Value, schema: Schema<'_>) {
    let schema = schema.for_value(value);
    match value {
        Value::Object(map) => {
            drop_nulls(map, schema);
            for (name, property) in schema.properties() {
                let Some(default) = property.get("default") else { continue };
                if !map.contains_key(name) {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (name, child) in map.iter_mut() {
                if let Some(child_schema) = schema.field(name) {
                    apply_defaults(child, child_schema);
                }
            }
        }
        Value::Array(items) => {
            if let Some(item_schema) = schema.items() {
                for item in items {
                    apply_defaults(item, item_schema);
                }
            }
        }
        _ => {}
    }
}

/// Removes nulls of fields that are not nullable.
fn drop_nulls(map: &mut Map<String, Value>, schema: Schema<'_>) {
    map.retain(|name, value| {
        !value.is_null() || schema.field(name).is_none_or(|field| field.flag("nullable"))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn defaults_fill_present_objects_only() {
        let schema = json!({"type": "object", "properties": {
            "mode": {"type": "string", "default": "a"},
            "nested": {"type": "object", "properties": {"n": {"type": "integer", "default": 3}}},
            "made": {"type": "object", "default": {}, "properties": {"n": {"type": "integer", "default": 4}}},
            "may": {"type": "string", "nullable": true, "default": "x"},
            "image": {"type": "string"},
        }});
        let mut value = json!({"mode": null, "may": null, "image": null});
        apply_defaults(&mut value, Schema::new(&schema).expect("an object"));
        assert_eq!(value, json!({"mode": "a", "made": {"n": 4}, "may": null}));
    }

    #[test]
    fn list_items_and_map_values_get_defaults() {
        let item =
            json!({"type": "object", "properties": {"p": {"type": "string", "default": "TCP"}}});
        let schema = json!({"type": "object", "properties": {
            "list": {"type": "array", "items": item}, "map": {"type": "object", "additionalProperties": item},
        }});
        let mut value = json!({"list": [{}, {"p": "UDP"}], "map": {"k": {}}});
        apply_defaults(&mut value, Schema::new(&schema).expect("an object"));
        assert_eq!(
            value,
            json!({"list": [{"p": "TCP"}, {"p": "UDP"}], "map": {"k": {"p": "TCP"}}})
        );
    }
}
