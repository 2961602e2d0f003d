//! Converts JSON into values of the rule language, with the types of the schema. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use cel::Value as CelValue;
use cel::objects::{Key, Map};
use serde_json::Value;

use crate::schema::Schema;

/// Numbers are integers unless the schema has `type: number`; fields without a schema are left out.
pub fn from_json(value: &Value, schema: Schema<'_>) -> CelValue {
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(flag) => CelValue::Bool(*flag),
        Value::String(text) => CelValue::String(Arc::new(text.clone())),
        Value::Number(number) => match number.as_i64() {
            Some(whole) if schema.kind() != Some("number") => CelValue::Int(whole),
            _ => CelValue::Float(number.as_f64().unwrap_or_default()),
        },
        Value::Array(items) => {
            let convert = |item| schema.items().map(|items| from_json(item, items));
            CelValue::List(Arc::new(items.iter().filter_map(convert).collect()))
        }
        Value::Object(fields) => {
            let convert = |(name, value): (&String, &Value)| {
                let key = Key::String(Arc::new(name.clone()));
                Some((key, from_json(value, schema.field(name)?)))
            };
            let map: HashMap<Key, CelValue> = fields.iter().filter_map(convert).collect();
            CelValue::Map(Map { map: Arc::new(map) })
        }
    }
}
