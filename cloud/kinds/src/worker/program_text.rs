//! Finds texts with which no program can be started, because they contain a NUL.

use serde::Serialize;
use serde_json::Value;

use crate::{finding::Finding, reason::Reason};

/// The escape sequence with which JSON writes a NUL.
const ESCAPED: &str = "\\u0000";

/// Adds a finding for each text of the spec that contains a NUL: it becomes an argument, a variable
/// or a path of a program sooner or later.
pub fn check(spec: &impl Serialize, findings: &mut Vec<Finding>) {
    let json = serde_json::to_string(spec).expect("a spec that was JSON is JSON");
    // Most specs end here. An escaped backslash before `u0000` is a false alarm.
    if !json.contains(ESCAPED) {
        return;
    }
    let value = serde_json::from_str(&json).expect("it was written as JSON");
    let errors = errors("spec", &value).into_iter();
    findings.extend(errors.map(|error| Finding::new(Reason::TextInvalid, error)));
}

/// An error for each text with a NUL in a value, which is that of the field `root`.
pub fn errors(root: &str, value: &Value) -> Vec<String> {
    let error = |field: String| {
        let field = field.trim_start_matches('.');
        format!("{field} contains a NUL character, with which no program can be started; remove it")
    };
    fields_with_nul(root, value).into_iter().map(error).collect()
}

fn fields_with_nul(root: &str, value: &Value) -> Vec<String> {
    match value {
        Value::String(text) if text.contains('\0') => vec![root.to_owned()],
        Value::Array(list) => {
            let fields = list.iter().enumerate();
            fields
                .flat_map(|(index, it)| fields_with_nul(&format!("{root}[{index}]"), it))
                .collect()
        }
        Value::Object(map) => {
            let fields = map
                .iter()
                .map(|(name, it)| (format!("{root}.{}", name.escape_default()), name, it));
            let fields = fields.flat_map(|(field, name, it)| {
                if name.contains('\0') { vec![field] } else { fields_with_nul(&field, it) }
            });
            fields.collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_text_with_a_nul_is_named_by_its_field() {
        let spec = json!({
            "image": "a:1", "command": ["a", "b\0"], "port": 1, "none": null, "text": "\\u0000",
            "env": [{"name": "A", "value": "\0"}, {"name": "B\0", "value": "b"}],
            "nodeSelector": {"a\0b": "c"},
        });
        let mut findings = Vec::new();
        check(&spec, &mut findings);
        let fields: Vec<_> =
            findings.iter().filter_map(|it| it.message.split_once(" contains")).collect();
        let fields: Vec<_> = fields.into_iter().map(|(field, _)| field).collect();
        let expected = [
            "spec.command[1]",
            "spec.env[0].value",
            "spec.env[1].name",
            "spec.nodeSelector.a\\u{0}b",
        ];
        assert_eq!(fields, expected);
        assert!(findings.iter().all(|it| it.reason == Reason::TextInvalid));
        let mut none = Vec::new();
        check(&json!({"text": "\\u0000", "list": ["\n"]}), &mut none);
        assert_eq!(none, []);
    }
}
