//! Evaluates the rules of a schema on an object and reports violations with the API server's texts.
//! Pure.
//!
//! As in Kubernetes 1.30 and later, an update is not refused for a violation in a part that it does
//! not change, so a stricter definition does not block older objects. Rules that compare with the
//! old value are evaluated on every update.

use cel::Value as CelValue;
use serde_json::Value;

use super::{Rule, evaluate, value};
use crate::field::{Fault, FieldError, index, join};
use crate::schema::Schema;
use crate::schema::validate::counterpart;

/// The message of the API server when schema violations prevent the evaluation of the rules.
const NOT_CHECKED: &str = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";

/// Schema violations that prevent the evaluation of the rules.
const BLOCKING: [Fault; 5] =
    [Fault::Unsupported, Fault::Required, Fault::TooLong, Fault::TooMany, Fault::TypeInvalid];

/// All rule violations of an object; `schema_violations` are those of its schema.
pub fn check(
    value: &Value,
    old: Option<&Value>,
    schema: Schema<'_>,
    schema_violations: &[FieldError],
) -> Vec<FieldError> {
    if !has_rules(schema) {
        return Vec::new();
    }
    if schema_violations.iter().any(|error| BLOCKING.contains(&error.fault)) {
        return vec![FieldError::invalid("", Value::Null, NOT_CHECKED)];
    }
    let mut errors = Vec::new();
    check_node(&Node { value, old, unchanged: false }, schema, "", &mut errors);
    errors
}

fn has_rules(schema: Schema<'_>) -> bool {
    Rule::all(schema).next().is_some()
        || schema.properties().any(|(_, property)| has_rules(property))
        || schema.items().is_some_and(has_rules)
        || schema.additional().is_some_and(has_rules)
}

/// A value with its old value, where the two can be correlated.
struct Node<'a> {
    value: &'a Value,
    old: Option<&'a Value>,
    /// Whether the value is part of an unchanged value.
    unchanged: bool,
}

fn check_node(node: &Node<'_>, schema: Schema<'_>, path: &str, errors: &mut Vec<FieldError>) {
    if node.value.is_null() {
        return;
    }
    let unchanged = node.unchanged || node.old == Some(node.value);
    check_rules(node, unchanged, schema, path, errors);
    match node.value {
        Value::Object(fields) => {
            let is_atomic = schema.is_atomic_map();
            for (name, value) in fields {
                let Some(field) = schema.field(name) else { continue };
                let old = node.old.filter(|_| !is_atomic).and_then(|old| old.get(name));
                let path = if schema.property(name).is_some() {
                    join(path, name)
                } else {
                    format!("{path}[{name}]")
                };
                check_node(&Node { value, old, unchanged }, field, &path, errors);
            }
        }
        Value::Array(items) => {
            let Some(item) = schema.items() else { return };
            for (position, value) in items.iter().enumerate() {
                let old = node.old.and_then(|old| counterpart(value, old, schema));
                let node = Node { value, old, unchanged };
                check_node(&node, item, &index(path, position), errors);
            }
        }
        _ => {}
    }
}

fn check_rules(
    node: &Node<'_>,
    unchanged: bool,
    schema: Schema<'_>,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let mut rules = Rule::all(schema).peekable();
    if rules.peek().is_none() {
        return;
    }
    let this = value::from_json(node.value, schema);
    let old = node.old.map(|old| value::from_json(old, schema));
    for rule in rules {
        let transition = rule.is_transition();
        if if transition { old.is_none() } else { unchanged } {
            continue;
        }
        let kind = schema.kind().unwrap_or_default();
        match evaluate(rule.text("rule"), &this, old.as_ref()) {
            Ok(CelValue::Bool(true)) => {}
            Ok(_) => {
                let detail = message(rule, &this, old.as_ref());
                errors.push(violation(rule, node.value, detail, path));
            }
            Err(fault) => {
                let detail = format!("{fault} evaluating rule: {}", rule.shown());
                errors.push(FieldError::invalid(path, kind, detail));
            }
        }
    }
}

/// The error of a violated rule. The API server does not show the value of objects and lists.
fn violation(rule: Rule<'_>, value: &Value, detail: String, path: &str) -> FieldError {
    let path = format!("{path}{}", rule.text("fieldPath"));
    let shown = (!value.is_object() && !value.is_array()).then(|| value.clone());
    match rule.text("reason") {
        "FieldValueForbidden" => FieldError::forbidden(&path, &detail),
        "FieldValueRequired" => FieldError::required(&path, &detail),
        "FieldValueDuplicate" => FieldError::new(Fault::Duplicate, &path, shown, ""),
        _ => FieldError::new(Fault::Invalid, &path, shown, detail),
    }
}

fn message(rule: Rule<'_>, this: &CelValue, old: Option<&CelValue>) -> String {
    let expression = rule.text("messageExpression");
    if !expression.is_empty()
        && let Ok(CelValue::String(text)) = evaluate(expression, this, old)
        && !text.trim().is_empty()
        && !text.trim().contains('\n')
    {
        return text.trim().to_owned();
    }
    match rule.text("message") {
        "" => format!("failed rule: {}", rule.text("rule")),
        message => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn messages(schema: &Value, value: &Value, old: Option<&Value>) -> Vec<String> {
        let schema = Schema::new(schema).expect("an object");
        check(value, old, schema, &[]).iter().map(FieldError::message).collect()
    }

    fn with_rule(rule: &Value) -> Value {
        json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-validations": [rule], "properties": {
            "n": {"type": "integer"}, "ratio": {"type": "number"}, "name": {"type": "string", "maxLength": 9}}}}})
    }

    #[test]
    fn violations_have_the_messages_of_the_api_server() {
        for (rule, expected) in [
            (
                json!({"rule": "self.n > 3", "message": "must be above 3"}),
                "spec: Invalid value: must be above 3",
            ),
            (json!({"rule": "self.n > 3"}), "spec: Invalid value: failed rule: self.n > 3"),
            (
                json!({"rule": "self.n > 3", "message": "too small", "fieldPath": ".n"}),
                "spec.n: Invalid value: too small",
            ),
            (
                json!({"rule": "has(self.name)", "message": "name it", "fieldPath": ".name", "reason": "FieldValueRequired"}),
                "spec.name: Required value: name it",
            ),
            (
                json!({"rule": "false", "message": "no", "reason": "FieldValueForbidden"}),
                "spec: Forbidden: no",
            ),
            (
                json!({"rule": "self.n > 3", "messageExpression": "'not above ' + 'three'"}),
                "spec: Invalid value: not above three",
            ),
            (
                json!({"rule": "self.n > 3", "messageExpression": "self.name", "message": "fallback"}),
                "spec: Invalid value: fallback",
            ),
            (
                json!({"rule": "self.name == 'a'", "message": "must be a"}),
                r#"spec: Invalid value: "object": No such key: name evaluating rule: must be a"#,
            ),
        ] {
            let object = json!({"spec": {"n": 3}});
            assert_eq!(messages(&with_rule(&rule), &object, None), [expected], "{rule}");
        }
    }

    #[test]
    fn rules_read_values_with_the_types_of_the_schema() {
        for rule in [
            "self.ratio > 0.5 && self.ratio / 2.0 == 0.5",
            "self.name.startsWith('A') && self.name.contains('B') && self.name.matches('^A')",
            "has(self.n) && self.n % 2 == 1 && size(self.name) == 2",
        ] {
            let object = json!({"spec": {"n": 3, "ratio": 1, "name": "AB"}});
            assert_eq!(
                messages(&with_rule(&json!({"rule": rule})), &object, None),
                Vec::<String>::new()
            );
        }
    }

    #[test]
    fn violations_in_fields_and_elements_have_their_path() {
        let schema = json!({"type": "object", "properties": {
            "text": {"type": "string", "x-kubernetes-validations": [{"rule": "self != 'no'", "message": "must not be no"}]},
            "list": {"type": "array", "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "self % 2 == 0", "message": "must be even"}]}},
            "map": {"type": "object", "additionalProperties": {"type": "boolean", "x-kubernetes-validations": [{"rule": "self", "message": "must be"}]}},
        }});
        let object = json!({"text": "no", "list": [2, 3], "map": {"a": false}});
        assert_eq!(
            messages(&schema, &object, None),
            [
                "list[1]: Invalid value: 3: must be even",
                "map[a]: Invalid value: false: must be",
                r#"text: Invalid value: "no": must not be no"#,
            ]
        );
    }

    #[test]
    fn update_of_an_unrelated_field_ignores_old_violations() {
        let schema = with_rule(&json!({"rule": "self.n > 3", "message": "must be above 3"}));
        let old = json!({"spec": {"n": 1}, "status": {"a": 1}});
        assert_eq!(
            messages(&schema, &json!({"spec": {"n": 1}, "status": {"a": 2}}), Some(&old)),
            Vec::<String>::new()
        );
        assert_eq!(messages(&schema, &json!({"spec": {"n": 2}}), Some(&old)).len(), 1);
    }

    #[test]
    fn transition_rules_apply_to_updates_only() {
        let schema =
            with_rule(&json!({"rule": "self.n >= oldSelf.n", "message": "must not shrink"}));
        assert_eq!(messages(&schema, &json!({"spec": {"n": 1}}), None), Vec::<String>::new());
        let old = json!({"spec": {"n": 2}});
        assert_eq!(messages(&schema, &json!({"spec": {"n": 3}}), Some(&old)), Vec::<String>::new());
        assert_eq!(messages(&schema, &json!({"spec": {"n": 1}}), Some(&old)).len(), 1);
    }

    #[test]
    fn old_elements_of_map_lists_are_found_by_key() {
        let schema = json!({"type": "object", "properties": {"list": {"type": "array", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}},
            "x-kubernetes-validations": [{"rule": "self.v == oldSelf.v", "message": "is fixed"}]}}}});
        let old = json!({"list": [{"k": "a", "v": 1}, {"k": "b", "v": 2}]});
        let new = json!({"list": [{"k": "b", "v": 3}, {"k": "a", "v": 1}, {"k": "c", "v": 4}]});
        assert_eq!(messages(&schema, &new, Some(&old)), ["list[0]: Invalid value: is fixed"]);
    }

    #[test]
    fn schema_violations_prevent_rule_evaluation() {
        let rule = with_rule(&json!({"rule": "self.n > 3"}));
        let schema = Schema::new(&rule).expect("an object");
        let violations = [FieldError::required("spec.name", "")];
        let errors = check(&json!({"spec": {"n": 1}}), None, schema, &violations);
        assert_eq!(errors[0].message(), format!("<nil>: Invalid value: null: {NOT_CHECKED}"));
        let violations = [FieldError::invalid("spec.name", "x", "should match")];
        assert_eq!(check(&json!({"spec": {"n": 1}}), None, schema, &violations).len(), 1);
    }
}
