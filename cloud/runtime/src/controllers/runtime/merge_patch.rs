//! Computes the JSON merge patch (RFC 7386) between two values. Pure.

use serde_json::Value;

/// The patch that changes `from` to `to`: all of `to`, and null for each field that is only in
/// `from`, because a merge keeps fields that the patch omits.
pub fn merge_patch(from: &Value, to: &Value) -> Value {
    let (Value::Object(from), Value::Object(to)) = (from, to) else { return to.clone() };
    let removed = from.keys().filter(|name| !to.contains_key(*name));
    let removed = removed.map(|name| (name.clone(), Value::Null));
    let present = to.iter().map(|(name, value)| {
        let before = from.get(name).unwrap_or(&Value::Null);
        (name.clone(), merge_patch(before, value))
    });
    Value::Object(present.chain(removed).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn removed_fields_become_null_at_any_depth() {
        let from = json!({"a": 1, "b": {"c": 1, "d": 2}, "e": [{"f": 1}]});
        let to = json!({"b": {"d": 3}, "e": [{}], "g": {"h": 1}});
        let patch = json!({"a": null, "b": {"c": null, "d": 3}, "e": [{}], "g": {"h": 1}});
        assert_eq!(merge_patch(&from, &to), patch);
        assert_eq!(merge_patch(&Value::Null, &to), to);
    }
}
