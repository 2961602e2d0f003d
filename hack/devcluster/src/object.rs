//! Reads and writes the metadata of JSON objects. Pure.

use jiff::Timestamp;
use serde_json::{Map, Value};

/// Namespace and name of an object; the namespace is empty for cluster-scoped objects.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    pub namespace: String,
    pub name: String,
}

impl ObjectKey {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    pub fn from_object(object: &Value) -> Self {
        Self::new(meta_str(object, "namespace"), meta_str(object, "name"))
    }
}

/// A string field of the metadata, or "" when it is absent.
pub fn meta_str<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

pub fn name(object: &Value) -> &str {
    meta_str(object, "name")
}

pub fn uid(object: &Value) -> &str {
    meta_str(object, "uid")
}

pub fn is_deleting(object: &Value) -> bool {
    !meta_str(object, "deletionTimestamp").is_empty()
}

pub fn finalizers(object: &Value) -> Vec<&str> {
    strings(&object["metadata"]["finalizers"])
}

/// The strings of a JSON list; empty for any other value.
pub fn strings(list: &Value) -> Vec<&str> {
    list.as_array()
        .map(|items| items.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default()
}

/// The object's fields. A value that is not an object is replaced by an empty one.
pub fn fields(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    object.as_object_mut().expect("is an object after the check above")
}

/// The metadata, created when it is missing.
pub fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    let entry = fields(object).entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    fields(entry)
}

/// Sets a metadata field, or removes it when `value` is none.
pub fn set_meta(object: &mut Value, field: &str, value: Option<Value>) {
    let metadata = metadata(object);
    match value {
        Some(value) => {
            metadata.insert(field.to_owned(), value);
        }
        None => {
            metadata.remove(field);
        }
    }
}

/// Adds a finalizer unless it exists.
pub fn add_finalizer(object: &mut Value, finalizer: &str) {
    let list = metadata(object).entry("finalizers").or_insert_with(|| Value::Array(Vec::new()));
    if let Some(items) = list.as_array_mut()
        && !items.iter().any(|item| item == finalizer)
    {
        items.push(finalizer.into());
    }
}

/// Removes a finalizer, and the list after its last finalizer.
pub fn remove_finalizer(object: &mut Value, finalizer: &str) {
    let metadata = metadata(object);
    let Some(items) = metadata.get_mut("finalizers").and_then(Value::as_array_mut) else { return };
    items.retain(|item| item != finalizer);
    if items.is_empty() {
        metadata.remove("finalizers");
    }
}

/// The value at a dotted path such as `.spec.replicas`; lists have no paths.
pub fn at_path<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.trim_start_matches('.').split('.').try_fold(object, |value, key| value.get(key))
}

/// The form of times in metadata, with a precision of one second.
pub fn stamp(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
