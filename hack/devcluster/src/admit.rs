//! Turns what a client sent into what is stored: decoding rules, defaults, validation, and the fields that only the server sets. Pure.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::builtin;
use crate::field::Fault;
use crate::names::check_metadata;
use crate::object::{self, meta_str, set_meta};
use crate::resource::Resource;
use crate::schema::{default, prune, validate};
use crate::status::{ApiError, MODIFIED};

/// Which endpoint of an object is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    Main,
    Status,
}

impl Endpoint {
    pub fn subresource(self) -> &'static str {
        match self {
            Self::Main => "",
            Self::Status => "status",
        }
    }

    /// Top-level fields that this endpoint never writes.
    pub fn ignored(self, resource: &Resource) -> &'static [&'static str] {
        match self {
            Self::Main if resource.has_status => &["status"],
            Self::Main => &[],
            Self::Status => &["spec", "metadata"],
        }
    }
}

/// The second-precision time that metadata carries.
pub fn stamp(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The body must be of the kind and version that the path names.
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
    if kind != resource.kind {
        let version = &resource.version;
        return Err(ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {}: no kind {kind:?} is registered for the resource {:?}",
            resource.kind, resource.plural
        )));
    }
    Ok(())
}

/// Drops what the schema does not know and fills defaults; returns the unknown fields.
/// Values of a wrong type in built-in kinds and in metadata cannot be decoded at all.
pub fn decode(resource: &Resource, value: &mut Value) -> Result<Vec<String>, String> {
    if resource.custom {
        if let Some(metadata) = value.get_mut("metadata") {
            builtin::defaults::drop_nulls(metadata);
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

/// Everything that must hold for the object that is about to be stored.
pub fn check(resource: &Resource, value: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    let mut errors = check_metadata(value, resource);
    errors.extend(validate::validate(value, resource.schema(), ""));
    if !resource.custom {
        errors.extend(builtin::validate::check(&resource.plural, value, old));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(resource.as_kind(), object::name(value), &errors))
}

/// Server-set fields of a new object. `suffix` ends a generated name.
pub fn prepare_create(
    resource: &Resource,
    value: &mut Value,
    namespace: &str,
    now: Timestamp,
    suffix: &str,
    uid: &str,
) -> Result<(), ApiError> {
    let given = meta_str(value, "namespace");
    if !given.is_empty() && given != namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if !matches!(meta_str(value, "resourceVersion"), "" | "0") {
        return Err(ApiError::untyped(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    let base = meta_str(value, "generateName").to_owned();
    if object::name(value).is_empty() && !base.is_empty() {
        let base: String = base.chars().take(58).collect();
        set_meta(value, "name", Some(format!("{base}{suffix}").into()));
    }
    for field in ["resourceVersion", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"]
    {
        set_meta(value, field, None);
    }
    set_meta(value, "namespace", resource.namespaced.then(|| namespace.into()));
    set_meta(value, "uid", Some(uid.into()));
    set_meta(value, "creationTimestamp", Some(stamp(now).into()));
    set_meta(value, "generation", resource.counts_generation.then(|| 1.into()));
    if resource.has_status && !resource.status_on_create {
        object::fields(value).remove("status");
    }
    if !resource.custom {
        initial_status(&resource.plural, value);
    }
    Ok(())
}

fn initial_status(plural: &str, value: &mut Value) {
    match plural {
        "namespaces" => value["status"] = json!({"phase": "Active"}),
        "pods" => value["status"] = json!({"phase": "Pending", "qosClass": "BestEffort"}),
        "services" => value["status"] = json!({"loadBalancer": {}}),
        _ => {}
    }
}

/// Server-set and protected fields of a replaced object.
pub fn prepare_update(
    resource: &Resource,
    endpoint: Endpoint,
    old: &Value,
    value: &mut Value,
) -> Result<(), ApiError> {
    check_identity(resource, old, value)?;
    if endpoint == Endpoint::Status {
        let status = value.get("status").cloned();
        let owners = value["metadata"]["managedFields"].clone();
        *value = old.clone();
        match status {
            Some(status) => value["status"] = status,
            None => {
                object::fields(value).remove("status");
            }
        }
        set_meta(value, "managedFields", (!owners.is_null()).then_some(owners));
        return Ok(());
    }
    for field in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "selfLink",
        "generateName",
        "namespace",
        "name",
    ] {
        let kept = old["metadata"].get(field).cloned();
        set_meta(value, field, kept);
    }
    if resource.has_status {
        match old.get("status").cloned() {
            Some(status) => value["status"] = status,
            None => {
                object::fields(value).remove("status");
            }
        }
    }
    check_new_finalizers(resource, old, value)?;
    if !resource.custom
        && resource.plural == "services"
        && value["spec"]["clusterIP"].as_str().unwrap_or_default().is_empty()
    {
        // Allocated once and kept, also when a client does not send it back.
        for field in ["clusterIP", "clusterIPs"] {
            if let Some(address) = old["spec"].get(field).cloned() {
                value["spec"][field] = address;
            }
        }
    }
    if resource.counts_generation && wanted(old, resource) != wanted(value, resource) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or_default() + 1;
        set_meta(value, "generation", Some(generation.into()));
    }
    Ok(())
}

/// The part of an object whose changes the generation counts.
fn wanted(value: &Value, resource: &Resource) -> Value {
    let mut wanted = value.clone();
    let annotations = wanted["metadata"]["annotations"].take();
    let fields = object::fields(&mut wanted);
    if !resource.custom && resource.plural == "deployments" {
        // Deployments count these too, because their controller hands them down.
        fields.insert("annotations".into(), annotations);
    }
    for field in ["metadata", "apiVersion", "kind"] {
        fields.remove(field);
    }
    if resource.has_status {
        fields.remove("status");
    }
    wanted
}

fn check_identity(resource: &Resource, old: &Value, value: &Value) -> Result<(), ApiError> {
    let name = object::name(old);
    let (sent_name, sent_namespace) = (object::name(value), meta_str(value, "namespace"));
    if sent_name != name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({sent_name}) does not match the name on the URL ({name})"
        )));
    }
    if !sent_namespace.is_empty() && sent_namespace != meta_str(old, "namespace") {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let (uid, sent_uid) = (object::uid(old), object::uid(value));
    if !sent_uid.is_empty() && sent_uid != uid {
        let why = format!(
            "Precondition failed: UID in precondition: {sent_uid}, UID in object meta: {uid}"
        );
        return Err(ApiError::conflict(resource.as_plural(), name, &why));
    }
    match meta_str(value, "resourceVersion") {
        "" | "0" => Ok(()),
        sent if sent.parse::<u64>().is_err() => {
            let error = crate::field::FieldError::invalid(
                "metadata.resourceVersion",
                sent,
                "strconv.ParseUint: parsing: invalid syntax",
            );
            Err(ApiError::invalid(resource.as_kind(), name, &[error]))
        }
        sent if sent != meta_str(old, "resourceVersion") => {
            Err(ApiError::conflict(resource.as_plural(), name, MODIFIED))
        }
        _ => Ok(()),
    }
}

/// Whether a replace may leave out the version that it replaces.
pub fn allows_unconditional_update(resource: &Resource) -> bool {
    !resource.custom && !matches!(resource.plural.as_str(), "leases" | "customresourcedefinitions")
}

fn check_new_finalizers(resource: &Resource, old: &Value, value: &Value) -> Result<(), ApiError> {
    if !object::is_deleting(old) {
        return Ok(());
    }
    let known = object::finalizers(old);
    let new: Vec<&str> = object::finalizers(value)
        .into_iter()
        .filter(|finalizer| !known.contains(finalizer))
        .collect();
    if new.is_empty() {
        return Ok(());
    }
    let detail = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
        new.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
    );
    let error = crate::field::FieldError::forbidden("metadata.finalizers", &detail);
    Err(ApiError::invalid(resource.as_kind(), object::name(value), &[error]))
}

/// Whether two states of an object differ in anything but the times of their managers; otherwise nothing is stored.
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
