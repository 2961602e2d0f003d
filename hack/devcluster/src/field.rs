//! Field errors with the texts of the API machinery. Pure.

use serde_json::{Value, json};

/// The type of a field error, which determines its text and the reason of its cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Required,
    NotFound,
    Invalid,
    TypeInvalid,
    Unsupported,
    Duplicate,
    Forbidden,
    TooLong,
    TooMany,
}

impl Fault {
    fn title(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::NotFound => "Not found",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::Unsupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
        }
    }

    fn cause(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::NotFound => "FieldValueNotFound",
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::Unsupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
        }
    }
}

/// A field of a request that is refused, with the reason.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    pub fault: Fault,
    /// A path such as `spec.containers[0].name`; `<nil>` is the whole object.
    pub field: String,
    pub value: Option<Value>,
    pub detail: String,
}

impl FieldError {
    pub fn new(fault: Fault, field: &str, value: Option<Value>, detail: impl Into<String>) -> Self {
        let field = if field.is_empty() { "<nil>" } else { field };
        Self { fault, field: field.to_owned(), value, detail: detail.into() }
    }

    pub fn required(field: &str, detail: &str) -> Self {
        Self::new(Fault::Required, field, None, detail)
    }

    pub fn invalid(field: &str, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(Fault::Invalid, field, Some(value.into()), detail)
    }

    pub fn forbidden(field: &str, detail: &str) -> Self {
        Self::new(Fault::Forbidden, field, None, detail)
    }

    pub fn duplicate(field: &str, value: impl Into<Value>) -> Self {
        Self::new(Fault::Duplicate, field, Some(value.into()), "")
    }

    /// `Unsupported value: "x": supported values: "a", "b"`.
    pub fn unsupported(field: &str, value: impl Into<Value>, supported: &[&str]) -> Self {
        let list: Vec<String> = supported.iter().map(|text| format!("{text:?}")).collect();
        Self::new(
            Fault::Unsupported,
            field,
            Some(value.into()),
            format!("supported values: {}", list.join(", ")),
        )
    }

    fn body(&self) -> String {
        let mut text = self.fault.title().to_owned();
        if let Some(value) = &self.value
            && !matches!(self.fault, Fault::Required | Fault::Forbidden | Fault::TooLong)
        {
            text.push_str(": ");
            text.push_str(&shown(value));
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }

    pub fn message(&self) -> String {
        format!("{}: {}", self.field, self.body())
    }

    /// The entry of `status.details.causes`.
    pub fn cause(&self) -> Value {
        json!({"reason": self.fault.cause(), "message": self.body(), "field": self.field})
    }
}

/// A refused value in a message; objects and lists are JSON, as in newer API servers.
fn shown(value: &Value) -> String {
    value.to_string()
}

/// The path of a field.
pub fn join(parent: &str, child: &str) -> String {
    if parent.is_empty() { child.to_owned() } else { format!("{parent}.{child}") }
}

/// The path of a list element.
pub fn index(parent: &str, position: usize) -> String {
    format!("{parent}[{position}]")
}

/// All messages in one text: several messages are in brackets, without duplicates.
pub fn aggregate(errors: &[FieldError]) -> String {
    let mut messages: Vec<String> = Vec::new();
    for error in errors {
        let message = error.message();
        if !messages.contains(&message) {
            messages.push(message);
        }
    }
    match messages.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// Checks that an update does not change immutable fields.
pub fn immutable(value: &Value, old: &Value, paths: &[&str], errors: &mut Vec<FieldError>) {
    for path in paths {
        let at = |object: &Value| crate::object::at_path(object, path).cloned().unwrap_or_default();
        if at(value) != at(old) {
            errors.push(FieldError::invalid(path, at(value), "field is immutable"));
        }
    }
}

/// Checks that a field is a port.
pub fn check_port(port: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if !port.as_i64().is_some_and(|port| (1..=65535).contains(&port)) {
        errors.push(FieldError::invalid(
            path,
            port.clone(),
            "must be between 1 and 65535, inclusive",
        ));
    }
}

/// Checks that a field, if set, has one of the choices.
pub fn check_choice(
    parent: &Value,
    field: &str,
    path: &str,
    choices: &[&str],
    errors: &mut Vec<FieldError>,
) {
    if let Some(given) = parent[field].as_str().filter(|given| !choices.contains(given)) {
        errors.push(FieldError::unsupported(&join(path, field), given, choices));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_text_of_the_api_server() {
        let table = [
            (FieldError::required("spec.name", ""), "spec.name: Required value"),
            (
                FieldError::invalid("spec.n", 3, "must be odd"),
                "spec.n: Invalid value: 3: must be odd",
            ),
            (
                FieldError::unsupported("spec.m", "c", &["a", "b"]),
                r#"spec.m: Unsupported value: "c": supported values: "a", "b""#,
            ),
            (
                FieldError::duplicate("l[1]", json!({"k": "v"})),
                r#"l[1]: Duplicate value: {"k":"v"}"#,
            ),
            (FieldError::forbidden("metadata.x", "no"), "metadata.x: Forbidden: no"),
            (FieldError::invalid("", Value::Null, "x"), "<nil>: Invalid value: null: x"),
        ];
        for (error, expected) in table {
            assert_eq!(error.message(), expected);
        }
    }

    #[test]
    fn several_messages_are_in_brackets_without_duplicates() {
        let one = FieldError::required("a", "");
        let two = FieldError::required("b", "");
        assert_eq!(aggregate(std::slice::from_ref(&one)), "a: Required value");
        assert_eq!(aggregate(&[one.clone(), two, one]), "[a: Required value, b: Required value]");
    }
}
