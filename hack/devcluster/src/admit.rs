//! Converts a client's object into the object to store: unknown fields, defaults and validation.
//! Pure; `prepare` sets the fields of the server.

use serde_json::Value;

use crate::builtin;
use crate::cel;
use crate::field::{Fault, FieldError};
use crate::names::check_metadata;
use crate::object::{self, set_meta};
use crate::resource::Resource;
use crate::schema::{default, prune, validate};
use crate::status::{ApiError, GroupName};

/// The endpoint of a request for an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    Main,
    Status,
    Scale,
}

impl Endpoint {
    pub fn subresource(self) -> &'static str {
        match self {
            Self::Main => "",
            Self::Status => "status",
            Self::Scale => "scale",
        }
    }

    /// Top-level fields that this endpoint does not change.
    pub fn ignored(self, resource: &Resource) -> &'static [&'static str] {
        match self {
            Self::Main if resource.has_status => &["status"],
            Self::Main => &[],
            Self::Status => &["spec", "metadata"],
            Self::Scale => &["status", "metadata"],
        }
    }
}

/// Checks that the body has the kind and version of the path.
pub fn check_kind(resource: &Resource, value: &Value) -> Result<(), ApiError> {
    let text = |field: &str| value[field].as_str().unwrap_or_default();
    let (given, kind) = (text("apiVersion"), text("kind"));
    if kind.is_empty() {
        let body = serde_json::to_string(value).unwrap_or_default();
        return Err(ApiError::bad_request(format!("Object 'Kind' is missing in '{body}'")));
    }
    let expected = resource.api_version();
    if given != expected {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({given}) does not match the expected API version ({expected})"
        )));
    }
    if kind != resource.kind && resource.custom {
        let detail = format!("must be {}", resource.kind);
        let what = GroupName { group: &resource.group, name: kind };
        let error = FieldError::invalid("kind", kind, detail);
        return Err(ApiError::invalid(what, object::name(value), &[error]));
    }
    if kind != resource.kind {
        let version = &resource.version;
        return Err(ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {}: no kind {kind:?} is registered for the resource {:?}",
            resource.kind, resource.plural
        )));
    }
    Ok(())
}

/// Removes unknown fields and sets defaults. Returns the removed fields.
///
/// # Errors
/// A value of a wrong type in a built-in kind or in metadata, which an API server cannot decode.
pub fn decode(resource: &Resource, value: &mut Value) -> Result<Vec<String>, String> {
    if resource.custom {
        if let Some(metadata) = value.get_mut("metadata") {
            builtin::defaults::drop_nulls(metadata);
            drop_empty(metadata);
        }
    } else {
        builtin::defaults::drop_nulls(value);
        if resource.kind == "Secret" {
            builtin::defaults::fold_string_data(value);
        }
    }
    let unknown = prune::prune(value, resource.schema());
    default::apply_defaults(value, resource.schema());
    if !resource.custom {
        builtin::defaults::apply(&resource.plural, value);
        builtin::canonical::canonicalize(value, resource.schema())?;
    }
    let findings = validate::validate(value, resource.schema(), "");
    let undecodable =
        |field: &str| !resource.custom || field == "metadata" || field.starts_with("metadata.");
    if let Some(error) =
        findings.iter().find(|error| error.fault == Fault::TypeInvalid && undecodable(&error.field))
    {
        let wanted = error
            .detail
            .split("must be of type ")
            .nth(1)
            .and_then(|rest| rest.split(':').next())
            .unwrap_or("another type");
        let got = error.value.as_ref().and_then(Value::as_str).unwrap_or("value");
        return Err(format!(
            "json: cannot unmarshal {got} into Go struct field {}.{} of type {wanted}",
            resource.kind, error.field
        ));
    }
    Ok(unknown.iter().map(|path| format!("unknown field {path:?}")).collect())
}

/// Removes empty metadata fields, as the API server's decoder does.
fn drop_empty(metadata: &mut Value) {
    let Some(fields) = metadata.as_object_mut() else { return };
    for name in ["labels", "annotations", "finalizers", "ownerReferences"] {
        let is_empty = fields.get(name).is_some_and(|value| match value {
            Value::Array(items) => items.is_empty(),
            Value::Object(entries) => entries.is_empty(),
            _ => false,
        });
        if is_empty {
            fields.remove(name);
        }
    }
}

/// Validates the object that is about to be stored.
pub fn check(resource: &Resource, value: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    let mut errors = check_metadata(value, resource);
    if resource.custom {
        let findings = validate::validate_update(value, old, resource.schema(), "");
        // `check_metadata` has reported violations of metadata.
        errors.extend(findings.into_iter().filter(|error| !error.field.starts_with("metadata.")));
        errors.extend(check_replicas(resource, value));
        let rules = cel::rules::check(value, old, resource.schema(), &errors);
        errors.extend(rules);
    } else {
        // The generated schemas require status fields; the API server does not.
        let checked = |error: &FieldError| {
            error.fault != Fault::Required || !error.field.starts_with("status")
        };
        let findings = validate::validate(value, resource.schema(), "");
        errors.extend(findings.into_iter().filter(checked));
        errors.extend(builtin::validate::check(&resource.plural, value, old));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(resource.as_kind(), object::name(value), &errors))
}

/// The violation of the number of replicas, which the scale subresource serves as an int32.
fn check_replicas(resource: &Resource, value: &Value) -> Option<FieldError> {
    let path = &resource.scale.as_ref()?.spec_replicas;
    let replicas = object::at_path(value, path)?.as_i64()?;
    let detail = match i32::try_from(replicas) {
        Ok(0..) => return None,
        Err(_) if replicas > 0 => format!("should be less than or equal to {}", i32::MAX),
        _ => "should be a non-negative integer".to_owned(),
    };
    Some(FieldError::invalid(&format!(".{path}"), replicas, detail))
}

/// Whether a replace without resourceVersion is allowed.
pub fn allows_unconditional_update(resource: &Resource) -> bool {
    !resource.custom && !matches!(resource.plural.as_str(), "leases" | "customresourcedefinitions")
}

/// Whether two states of an object are equal except for the times of their managers. An unchanged
/// object is not stored.
pub fn is_unchanged(old: &Value, new: &Value) -> bool {
    let bare = |value: &Value| {
        let mut value = value.clone();
        set_meta(&mut value, "resourceVersion", None);
        for entry in value["metadata"]
            .get_mut("managedFields")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            object::fields(entry).remove("time");
        }
        value
    };
    bare(old) == bare(new)
}
