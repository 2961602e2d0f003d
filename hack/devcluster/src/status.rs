//! The errors of an API server as Status objects: code, reason, message and details. Pure.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::field::{FieldError, aggregate};

pub const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// A refused request, which becomes a Status object.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub code: u16,
    pub reason: Cow<'static, str>,
    pub message: String,
    pub details: Map<String, Value>,
}

/// A plural or kind with its group, such as `jointinferenceservices.neptune.io`.
#[derive(Debug, Clone, Copy)]
pub struct GroupName<'a> {
    pub group: &'a str,
    /// The plural or the kind.
    pub name: &'a str,
}

impl std::fmt::Display for GroupName<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.group.is_empty() {
            f.write_str(self.name)
        } else {
            write!(f, "{}.{}", self.name, self.group)
        }
    }
}

impl ApiError {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), message: message.into(), details: Map::new() }
    }

    fn about(mut self, what: GroupName<'_>, name: &str) -> Self {
        if !name.is_empty() {
            self.details.insert("name".into(), name.into());
        }
        if !what.group.is_empty() {
            self.details.insert("group".into(), what.group.into());
        }
        if !what.name.is_empty() {
            self.details.insert("kind".into(), what.name.into());
        }
        self
    }

    pub fn not_found(what: GroupName<'_>, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{what} {name:?} not found")).about(what, name)
    }

    pub fn already_exists(what: GroupName<'_>, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{what} {name:?} already exists")).about(what, name)
    }

    pub fn conflict(what: GroupName<'_>, name: &str, why: &str) -> Self {
        Self::new(
            409,
            "Conflict",
            format!("Operation cannot be fulfilled on {what} {name:?}: {why}"),
        )
        .about(what, name)
    }

    /// An apply conflicts with another field manager.
    pub fn apply_conflict(message: String, causes: Vec<Value>) -> Self {
        let mut error = Self::new(409, "Conflict", message);
        error.details.insert("causes".into(), causes.into());
        error
    }

    /// An object with violations; `kind` has the kind, not the plural.
    pub fn invalid(kind: GroupName<'_>, name: &str, errors: &[FieldError]) -> Self {
        let message = format!("{kind} {name:?} is invalid: {}", aggregate(errors));
        let mut error = Self::new(422, "Invalid", message).about(kind, name);
        let mut causes: Vec<Value> = Vec::new();
        for cause in errors.iter().map(FieldError::cause) {
            if !causes.contains(&cause) {
                causes.push(cause);
            }
        }
        error.details.insert("causes".into(), causes.into());
        error
    }

    /// A patch whose result cannot be decoded. As in the API server, the message does not name the
    /// object.
    pub fn invalid_patch(result: &Value, why: &str) -> Self {
        Self::invalid(
            GroupName { group: "", name: "" },
            "",
            &[FieldError::invalid("patch", result.to_string(), why)],
        )
    }

    /// A well-formed request that cannot be applied to the object.
    pub fn unprocessable() -> Self {
        Self::new(422, "Invalid", "the server rejected our request due to an error in our request")
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// A forbidden request; without a name for all objects of the kind.
    pub fn forbidden(what: GroupName<'_>, name: &str, why: &str) -> Self {
        let which = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        Self::new(403, "Forbidden", format!("{what}{which} is forbidden: {why}")).about(what, name)
    }

    pub fn method_not_allowed(what: GroupName<'_>) -> Self {
        Self::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
        .about(what, "")
    }

    pub fn unsupported_media(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub fn not_acceptable(accepted: &str) -> Self {
        Self::new(
            406,
            "NotAcceptable",
            format!("only the following media types are accepted: {accepted}"),
        )
    }

    /// A resourceVersion that is no longer in the history.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub fn too_large_version(wanted: u64, current: u64) -> Self {
        let mut error = Self::new(
            504,
            "Timeout",
            format!("Too large resource version: {wanted}, current: {current}"),
        );
        error.details.insert(
            "causes".into(),
            json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]),
        );
        error.details.insert("retryAfterSeconds".into(), 1.into());
        error
    }

    pub fn request_too_large(limit: usize) -> Self {
        Self::new(
            413,
            "RequestEntityTooLarge",
            format!("Request entity too large: limit is {limit}"),
        )
    }

    /// A failure of the server.
    pub fn internal(why: &str) -> Self {
        let error = Self::new(500, "InternalError", format!("Internal error occurred: {why}"));
        error.with_cause(json!({"message": why}))
    }

    /// An error without a reason, such as the untyped errors of an API server.
    pub fn untyped(message: impl Into<String>) -> Self {
        Self::new(500, "", message)
    }

    /// Adds a cause, such as `NamespaceTerminating`.
    #[must_use]
    pub fn with_cause(mut self, cause: Value) -> Self {
        self.details.insert("causes".into(), Value::Array(vec![cause]));
        self
    }

    /// The Status object of the response.
    pub fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.as_ref().into();
        }
        if !self.details.is_empty() {
            status["details"] = Value::Object(self.details.clone());
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JIS: GroupName<'_> = GroupName { group: "neptune.io", name: "jointinferenceservices" };

    #[test]
    fn not_found_names_the_resource_with_its_group() {
        let error = ApiError::not_found(JIS, "x");
        assert_eq!(error.message, r#"jointinferenceservices.neptune.io "x" not found"#);
        assert_eq!(
            error.to_status()["details"],
            json!({"name": "x", "group": "neptune.io", "kind": "jointinferenceservices"})
        );
    }

    #[test]
    fn invalid_lists_its_causes() {
        let kind = GroupName { group: "neptune.io", name: "JointInferenceService" };
        let error =
            ApiError::invalid(kind, "x", &[FieldError::required("spec.edgeWorker.name", "")]);
        assert_eq!(
            error.message,
            r#"JointInferenceService.neptune.io "x" is invalid: spec.edgeWorker.name: Required value"#
        );
        assert_eq!(error.details["causes"][0]["reason"], "FieldValueRequired");
    }
}
