//! How `kubectl apply --server-side` takes over what `kubectl apply` without it made: by the annotation that the latter left. Pure.

use serde_json::Value;

use super::compare::compare;
use super::path::FieldSet;
use super::typed::field_set;
use crate::schema::Schema;

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The manager name of kubectl's server-side apply; any other name opts out.
pub const MANAGER: &str = "kubectl";

/// The fields that the last client-side apply set and that still have its values: taking them over is no conflict.
pub fn inherited(live: &Value, schema: Schema<'_>) -> FieldSet {
    let text = live["metadata"]["annotations"][ANNOTATION].as_str();
    let Some(last) = text.and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
        return FieldSet::default();
    };
    let changes = compare(&last, live, schema);
    field_set(&last, schema)
        .difference(&changes.modified)
        .difference(&changes.added)
        .difference(&changes.removed)
}

/// Keeps the annotation in step while an object has one.
pub fn follow(result: &mut Value, config: &Value) {
    let mut bare = config.clone();
    if let Some(annotations) =
        bare.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
    {
        annotations.remove(ANNOTATION);
    }
    if let Some(annotation) =
        result.pointer_mut(&format!("/metadata/annotations/{}", ANNOTATION.replace('/', "~1")))
    {
        *annotation = format!("{bare}\n").into();
    }
}
