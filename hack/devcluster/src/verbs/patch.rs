//! PATCH: merge patch, JSON patch, strategic merge patch and server-side apply.

use serde_json::Value;

use super::{Call, Reply, create, update};
use crate::admit::{self, Endpoint};
use crate::apply::{self, record_update};
use crate::builtin::defaults::drop_nulls;
use crate::cluster::State;
use crate::decode;
use crate::field::FieldError;
use crate::object;
use crate::patch::{APPLY, JSON, MERGE, Patch, STRATEGIC};
use crate::status::{ApiError, GroupName};

pub fn patch(state: &mut State, call: &Call, media: &str, bytes: &[u8]) -> Result<Reply, ApiError> {
    let accepted: &[&str] =
        if call.resource.custom { &[JSON, MERGE, APPLY] } else { &[JSON, MERGE, STRATEGIC, APPLY] };
    if !accepted.contains(&media) {
        return Err(ApiError::unsupported_media(accepted));
    }
    if media == APPLY {
        return server_side_apply(state, call, bytes);
    }
    if call.options.flag("force") {
        let error = FieldError::forbidden("force", "may not be specified for non-apply patch");
        return Err(ApiError::invalid(PATCH_OPTIONS, "", &[error]));
    }
    let body = decode::json(bytes).map_err(|fault| {
        ApiError::bad_request(format!("error decoding patch: {}", decode::message(&fault)))
    })?;
    let patch = Patch::parse(media, body)?;
    let old = call.current(state)?;
    let mut value = patch.apply(&old, call.resource.schema())?;
    admit::check_kind(&call.resource, &value)?;
    let raw = value.clone();
    let findings = admit::decode(&call.resource, &mut value)
        .map_err(|why| ApiError::invalid_patch(&raw, &why))?;
    let warnings = call.report_unknown(&findings, |why| ApiError::invalid_patch(&raw, &why))?;
    if object::uid(&value) != object::uid(&old) {
        let error = FieldError::invalid("metadata.uid", object::uid(&value), "field is immutable");
        return Err(ApiError::invalid(call.resource.as_kind(), &call.name, &[error]));
    }
    call.with_writer(|writer| {
        record_update(Some(&old), &mut value, call.resource.schema(), writer)
    })?;
    let body = update::replace(state, call, &old, value)?;
    Ok(Reply { code: 200, body, warnings })
}

const PATCH_OPTIONS: GroupName<'static> = GroupName { group: "meta.k8s.io", name: "PatchOptions" };

fn server_side_apply(state: &mut State, call: &Call, bytes: &[u8]) -> Result<Reply, ApiError> {
    if call.options.get("fieldManager").is_empty() {
        let error = FieldError::required("fieldManager", "is required for apply patch");
        return Err(ApiError::invalid(PATCH_OPTIONS, "", &[error]));
    }
    // The media type allows YAML, but kubectl and kube-rs send JSON.
    let mut config = decode::json(bytes)
        .map_err(|fault| ApiError::bad_request(format!("error decoding YAML: {fault}")))?;
    check_target(call, &config)?;
    if call.resource.custom {
        drop_nulls(object::fields(&mut config).entry("metadata").or_insert(Value::Null));
    } else {
        drop_nulls(&mut config);
    }
    object::set_meta(&mut config, "name", Some(call.name.as_str().into()));
    let live = state
        .store
        .get(&call.resource.storage, &call.key())
        .map(|object| call.resource.in_version(&object));
    if live.is_none() && call.endpoint == Endpoint::Status {
        return Err(call.not_found());
    }
    let force = call.options.flag("force");
    let mut value = call.with_writer(|writer| {
        apply::apply(live.as_ref(), &config, call.resource.schema(), writer, force)
    })?;
    admit::decode(&call.resource, &mut value)
        .map_err(|why| ApiError::invalid_patch(&config, &why))?;
    let (code, body) = match &live {
        Some(live) => (200, update::replace(state, call, live, value)?),
        None => (201, create::insert(state, call, value)?),
    };
    Ok(Reply { code, body, warnings: Vec::new() })
}

fn check_target(call: &Call, config: &Value) -> Result<(), ApiError> {
    let text = |field: &str| config[field].as_str().unwrap_or_default();
    if text("apiVersion").is_empty() || text("kind").is_empty() {
        return Err(ApiError::bad_request("invalid object type: /, Kind="));
    }
    let expected = call.resource.api_version();
    if text("apiVersion") != expected {
        let given = text("apiVersion");
        return Err(ApiError::bad_request(format!(
            "Incorrect version specified in apply patch. Specified patch version: {given}, expected: {expected}"
        )));
    }
    if text("kind") != call.resource.kind {
        return Err(ApiError::bad_request(format!(
            "invalid object type: {expected}, Kind={}",
            text("kind")
        )));
    }
    let (name, namespace) = (object::name(config), object::meta_str(config, "namespace"));
    if !name.is_empty() && name != call.name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            call.name
        )));
    }
    if !namespace.is_empty() && namespace != call.namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}
