//! Strategic merge patches of kubectl and Helm for built-in kinds: lists merge by key, directives
//! delete and order. Pure.
//!
//! Directives that replace are refused: nothing of this project sends them.

use serde_json::{Map, Value};

use crate::schema::Schema;

const DIRECTIVE: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";

/// Applies a patch.
///
/// # Errors
/// The defect of the patch.
pub fn merge(current: &Value, patch: &Value, schema: Schema<'_>) -> Result<Value, String> {
    Ok(merge_value(Some(current), patch, Some(schema))?.unwrap_or(Value::Null))
}

/// Returns `None` when the patch deletes the value.
fn merge_value(
    current: Option<&Value>,
    patch: &Value,
    schema: Option<Schema<'_>>,
) -> Result<Option<Value>, String> {
    match patch {
        Value::Null => Ok(None),
        Value::Object(patch) => merge_map(current.and_then(Value::as_object), patch, schema),
        other => Ok(Some(other.clone())),
    }
}

fn merge_map(
    current: Option<&Map<String, Value>>,
    patch: &Map<String, Value>,
    schema: Option<Schema<'_>>,
) -> Result<Option<Value>, String> {
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        Some("delete") => return Ok(None),
        Some("merge") | None => {}
        Some(other) => return Err(format!("devcluster does not support $patch: {other}")),
    }
    let mut merged = current.cloned().unwrap_or_default();
    if let Some(keep) = patch.get(RETAIN) {
        let keep = crate::object::strings(keep);
        merged.retain(|name, _| keep.contains(&name.as_str()));
    }
    for (key, value) in patch {
        if key.starts_with(DELETE_FROM) {
            return Err(format!("devcluster does not support {key}"));
        }
        if key.starts_with('$') {
            continue;
        }
        let field = schema.and_then(|schema| schema.field(key));
        let result = match value {
            Value::Array(items) => {
                merge_list(merged.get(key), items, field, patch.get(&format!("{ORDER}{key}")))?
            }
            other => merge_value(merged.get(key), other, field)?,
        };
        match result {
            Some(value) => merged.insert(key.clone(), value),
            None => merged.remove(key),
        };
    }
    reorder_untouched(&mut merged, patch, schema);
    Ok(Some(Value::Object(merged)))
}

/// Orders the lists whose elements the patch does not change.
fn reorder_untouched(
    merged: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    schema: Option<Schema<'_>>,
) {
    for (key, order) in patch {
        let Some(field) = key.strip_prefix(ORDER) else { continue };
        if patch.contains_key(field) {
            continue;
        }
        let merge_key = schema
            .and_then(|schema| schema.field(field))
            .and_then(|schema| schema.text("x-kubernetes-patch-merge-key"));
        if let (Some(Value::Array(items)), Some(order)) = (merged.get_mut(field), order.as_array())
        {
            sort_by_order(items, order, merge_key);
        }
    }
}

fn merge_list(
    current: Option<&Value>,
    patch: &[Value],
    schema: Option<Schema<'_>>,
    order: Option<&Value>,
) -> Result<Option<Value>, String> {
    let strategy =
        schema.and_then(|schema| schema.text("x-kubernetes-patch-strategy")).unwrap_or_default();
    if !strategy.split(',').any(|part| part == "merge") {
        return Ok(Some(Value::Array(patch.to_vec())));
    }
    let mut merged: Vec<Value> = current.and_then(Value::as_array).cloned().unwrap_or_default();
    let key = schema.and_then(|schema| schema.text("x-kubernetes-patch-merge-key"));
    let item_schema = schema.and_then(Schema::items);
    for item in patch {
        let Some(key) = key else {
            if !merged.contains(item) {
                merged.push(item.clone());
            }
            continue;
        };
        let Some(identity) = item.get(key) else {
            return Err(format!("map: {item} does not contain declared merge key: {key}"));
        };
        let position = merged.iter().position(|known| known.get(key) == Some(identity));
        match (position, item[DIRECTIVE] == "delete") {
            (Some(_), true) => merged.retain(|known| known.get(key) != Some(identity)),
            (None, true) => {}
            (Some(position), false) => {
                if let Some(value) = merge_value(Some(&merged[position]), item, item_schema)? {
                    merged[position] = value;
                }
            }
            (None, false) => merged.extend(merge_value(None, item, item_schema)?),
        }
    }
    if let Some(order) = order.and_then(Value::as_array) {
        sort_by_order(&mut merged, order, key);
    }
    Ok(Some(Value::Array(merged)))
}

/// Sorts the elements that `order` contains; all other elements keep their positions.
fn sort_by_order(items: &mut [Value], order: &[Value], key: Option<&str>) {
    let rank = |item: &Value| {
        order.iter().position(|wanted| match key {
            Some(key) => wanted.get(key) == item.get(key),
            None => wanted == item,
        })
    };
    let mut ordered: Vec<Value> =
        items.iter().filter(|item| rank(item).is_some()).cloned().collect();
    ordered.sort_by_key(|item| rank(item));
    let mut ordered = ordered.into_iter();
    for item in items.iter_mut() {
        if rank(item).is_some()
            && let Some(next) = ordered.next()
        {
            *item = next;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::definitions::definition;
    use serde_json::json;

    fn patched(current: &Value, patch: &Value) -> Value {
        merge(current, patch, definition("io.k8s.api.core.v1.PodSpec").unwrap()).unwrap()
    }

    #[test]
    fn lists_merge_by_key() {
        let current = json!({"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b", "image": "1"}]});
        let patch = json!({"containers": [{"name": "a", "image": "2", "env": [{"name": "Y", "value": "2"}]}, {"name": "c", "image": "3"}]});
        assert_eq!(
            patched(&current, &patch),
            json!({"containers": [
                {"name": "a", "image": "2", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]},
                {"name": "b", "image": "1"}, {"name": "c", "image": "3"}]})
        );
    }

    #[test]
    fn directives_delete_order_and_retain() {
        let current = json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}], "volumes": [{"name": "v", "emptyDir": {}}]});
        let table = [
            (
                json!({"containers": [{"name": "a", "$patch": "delete"}]}),
                json!([{"name": "b"}, {"name": "c"}]),
            ),
            (
                json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}, {"name": "b"}]}),
                json!([{"name": "c"}, {"name": "a"}, {"name": "b"}]),
            ),
        ];
        for (patch, containers) in table {
            assert_eq!(patched(&current, &patch)["containers"], containers, "{patch}");
        }
        let patch = json!({"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]});
        assert_eq!(
            patched(&current, &patch)["volumes"],
            json!([{"name": "v", "hostPath": {"path": "/x"}}])
        );
    }

    #[test]
    fn null_removes_and_lists_without_key_are_replaced() {
        let current = json!({"nodeName": "x", "tolerations": [{"key": "a"}]});
        assert_eq!(
            patched(&current, &json!({"nodeName": null, "tolerations": [{"key": "b"}]})),
            json!({"tolerations": [{"key": "b"}]})
        );
    }

    #[test]
    fn primitive_lists_merge() {
        let schema = definition(crate::definitions::OBJECT_META).unwrap();
        let current = json!({"finalizers": ["a/x", "b/y"]});
        assert_eq!(
            merge(&current, &json!({"finalizers": ["c/z"]}), schema).unwrap(),
            json!({"finalizers": ["a/x", "b/y", "c/z"]})
        );
    }

    #[test]
    fn unsupported_directives_are_refused() {
        let schema = definition("io.k8s.api.core.v1.PodSpec").unwrap();
        for patch in [
            json!({"$patch": "replace"}),
            json!({"$deleteFromPrimitiveList/finalizers": ["a/x"]}),
            json!({"containers": [{"$patch": "replace"}]}),
        ] {
            assert!(merge(&json!({}), &patch, schema).is_err(), "{patch}");
        }
    }
}
