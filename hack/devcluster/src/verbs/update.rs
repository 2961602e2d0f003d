//! PUT: replaces objects and their status.

use serde_json::Value;

use super::{Call, Reply};
use crate::admit;
use crate::apply::record_update;
use crate::cluster::State;
use crate::field::FieldError;
use crate::object::meta_str;
use crate::prepare;
use crate::status::ApiError;

pub fn update(state: &mut State, call: &Call, body: Value) -> Result<Reply, ApiError> {
    let (mut value, warnings) = call.decode(body)?;
    let old = call.current(state)?;
    if meta_str(&value, "resourceVersion").is_empty()
        && !admit::allows_unconditional_update(&call.resource)
    {
        let error =
            FieldError::invalid("metadata.resourceVersion", 0, "must be specified for an update");
        return Err(ApiError::invalid(call.resource.as_plural(), &call.name, &[error]));
    }
    call.with_writer(|writer| {
        record_update(Some(&old), &mut value, call.resource.schema(), writer)
    })?;
    let body = replace(state, call, &old, value)?;
    Ok(Reply { code: 200, body, warnings })
}

/// Completes, validates and stores the new state of an object. An unchanged object is not stored.
pub fn replace(
    state: &mut State,
    call: &Call,
    old: &Value,
    mut value: Value,
) -> Result<Value, ApiError> {
    prepare::update(&call.resource, call.endpoint, old, &mut value)?;
    admit::check(&call.resource, &value, Some(old))?;
    if admit::is_unchanged(old, &value) {
        return Ok(old.clone());
    }
    let version = old["metadata"]["resourceVersion"].clone();
    value["metadata"]["resourceVersion"] = version;
    call.store(state, value)
}
