//! DELETE: removes objects, or marks them as deleted while they have finalizers.

use serde_json::{Value, json};

use super::{Call, Reply};
use crate::cluster::State;
use crate::crd;
use crate::field::FieldError;
use crate::object::{self, ObjectKey, meta_str, set_meta};
use crate::status::{ApiError, GroupName};

/// The options of a delete.
#[derive(Debug, Default)]
pub struct DeleteOptions {
    uid: Option<String>,
    version: Option<String>,
    dry_run: bool,
}

impl DeleteOptions {
    /// Reads the options of the body and the query; the body takes precedence.
    pub fn new(call: &Call, body: &Value) -> Result<Self, ApiError> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let query = call.options.get("propagationPolicy");
        let propagation = body["propagationPolicy"].as_str().unwrap_or(query);
        if !matches!(propagation, "" | "Background") {
            // An API server supports Foreground and Orphan too; no client of this project uses
            // them.
            let error = FieldError::unsupported("propagationPolicy", propagation, &["Background"]);
            let kind = GroupName { group: "meta.k8s.io", name: "DeleteOptions" };
            return Err(ApiError::invalid(kind, "", &[error]));
        }
        Ok(Self {
            uid: text(&body["preconditions"]["uid"]),
            version: text(&body["preconditions"]["resourceVersion"]),
            dry_run: call.options.dry_run()?
                || body["dryRun"]
                    .as_array()
                    .is_some_and(|list| list.iter().any(|item| item == "All")),
        })
    }
}

pub fn delete(state: &mut State, call: &Call, body: &Value) -> Result<Reply, ApiError> {
    let options = DeleteOptions::new(call, body)?;
    let object = call.current(state)?;
    let last = delete_one(state, call, &object, &options)?;
    Ok(Reply::ok(match last {
        None => success(call, &object),
        Some(object) => object,
    }))
}

fn success(call: &Call, object: &Value) -> Value {
    let mut details = json!({"name": object::name(object), "kind": call.resource.plural, "uid": object::uid(object)});
    if !call.resource.group.is_empty() {
        details["group"] = call.resource.group.as_str().into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

/// The object while it has finalizers; none when it is removed.
fn delete_one(
    state: &mut State,
    call: &Call,
    current: &Value,
    options: &DeleteOptions,
) -> Result<Option<Value>, ApiError> {
    let (name, resource) = (object::name(current), &call.resource);
    for (field, shown, wanted, guess) in [
        ("uid", "UID", &options.uid, "deleted and then recreated"),
        ("resourceVersion", "ResourceVersion", &options.version, "modified"),
    ] {
        if let Some(wanted) = wanted
            && wanted != meta_str(current, field)
        {
            let why = format!(
                "the {shown} in the precondition ({wanted}) does not match the {shown} in record ({}). The object might have been {guess}",
                meta_str(current, field)
            );
            return Err(ApiError::conflict(resource.as_kind(), name, &why));
        }
    }
    let plural = if resource.custom { "" } else { resource.plural.as_str() };
    if plural == "namespaces" && matches!(name, "default" | "kube-system") {
        return Err(ApiError::forbidden(
            resource.as_plural(),
            name,
            "this namespace may not be deleted",
        ));
    }
    let is_definition = plural == "customresourcedefinitions";
    let now = object::stamp(call.options.now);
    let mut value = current.clone();
    if is_definition && !object::is_deleting(current) {
        object::add_finalizer(&mut value, crd::FINALIZER);
        value["status"] = crd::terminating(current, crd::Deletion::Pending, &now);
    }
    let waits = !object::finalizers(&value).is_empty() || plural == "namespaces";
    let key = ObjectKey::from_object(current);
    if !waits {
        if options.dry_run {
            return Ok(None);
        }
        state.remove(&resource.storage, &key);
        return Ok(None);
    }
    if !object::is_deleting(current) {
        set_meta(&mut value, "deletionTimestamp", Some(now.into()));
        if !is_definition {
            set_meta(&mut value, "deletionGracePeriodSeconds", Some(0.into()));
        }
        if let Some(generation) =
            current["metadata"]["generation"].as_i64().filter(|_| !is_definition)
        {
            set_meta(&mut value, "generation", Some((generation + 1).into()));
        }
        if plural == "namespaces" {
            value["status"]["phase"] = "Terminating".into();
        }
    }
    if value == *current || options.dry_run {
        return Ok(Some(value));
    }
    let stored = state.put(&resource.storage, resource.to_storage(value));
    Ok(Some(resource.in_version(&stored)))
}
