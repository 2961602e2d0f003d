//! Validation rules (`x-kubernetes-validations`): reads them from a schema, compiles them, and
//! evaluates them on objects. Pure.
//!
//! `rules` evaluates, `value` converts JSON into values of the language. The language is that of
//! the `cel` crate. The extension libraries of Kubernetes (`isURL`, `quantity` and so on) and the
//! type check of an API server are missing here: `hack/test-apiextensions.sh` checks the rules of
//! our definitions on a real server. `crate::crd` refuses rules whose cost has no bound. A rule that
//! cannot be evaluated refuses the object.

pub mod rules;
mod value;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cel::{Context, Program, Value as CelValue};
use parking_lot::Mutex;
use serde_json::Value;

use crate::field::{Fault, FieldError, index, join};
use crate::schema::Schema;

/// One rule of a schema.
#[derive(Debug, Clone, Copy)]
struct Rule<'a>(&'a Value);

impl<'a> Rule<'a> {
    fn all(schema: Schema<'a>) -> impl Iterator<Item = Rule<'a>> {
        schema.list("x-kubernetes-validations").iter().map(Rule)
    }

    fn text(self, field: &str) -> &'a str {
        self.0[field].as_str().unwrap_or_default().trim()
    }

    /// The rule as error messages show it.
    fn shown(self) -> &'a str {
        if self.text("message").is_empty() { self.text("rule") } else { self.text("message") }
    }

    /// Whether the rule compares the new value with the old one.
    fn is_transition(self) -> bool {
        compile(self.text("rule")).is_ok_and(|program| program.references().has_variable("oldSelf"))
    }
}

/// Checks that every rule in the schema of a definition compiles.
pub fn check_definition(schema: Schema<'_>, path: &str, errors: &mut Vec<FieldError>) {
    for (position, rule) in Rule::all(schema).enumerate() {
        let path = index(&join(path, "x-kubernetes-validations"), position);
        for field in ["rule", "messageExpression"] {
            let text = rule.text(field);
            if text.is_empty() && field == "rule" {
                errors.push(FieldError::required(&join(&path, field), "rule is not specified"));
            } else if !text.is_empty()
                && let Err(fault) = compile(text)
            {
                let detail = format!("compilation failed: {fault}");
                errors.push(FieldError::new(Fault::Invalid, &join(&path, field), None, detail));
            }
        }
    }
    for (name, property) in schema.properties() {
        check_definition(property, &format!("{path}.properties[{name}]"), errors);
    }
    for (name, child) in [("items", schema.items()), ("additionalProperties", schema.additional())]
    {
        if let Some(child) = child {
            check_definition(child, &join(path, name), errors);
        }
    }
}

/// The program of an expression, or its syntax errors. Compiling is slow, so programs are cached by
/// their text.
fn compile(text: &str) -> Result<Arc<Program>, String> {
    static CACHE: LazyLock<Mutex<HashMap<String, Arc<Program>>>> = LazyLock::new(Mutex::default);
    let cache = || CACHE.lock();
    if let Some(program) = cache().get(text) {
        return Ok(Arc::clone(program));
    }
    let program = Arc::new(
        Program::compile(text).map_err(|errors| errors.to_string().replace("\n|", "\n |"))?,
    );
    cache().insert(text.to_owned(), Arc::clone(&program));
    Ok(program)
}

/// Evaluates an expression on a value and, for an update, on the old value.
fn evaluate(text: &str, this: &CelValue, old: Option<&CelValue>) -> Result<CelValue, String> {
    let program = compile(text)?;
    let mut context = Context::default();
    context.add_variable_from_value("self", this.clone());
    if let Some(old) = old {
        context.add_variable_from_value("oldSelf", old.clone());
    }
    program.execute(&context).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn messages(rule: &Value) -> Vec<String> {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "array", "items": {
            "type": "string", "x-kubernetes-validations": [rule]}}}});
        let mut errors = Vec::new();
        check_definition(Schema::new(&schema).expect("an object"), "s", &mut errors);
        errors.iter().map(FieldError::message).collect()
    }

    #[test]
    fn definition_with_rule_that_does_not_compile_is_refused() {
        let place = "s.properties[spec].items.x-kubernetes-validations[0]";
        assert_eq!(messages(&json!({"rule": "self != 'a'"})), [""; 0]);
        assert_eq!(
            messages(&json!({"rule": ""})),
            [format!("{place}.rule: Required value: rule is not specified")]
        );
        for field in ["rule", "messageExpression"] {
            let mut rule = json!({"rule": "true"});
            rule[field] = "self >".into();
            let faults = messages(&rule);
            let expected = format!("{place}.{field}: Invalid value: compilation failed: ERROR:");
            assert!(faults.len() == 1 && faults[0].starts_with(&expected), "{faults:?}");
        }
    }
}
