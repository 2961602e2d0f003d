//! Finds validation rules whose cost an API server cannot bound. Pure.
//!
//! An API server estimates the cost of each rule and `messageExpression` when a CRD is created, with
//! the largest values that the schema allows, and refuses a CRD with an expensive one. Whether the
//! estimate is below its limit is left to the server, with which `hack/test-apiextensions.sh`
//! compares. This check is simpler and stricter: each string, list and map that an expression reads
//! must have a maximum size, and no expression may build a value of unknown size.

mod tokens;

use std::fmt;

use serde_json::Value;

use self::tokens::{Kind, Token, tokens};

/// Functions that do not read their argument.
const FREE: [&str; 2] = ["has", "size"];

/// Functions that read their arguments, with a result of a fixed size.
const FIXED: [&str; 7] = ["bool", "contains", "double", "endsWith", "int", "matches", "startsWith"];

/// Macros that read their list or map once per item, with a result of a fixed size.
const LOOPS: [&str; 4] = ["all", "exists", "exists_one", "existsOne"];

/// How the name of a field is written in an expression, where it differs.
const ESCAPES: [(&str, &str); 4] =
    [("__dot__", "."), ("__dash__", "-"), ("__slash__", "/"), ("__underscores__", "__")];

/// An expression of a CRD whose cost has no bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unbounded {
    /// The path of the expression in the CRD.
    pub field: String,
    /// The text of the expression.
    pub expression: String,
    /// What has no maximum size.
    pub reason: String,
}

impl fmt::Display for Unbounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, expression, reason } = self;
        write!(f, "{field}: {reason}, so the cost of the expression has no bound: {expression}")
    }
}

/// Returns the expressions of a CustomResourceDefinition whose cost has no bound.
pub fn unbounded(crd: &Value) -> Vec<Unbounded> {
    let mut found = Vec::new();
    for (position, version) in list(&crd["spec"]["versions"]).iter().enumerate() {
        let path = format!("spec.versions[{position}].schema.openAPIV3Schema");
        visit(&version["schema"]["openAPIV3Schema"], &path, None, &mut found);
    }
    found
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// `repeated` is why the schema may occur in any number of places of an object.
fn visit(schema: &Value, path: &str, repeated: Option<&str>, found: &mut Vec<Unbounded>) {
    for (position, rule) in list(&schema["x-kubernetes-validations"]).iter().enumerate() {
        for name in ["rule", "messageExpression"] {
            let Some(expression) = rule[name].as_str().filter(|text| !text.is_empty()) else {
                continue;
            };
            let reasons = Reader::new(expression, schema).reasons();
            for reason in repeated.map(str::to_owned).into_iter().chain(reasons) {
                let field = format!("{path}.x-kubernetes-validations[{position}].{name}");
                found.push(Unbounded { field, expression: expression.to_owned(), reason });
            }
        }
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        visit(property, &format!("{path}.properties[{name}]"), repeated, found);
    }
    for (name, limit) in [("items", "maxItems"), ("additionalProperties", "maxProperties")] {
        if schema[name].is_object() {
            let own = schema[limit].is_null().then(|| format!("{path} has no {limit}"));
            visit(&schema[name], &format!("{path}.{name}"), repeated.or(own.as_deref()), found);
        }
    }
}

/// The maximum that the schema of a string, list or map lacks. The values of an enum, and dates,
/// have a size of their own.
fn missing_limit(schema: &Value) -> Option<&'static str> {
    let is_date = matches!(schema["format"].as_str(), Some("date" | "date-time"));
    let limit = match schema["type"].as_str() {
        Some("string") if schema["enum"].is_array() || is_date => return None,
        Some("string") => "maxLength",
        Some("array") => "maxItems",
        Some("object") if schema["additionalProperties"].is_object() => "maxProperties",
        _ if schema["x-kubernetes-int-or-string"] == true => "maxLength",
        _ => return None,
    };
    schema[limit].is_null().then_some(limit)
}

/// What is known of a value in an expression.
#[derive(Debug, Clone, Copy)]
enum Known<'a> {
    /// Its size is fixed, or that of a literal.
    Fixed,
    /// It is a value of this schema.
    Of(&'a Value),
    /// The result of operators, whose values were read already.
    Combined,
    /// The expression builds it, or takes it from elsewhere.
    Built,
}

/// A part of the expression, with its place in the text.
#[derive(Debug, Clone, Copy)]
struct Part<'a> {
    known: Known<'a>,
    start: usize,
    end: usize,
}

/// Reads an expression once, from left to right.
struct Reader<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    at: usize,
    variables: Vec<(&'a str, Known<'a>)>,
    reasons: Vec<String>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str, schema: &'a Value) -> Self {
        let variables = vec![("self", Known::Of(schema)), ("oldSelf", Known::Of(schema))];
        Self { text, tokens: tokens(text), at: 0, variables, reasons: Vec::new() }
    }

    /// What the expression reads without a maximum size.
    fn reasons(mut self) -> Vec<String> {
        while self.at < self.tokens.len() {
            if let Some(part) = self.expression() {
                self.read(part);
            }
            // A closing bracket without an opening one, in what is no expression.
            self.at += 1;
        }
        self.reasons
    }

    fn kind(&self, at: usize) -> Option<Kind> {
        self.tokens.get(at).map(|token| token.kind)
    }

    fn word(&self, at: usize) -> &'a str {
        let token = self.tokens.get(at).filter(|token| token.kind == Kind::Name);
        token.map_or("", |token| self.text[token.start..token.end].trim_matches('`'))
    }

    /// Reads up to a comma or the end of a bracket. Returns its value, which is not read yet.
    fn expression(&mut self) -> Option<Part<'a>> {
        let mut parts: Option<Part<'a>> = None;
        let mut is_combined = false;
        loop {
            let part = match self.kind(self.at) {
                None | Some(Kind::Close | Kind::Comma) => return parts,
                Some(Kind::Operator | Kind::Dot) => {
                    self.at += 1;
                    is_combined = true;
                    continue;
                }
                Some(_) => self.operand(),
            };
            is_combined |= parts.is_some();
            parts = match parts {
                // After an operator, or the next operand of one.
                _ if is_combined => {
                    let start = parts.map_or(part.start, |before| before.start);
                    parts.into_iter().chain([part]).for_each(|part| self.read(part));
                    Some(Part { known: Known::Combined, start, end: part.end })
                }
                _ => Some(part),
            };
        }
    }

    /// Reads the values in brackets, after the opening one.
    fn arguments(&mut self, is_free: bool) {
        loop {
            if let Some(part) = self.expression()
                && !is_free
            {
                self.read(part);
            }
            let is_last = self.kind(self.at) != Some(Kind::Comma);
            self.at += 1;
            if is_last {
                return;
            }
        }
    }

    fn operand(&mut self) -> Part<'a> {
        let Token { kind, start, .. } = self.tokens[self.at];
        let name = self.word(self.at);
        self.at += 1;
        let known = match kind {
            Kind::Open(b'(') => {
                let inner = self.expression();
                self.at += 1;
                inner.map_or(Known::Fixed, |part| part.known)
            }
            Kind::Open(_) => {
                self.arguments(false);
                Known::Fixed
            }
            Kind::Name if self.kind(self.at) == Some(Kind::Open(b'(')) => self.call(name),
            Kind::Name if matches!(name, "true" | "false" | "null" | "in") => Known::Fixed,
            Kind::Name => {
                let variable = self.variables.iter().rev().find(|(it, _)| *it == name);
                variable.map_or(Known::Built, |(_, known)| *known)
            }
            _ => Known::Fixed,
        };
        self.selections(known, start)
    }

    /// A function, at the bracket of its arguments.
    fn call(&mut self, name: &str) -> Known<'a> {
        self.at += 1;
        let is_free = FREE.contains(&name);
        self.arguments(is_free);
        if is_free || FIXED.contains(&name) { Known::Fixed } else { Known::Built }
    }

    /// The fields, items and methods after a value.
    fn selections(&mut self, mut known: Known<'a>, start: usize) -> Part<'a> {
        loop {
            let name = self.word(self.at + 1);
            let is_call = self.kind(self.at + 2) == Some(Kind::Open(b'('));
            let part = Part { known, start, end: self.tokens[self.last()].end };
            known = match self.kind(self.at) {
                Some(Kind::Open(b'[')) => {
                    self.at += 1;
                    self.arguments(false);
                    item(known)
                }
                Some(Kind::Dot) if is_call => self.method(name, part),
                Some(Kind::Dot) if !name.is_empty() => {
                    self.at += 2;
                    field(known, name)
                }
                _ => return part,
            };
        }
    }

    /// The token before the next one.
    fn last(&self) -> usize {
        (self.at - 1).min(self.tokens.len() - 1)
    }

    /// A method of a value, at its dot.
    fn method(&mut self, name: &str, of: Part<'a>) -> Known<'a> {
        self.at += 2;
        if !FREE.contains(&name) {
            match of.known {
                Known::Combined => self.read(Part { known: Known::Built, ..of }),
                _ => self.read(of),
            }
        }
        let is_loop = LOOPS.contains(&name);
        if !is_loop && !matches!(name, "map" | "filter") {
            return self.call(name);
        }
        self.at += 1;
        let held = self.variables.len();
        self.bind(of.known);
        self.arguments(false);
        self.variables.truncate(held);
        match name {
            _ if is_loop => Known::Fixed,
            "filter" => of.known,
            _ => Known::Built,
        }
    }

    /// The variables of a macro: an item or, of a map, a key. Of two, the second one is the value.
    fn bind(&mut self, of: Known<'a>) {
        let is_map = matches!(of, Known::Of(schema) if schema["items"].is_null());
        let mut known = if is_map { Known::Built } else { item(of) };
        while self.kind(self.at + 1) == Some(Kind::Comma) {
            self.variables.push((self.word(self.at), known));
            known = item(of);
            self.at += 2;
        }
    }

    /// The value is read.
    fn read(&mut self, part: Part<'a>) {
        let limit = match part.known {
            Known::Fixed | Known::Combined => return,
            Known::Of(schema) => missing_limit(schema),
            Known::Built => Some("maximum size"),
        };
        if let Some(limit) = limit {
            let reason = format!("{} has no {limit}", &self.text[part.start..part.end]);
            self.reasons.push(reason);
        }
    }
}

/// A field of an object, or the value of a key of a map.
fn field<'a>(of: Known<'a>, name: &str) -> Known<'a> {
    let Known::Of(schema) = of else { return Known::Built };
    let name = ESCAPES.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to));
    schema["properties"].get(&name).map_or_else(|| item(of), Known::Of)
}

/// An item of a list, or a value of a map.
fn item(of: Known<'_>) -> Known<'_> {
    match of {
        Known::Fixed => Known::Fixed,
        Known::Of(schema) => {
            let items = [&schema["items"], &schema["additionalProperties"]];
            items.into_iter().find(|it| it.is_object()).map_or(Known::Built, Known::Of)
        }
        Known::Combined | Known::Built => Known::Built,
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
            ("self.few__dash__labels.all(k, k != '')", "k has no maximum size"),
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
        let found: Vec<_> = unbounded(&crd).into_iter().map(|it| (it.field, it.reason)).collect();
        let field = "spec.versions[0].schema.openAPIV3Schema.properties[spec]\
                     .x-kubernetes-validations[0].messageExpression";
        let reason = |text| (field.to_owned(), format!("string({text}) has no maximum size"));
        assert_eq!(
            found,
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
        let found = unbounded(&crd(&items));
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].to_string(),
            "spec.versions[0].schema.openAPIV3Schema.items.x-kubernetes-validations[0].rule: \
             spec.versions[0].schema.openAPIV3Schema has no maxItems, so the cost of the expression \
             has no bound: self > 1"
        );
    }
}
