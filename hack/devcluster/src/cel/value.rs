//! JSON as values of the language, by what a schema says of it. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use kube_cel::cel::Value as CelValue;
use kube_cel::cel::objects::{Key, Map};
use serde_json::Value;

use crate::schema::Schema;

/// Numbers are whole ones unless the schema says "number"; fields that no schema describes are not there.
pub fn of(value: &Value, schema: Schema<'_>) -> CelValue {
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(flag) => CelValue::Bool(*flag),
        Value::String(text) => CelValue::String(Arc::new(text.clone())),
        Value::Number(number) => match number.as_i64() {
            Some(whole) if schema.kind() != Some("number") => CelValue::Int(whole),
            _ => CelValue::Float(number.as_f64().unwrap_or_default()),
        },
        Value::Array(items) => {
            let convert = |item| schema.items().map(|items| of(item, items));
            CelValue::List(Arc::new(items.iter().filter_map(convert).collect()))
        }
        Value::Object(fields) => {
            let convert = |(name, value): (&String, &Value)| {
                let key = Key::String(Arc::new(name.clone()));
                Some((key, of(value, schema.field(name)?)))
            };
            let map: HashMap<Key, CelValue> = fields.iter().filter_map(convert).collect();
            CelValue::Map(Map { map: Arc::new(map) })
        }
    }
}
