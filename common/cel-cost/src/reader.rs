//! Reads an expression and finds what of it has no maximum size.

use serde_json::Value;

use super::tokens::{Kind, Token, tokens};

/// Functions that do not read their argument.
const FREE: [&str; 2] = ["has", "size"];

/// Functions that read their arguments, with a result of a fixed size.
const FIXED: [&str; 7] = ["bool", "contains", "double", "endsWith", "int", "matches", "startsWith"];

/// Macros that read their list or map once per item, with a result of a fixed size.
const LOOPS: [&str; 4] = ["all", "exists", "exists_one", "existsOne"];

/// How the name of a field is written in an expression, where it differs.
const ESCAPES: [(&str, &str); 4] =
    [("__dot__", "."), ("__dash__", "-"), ("__slash__", "/"), ("__underscores__", "__")];

/// What is known of a value in an expression.
#[derive(Debug, Clone, Copy)]
enum Known<'a> {
    /// The size of the value is fixed, or that of a literal.
    Fixed,
    /// The value has this schema.
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
pub(super) struct Reader<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    at: usize,
    variables: Vec<(&'a str, Known<'a>)>,
    reasons: Vec<String>,
}

impl<'a> Reader<'a> {
    /// An expression at this schema.
    pub(super) fn new(text: &'a str, schema: &'a Value) -> Self {
        let variables = vec![("self", Known::Of(schema)), ("oldSelf", Known::Of(schema))];
        Self { text, tokens: tokens(text), at: 0, variables, reasons: Vec::new() }
    }

    /// What the expression reads without a maximum size.
    pub(super) fn reasons(mut self) -> Vec<String> {
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
        if name == "string" {
            return self.text_of();
        }
        let is_free = FREE.contains(&name);
        self.arguments(is_free);
        if is_free || FIXED.contains(&name) { Known::Fixed } else { Known::Built }
    }

    /// A value as a text, after the opening bracket. An API server bounds that of a value which may
    /// be a text already.
    fn text_of(&mut self) -> Known<'a> {
        let value = self.expression();
        self.arguments(false);
        match value.map(|part| part.known) {
            Some(Known::Of(schema)) if is_int_or_string(schema) => Known::Of(schema),
            _ => Known::Built,
        }
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
    fn method(&mut self, name: &str, receiver: Part<'a>) -> Known<'a> {
        self.at += 2;
        if !FREE.contains(&name) {
            match receiver.known {
                Known::Combined => self.read(Part { known: Known::Built, ..receiver }),
                _ => self.read(receiver),
            }
        }
        let is_loop = LOOPS.contains(&name);
        if !is_loop && !matches!(name, "map" | "filter") {
            return self.call(name);
        }
        self.at += 1;
        let outer = self.variables.len();
        self.bind(receiver.known);
        self.arguments(false);
        self.variables.truncate(outer);
        match name {
            _ if is_loop => Known::Fixed,
            "filter" => receiver.known,
            _ => Known::Built,
        }
    }

    /// The variables of a macro: an item or, of a map, a key. Of two, the second one is the value.
    fn bind(&mut self, ranged: Known<'a>) {
        let is_map = matches!(ranged, Known::Of(schema) if schema["items"].is_null());
        // An API server assumes that keys of maps are short.
        let mut known = if is_map { Known::Fixed } else { item(ranged) };
        while self.kind(self.at + 1) == Some(Kind::Comma) {
            self.variables.push((self.word(self.at), known));
            known = item(ranged);
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
fn field<'a>(parent: Known<'a>, name: &str) -> Known<'a> {
    let Known::Of(schema) = parent else { return Known::Built };
    let name = ESCAPES.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to));
    schema["properties"].get(&name).map_or_else(|| item(parent), Known::Of)
}

/// An item of a list, or a value of a map.
fn item(parent: Known<'_>) -> Known<'_> {
    match parent {
        Known::Fixed => Known::Fixed,
        Known::Of(schema) => {
            let items = [&schema["items"], &schema["additionalProperties"]];
            items.into_iter().find(|it| it.is_object()).map_or(Known::Built, Known::Of)
        }
        Known::Combined | Known::Built => Known::Built,
    }
}

fn is_int_or_string(schema: &Value) -> bool {
    schema["x-kubernetes-int-or-string"] == true
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
        _ if is_int_or_string(schema) => "maxLength",
        _ => return None,
    };
    schema[limit].is_null().then_some(limit)
}
