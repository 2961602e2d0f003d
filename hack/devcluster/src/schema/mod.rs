//! A read-only view of an `OpenAPI` schema of a custom or built-in kind. Resolves references.

pub mod default;
pub mod format;
pub mod prune;
pub mod validate;

use serde_json::{Map, Value};

use crate::definitions::definitions;

/// One node of a schema, with references followed.
#[derive(Debug, Clone, Copy)]
pub struct Schema<'a>(&'a Map<String, Value>);

/// How the elements of a list are identified, which determines how patches merge it.
#[derive(Debug, Clone, PartialEq)]
pub enum ListKind<'a> {
    /// The list is one value.
    Atomic,
    /// The elements are the identity.
    Set,
    /// These fields of an element are its identity.
    Map(Vec<&'a str>),
}

impl<'a> Schema<'a> {
    /// Returns `None` for a value that is not an object.
    pub fn new(node: &'a Value) -> Option<Self> {
        let map = node.as_object()?;
        match map.get("$ref").and_then(Value::as_str) {
            Some(reference) => {
                let name = reference.rsplit('/').next().unwrap_or(reference);
                definitions().get(name).and_then(Value::as_object).map(Self)
            }
            None => Some(Self(map)),
        }
    }

    /// For a union of the API machinery such as "schema or boolean": the branch with the type of
    /// the value.
    pub fn for_value(self, value: &Value) -> Self {
        if self.0.contains_key("type") {
            return self;
        }
        let Some(branches) = self.0.get("oneOf").and_then(Value::as_array) else { return self };
        let wanted = json_type(value);
        branches
            .iter()
            .filter_map(Schema::new)
            .find(|branch| branch.kind() == Some(wanted))
            .unwrap_or(self)
    }

    pub fn get(self, keyword: &str) -> Option<&'a Value> {
        self.0.get(keyword)
    }

    pub fn flag(self, keyword: &str) -> bool {
        self.0.get(keyword) == Some(&Value::Bool(true))
    }

    pub fn text(self, keyword: &str) -> Option<&'a str> {
        self.0.get(keyword).and_then(Value::as_str)
    }

    pub fn number(self, keyword: &str) -> Option<f64> {
        self.0.get(keyword).and_then(Value::as_f64)
    }

    pub fn count(self, keyword: &str) -> Option<usize> {
        self.0.get(keyword).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok())
    }

    pub fn list(self, keyword: &str) -> &'a [Value] {
        self.0.get(keyword).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }

    /// The value of the `type` keyword.
    pub fn kind(self) -> Option<&'a str> {
        self.text("type")
    }

    pub fn properties(self) -> impl Iterator<Item = (&'a String, Schema<'a>)> {
        self.0
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .filter_map(|(name, node)| Some((name, Schema::new(node)?)))
    }

    /// The schema of a declared property.
    pub fn property(self, name: &str) -> Option<Schema<'a>> {
        Schema::new(self.0.get("properties")?.get(name)?)
    }

    /// The schema of a field: that of the declared property, or `additionalProperties`.
    pub fn field(self, name: &str) -> Option<Schema<'a>> {
        self.property(name).or_else(|| self.additional())
    }

    pub fn additional(self) -> Option<Schema<'a>> {
        self.0.get("additionalProperties").and_then(Schema::new)
    }

    /// Whether fields outside `properties` may be present.
    pub fn is_open(self) -> bool {
        match self.0.get("additionalProperties") {
            Some(Value::Bool(open)) => *open,
            Some(_) => true,
            None => false,
        }
    }

    pub fn items(self) -> Option<Schema<'a>> {
        self.0.get("items").and_then(Schema::new)
    }

    pub fn preserves_unknown(self) -> bool {
        self.flag("x-kubernetes-preserve-unknown-fields")
    }

    pub fn is_int_or_string(self) -> bool {
        self.flag("x-kubernetes-int-or-string")
    }

    pub fn list_kind(self) -> ListKind<'a> {
        match self.text("x-kubernetes-list-type") {
            Some("set") => ListKind::Set,
            Some("map") => ListKind::Map(
                self.list("x-kubernetes-list-map-keys").iter().filter_map(Value::as_str).collect(),
            ),
            _ => ListKind::Atomic,
        }
    }

    /// Whether server-side apply replaces the object as a whole.
    pub fn is_atomic_map(self) -> bool {
        self.text("x-kubernetes-map-type") == Some("atomic")
    }
}

/// The name of a value's type in error messages.
pub fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
