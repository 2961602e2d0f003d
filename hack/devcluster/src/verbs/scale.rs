//! The scale subresource of custom resources: GET, PUT and PATCH of a Scale, which is a view of the
//! replicas of an object.

use serde_json::{Value, json};

use super::{Call, Reply, update};
use crate::apply::record_update;
use crate::cluster::State;
use crate::decode;
use crate::field::FieldError;
use crate::object;
use crate::patch::{JSON, MERGE, Patch};
use crate::resource::ScalePaths;
use crate::status::{ApiError, GroupName};

const API_VERSION: &str = "autoscaling/v1";

pub fn get(state: &State, call: &Call) -> Result<Reply, ApiError> {
    scale(call, &call.current(state)?).map(Reply::ok)
}

pub fn update(state: &mut State, call: &Call, body: &Value) -> Result<Reply, ApiError> {
    let old = call.current(state)?;
    set(state, call, &old, body)
}

pub fn patch(state: &mut State, call: &Call, media: &str, bytes: &[u8]) -> Result<Reply, ApiError> {
    if ![JSON, MERGE].contains(&media) {
        return Err(ApiError::unsupported_media(&[JSON, MERGE]));
    }
    let body = decode::json(bytes).map_err(|fault| {
        ApiError::bad_request(format!("error decoding patch: {}", decode::message(&fault)))
    })?;
    let old = call.current(state)?;
    let patched = Patch::parse(media, body)?.apply(&scale(call, &old)?, call.resource.schema())?;
    set(state, call, &old, &patched)
}

/// Writes the replicas of a Scale to its object.
fn set(state: &mut State, call: &Call, old: &Value, scale: &Value) -> Result<Reply, ApiError> {
    if scale["kind"] != "Scale" || scale["apiVersion"] != API_VERSION {
        let given = format!("{}, Kind={}", text(scale, "apiVersion"), text(scale, "kind"));
        return Err(ApiError::bad_request(format!(
            "wrong object passed to Scale update: {given}, expected {API_VERSION}, Kind=Scale"
        )));
    }
    let replicas = match &scale["spec"]["replicas"] {
        Value::Null => 0,
        number => number.as_i64().and_then(|number| i32::try_from(number).ok()).ok_or_else(|| {
            ApiError::bad_request(format!("Scale in version \"v1\" cannot be handled as a Scale: spec.replicas: {number} is no int32"))
        })?,
    };
    if replicas < 0 {
        let detail = "must be greater than or equal to 0";
        let error = FieldError::invalid("spec.replicas", replicas, detail);
        let kind = GroupName { group: "autoscaling", name: "Scale" };
        return Err(ApiError::invalid(kind, &call.name, &[error]));
    }
    let mut value = old.clone();
    set_path(&mut value, &paths(call)?.spec_replicas, replicas.into());
    // The preconditions of the client.
    for field in ["resourceVersion", "uid"] {
        let sent = object::meta_str(scale, field);
        if !sent.is_empty() {
            object::set_meta(&mut value, field, Some(sent.into()));
        }
    }
    call.with_writer(|writer| {
        record_update(Some(old), &mut value, call.resource.schema(), writer)
    })?;
    let body = update::replace(state, call, old, value)?;
    self::scale(call, &body).map(Reply::ok)
}

/// The Scale of an object.
fn scale(call: &Call, object: &Value) -> Result<Value, ApiError> {
    let paths = paths(call)?;
    let number = |path: &str| object::at_path(object, path).and_then(Value::as_i64);
    let Some(replicas) = number(&paths.spec_replicas) else {
        let why = format!("the spec replicas field \".{}\" does not exist", paths.spec_replicas);
        return Err(ApiError::internal(&why));
    };
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field) {
            metadata[field] = value.clone();
        }
    }
    let mut scale = json!({
        "kind": "Scale", "apiVersion": API_VERSION, "metadata": metadata, "spec": {},
        "status": {"replicas": number(&paths.status_replicas).unwrap_or_default()},
    });
    if replicas != 0 {
        scale["spec"]["replicas"] = replicas.into();
    }
    let selector = paths.label_selector.as_deref();
    if let Some(selector) = selector.and_then(|path| object::at_path(object, path)?.as_str()) {
        scale["status"]["selector"] = selector.into();
    }
    Ok(scale)
}

fn paths(call: &Call) -> Result<&ScalePaths, ApiError> {
    call.resource.scale.as_ref().ok_or_else(|| call.not_found())
}

fn set_path(object: &mut Value, path: &str, value: Value) {
    let (parents, field) = path.rsplit_once('.').unwrap_or(("", path));
    let mut parent = object;
    for name in parents.split('.').filter(|name| !name.is_empty()) {
        parent = object::fields(parent).entry(name).or_insert_with(|| json!({}));
    }
    object::fields(parent).insert(field.to_owned(), value);
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}
