//! A JSON merge patch that makes one value of another. Pure.

use serde_json::Value;

/// What to merge into `from` so that it becomes `to`: all of `to`, and a null for each field that is
/// only in `from` (one that a patch leaves out stays).
pub fn merge_patch(from: &Value, to: &Value) -> Value {
    let (Value::Object(from), Value::Object(to)) = (from, to) else { return to.clone() };
    let gone = from.keys().filter(|name| !to.contains_key(*name));
    let gone = gone.map(|name| (name.clone(), Value::Null));
    let stays = to.iter().map(|(name, value)| {
        let before = from.get(name).unwrap_or(&Value::Null);
        (name.clone(), merge_patch(before, value))
    });
    Value::Object(stays.chain(gone).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_gone_becomes_null_at_any_depth() {
        let from = json!({"a": 1, "b": {"c": 1, "d": 2}, "e": [{"f": 1}]});
        let to = json!({"b": {"d": 3}, "e": [{}], "g": {"h": 1}});
        let patch = json!({"a": null, "b": {"c": null, "d": 3}, "e": [{}], "g": {"h": 1}});
        assert_eq!(merge_patch(&from, &to), patch);
        assert_eq!(merge_patch(&Value::Null, &to), to);
    }
}
