//! Sets the fields of an object that belong to the server, and restores the fields that an endpoint
//! must not change. Pure.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::admit::Endpoint;
use crate::field::FieldError;
use crate::object::{self, meta_str, set_meta};
use crate::resource::Resource;
use crate::status::{ApiError, MODIFIED};

/// Sets the server's fields of a new object. `suffix` completes a generated name.
pub fn create(
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
    set_meta(value, "creationTimestamp", Some(object::stamp(now).into()));
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

/// Sets the server's fields of a changed object, and restores protected ones.
pub fn update(
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
        // The address is kept when a client does not send it.
        for field in ["clusterIP", "clusterIPs"] {
            if let Some(address) = old["spec"].get(field).cloned() {
                value["spec"][field] = address;
            }
        }
    }
    if resource.counts_generation && desired(old, resource) != desired(value, resource) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or_default() + 1;
        set_meta(value, "generation", Some(generation.into()));
    }
    Ok(())
}

/// The desired state of an object: changes of it increment the generation.
fn desired(value: &Value, resource: &Resource) -> Value {
    let mut desired = value.clone();
    let annotations = desired["metadata"]["annotations"].take();
    let fields = object::fields(&mut desired);
    if !resource.custom && resource.plural == "deployments" {
        // Annotations count for Deployments, because their controller copies them to ReplicaSets.
        fields.insert("annotations".into(), annotations);
    }
    for field in ["metadata", "apiVersion", "kind"] {
        fields.remove(field);
    }
    if resource.has_status {
        fields.remove("status");
    }
    desired
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
            Err(ApiError::untyped(format!("strconv.ParseUint: parsing {sent:?}: invalid syntax")))
        }
        sent if sent != meta_str(old, "resourceVersion") => {
            Err(ApiError::conflict(resource.as_plural(), name, MODIFIED))
        }
        _ => Ok(()),
    }
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
    let error = FieldError::forbidden("metadata.finalizers", &detail);
    Err(ApiError::invalid(resource.as_kind(), object::name(value), &[error]))
}
