//! Finds validation rules whose cost an API server cannot bound.
//!
//! An API server estimates the cost of each rule and `messageExpression` when a CRD is created, with
//! the largest values that the schema allows, and refuses a CRD with an expensive one. Whether the
//! estimate is below its limit is left to the server, with which `hack/test-apiextensions.sh`
//! compares. This check is simpler and stricter: each string, list and map that an expression reads
//! must have a maximum size, and no expression may build a value of unknown size.

#![deny(missing_docs)]

mod reader;
mod tokens;

use std::fmt;

use serde_json::Value;

use self::reader::Reader;

/// An expression of a CRD whose cost has no bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unbounded {
    /// The path of the expression in the CRD.
    pub field: String,
    /// The text of the expression.
    pub expression: String,
    /// The part without a bound, and the limit that it lacks.
    pub reason: String,
}

impl fmt::Display for Unbounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, expression, reason } = self;
        write!(f, "{field}: {reason}, so the cost of the expression has no bound: {expression}")
    }
}

/// Returns the expressions of a `CustomResourceDefinition` whose cost has no bound.
pub fn unbounded(crd: &Value) -> Vec<Unbounded> {
    let mut findings = Vec::new();
    for (position, version) in list(&crd["spec"]["versions"]).iter().enumerate() {
        let path = format!("spec.versions[{position}].schema.openAPIV3Schema");
        visit(&version["schema"]["openAPIV3Schema"], &path, None, &mut findings);
    }
    findings
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// `repeated` is why the schema may occur in any number of places of an object.
fn visit(schema: &Value, path: &str, repeated: Option<&str>, findings: &mut Vec<Unbounded>) {
    for (position, rule) in list(&schema["x-kubernetes-validations"]).iter().enumerate() {
        for name in ["rule", "messageExpression"] {
            let Some(expression) = rule[name].as_str().filter(|text| !text.is_empty()) else {
                continue;
            };
            let reasons = Reader::new(expression, schema).reasons();
            for reason in repeated.map(str::to_owned).into_iter().chain(reasons) {
                let field = format!("{path}.x-kubernetes-validations[{position}].{name}");
                findings.push(Unbounded { field, expression: expression.to_owned(), reason });
            }
        }
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        visit(property, &format!("{path}.properties[{name}]"), repeated, findings);
    }
    for (name, limit) in [("items", "maxItems"), ("additionalProperties", "maxProperties")] {
        if schema[name].is_object() {
            let own = schema[limit].is_null().then(|| format!("{path} has no {limit}"));
            visit(&schema[name], &format!("{path}.{name}"), repeated.or(own.as_deref()), findings);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "properties": {
            "n": {"type": "integer"},
            "name": {"type": "string", "maxLength": 9},
            "mode": {"type": "string", "enum": ["a", "b"]},
            "text": {"type": "string"},
            "any": {"x-kubernetes-int-or-string": true},
            "short": {"x-kubernetes-int-or-string": true, "maxLength": 9},
            "limits": {"type": "object", "maxProperties": 9, "additionalProperties":
                {"x-kubernetes-int-or-string": true, "maxLength": 9}},
            "some": {"type": "array", "maxItems": 9, "items": {"type": "object", "properties": {
                "name": {"type": "string", "maxLength": 9}, "text": {"type": "string"}}}},
            "many": {"type": "array", "items": {"type": "string", "maxLength": 9}},
            "few-labels": {"type": "object", "maxProperties": 9,
                "additionalProperties": {"type": "string", "maxLength": 9}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        }})
    }

    fn reasons(expression: &str) -> Vec<String> {
        Reader::new(expression, &schema()).reasons()
    }

    #[test]
    fn expression_over_bounded_values_is_accepted() {
        for expression in [
            "true",
            "has(self.text) && size(self.many) > 0 || self.labels.size() == 0",
            "self.n + 1 > 3 && self.mode != 'a' && self.name.matches('^(a|b), c$')",
            "self.some.all(f, has(f.text) && self.some.exists_one(g, g.name == f.name))",
            "(has(self.n) ? 1 : 0) + (has(self.name) ? 1 : 0) == 1",
            "self.name in ['a', self.name] && !(self.n == oldSelf.n)",
            "'give ' + self.name + ' or ' + self.some[0].name",
            "self.few__dash__labels['a'] == 'b' && self.some.filter(f, f.name == '').size() > 0",
            "double(self.name) < .5",
            "self.few__dash__labels.all(k, k.matches('^a') && self.few__dash__labels[k] != '')",
            "string(self.short).matches('a') && string(self.limits['a']).matches('b')",
        ] {
            assert_eq!(reasons(expression), [""; 0], "{expression}");
        }
    }

    #[test]
    fn expression_over_an_unbounded_value_is_refused() {
        for (expression, expected) in [
            ("self.text == ''", "self.text has no maxLength"),
            ("'a' + oldSelf.text", "oldSelf.text has no maxLength"),
            ("self.name.contains(self.text)", "self.text has no maxLength"),
            ("self.some.all(f, f.text != '')", "f.text has no maxLength"),
            ("self.some[0].text", "self.some[0].text has no maxLength"),
            ("self.many.exists(x, x == 'a')", "self.many has no maxItems"),
            ("'a' in self.many", "self.many has no maxItems"),
            ("self.labels.all(k, true)", "self.labels has no maxProperties"),
            ("string(self.any).matches('a')", "string(self.any) has no maxLength"),
            ("string(self.n) == '1'", "string(self.n) has no maximum size"),
            ("(self.name + 'a').matches('b')", "(self.name + 'a') has no maximum size"),
            (
                "self.some.map(f, f.name).all(x, true)",
                "self.some.map(f, f.name) has no maximum size",
            ),
            ("self.unknown == 1", "self.unknown has no maximum size"),
        ] {
            assert_eq!(reasons(expression), [expected], "{expression}");
        }
    }

    #[test]
    fn text_that_is_no_expression_is_read_to_its_end() {
        for text in
            ["self.", "self.a(", ")", "f(,)", "a.b[", "self.some.all(", ".", "((", "x.all(f"]
        {
            let _ = reasons(text);
        }
    }

    #[test]
    fn message_that_api_servers_refused_is_refused() {
        let message = "'minWorkers ' + string(self.aggregation.minWorkers) + ' is above the number \
                       of training workers (' + string(size(self.trainingWorkers)) + ')'";
        let crd = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {
        "type": "object", "properties": {"spec": {
            "type": "object",
            "properties": {
                "aggregation": {"type": "object", "properties": {
                    "minWorkers": {"type": "integer", "minimum": 1, "maximum": 1024}}},
                "trainingWorkers": {"type": "array", "maxItems": 1024, "items": {"type": "object"}},
            },
            "x-kubernetes-validations": [{"rule": "true", "messageExpression": message}],
        }}}}}]}});
        let findings: Vec<_> =
            unbounded(&crd).into_iter().map(|it| (it.field, it.reason)).collect();
        let field = "spec.versions[0].schema.openAPIV3Schema.properties[spec]\
                     .x-kubernetes-validations[0].messageExpression";
        let reason = |text| (field.to_owned(), format!("string({text}) has no maximum size"));
        assert_eq!(
            findings,
            [reason("self.aggregation.minWorkers"), reason("size(self.trainingWorkers)")]
        );
    }

    #[test]
    fn rule_in_a_list_without_a_maximum_is_refused() {
        let mut items = json!({"type": "array", "maxItems": 9, "items": {
            "type": "integer", "x-kubernetes-validations": [{"rule": "self > 1"}]}});
        let crd =
            |items: &Value| json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": items}}]}});
        assert_eq!(unbounded(&crd(&items)), []);
        items["maxItems"].take();
        let findings = unbounded(&crd(&items));
        assert_eq!(findings.len(), 1);
        assert_eq!(
            findings[0].to_string(),
            "spec.versions[0].schema.openAPIV3Schema.items.x-kubernetes-validations[0].rule: \
             spec.versions[0].schema.openAPIV3Schema has no maxItems, so the cost of the expression \
             has no bound: self > 1"
        );
    }
}
