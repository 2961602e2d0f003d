//! The scale subresource: replicas as an `autoscaling/v1` Scale.

use serde_json::{Value, json};

use super::{Call, Reply, update};
use crate::apply::record_update;
use crate::cluster::State;
use crate::field::FieldError;
use crate::object::{self, at_path, meta_str};
use crate::patch::Patch;
use crate::resource::Scale;
use crate::status::{ApiError, GroupName};

const KIND: GroupName<'static> = GroupName { group: "autoscaling", name: "Scale" };

pub fn get(state: &State, call: &Call, scale: &Scale) -> Result<Reply, ApiError> {
    let object = call.current(state)?;
    if at_path(&object, &scale.spec_replicas).is_none() {
        let path = &scale.spec_replicas;
        return Err(ApiError::internal(&format!(
            "the spec replicas field {path:?} does not exist"
        )));
    }
    Ok(Reply::ok(view(&object, scale)))
}

pub fn update(
    state: &mut State,
    call: &Call,
    scale: &Scale,
    wanted: &Value,
) -> Result<Reply, ApiError> {
    let old = call.current(state)?;
    let replicas = wanted["spec"]["replicas"].as_i64().unwrap_or_default();
    if replicas < 0 {
        let error =
            FieldError::invalid("spec.replicas", replicas, "should be a non-negative integer");
        return Err(ApiError::invalid(KIND, &call.name, &[error]));
    }
    let mut value = old.clone();
    object::set_path(&mut value, &scale.spec_replicas, replicas.into());
    let version = meta_str(wanted, "resourceVersion").to_owned();
    object::set_meta(&mut value, "resourceVersion", Some(version.into()));
    call.with_writer(|writer| {
        let writer = crate::apply::Writer { subresource: "scale", ..*writer };
        record_update(Some(&old), &mut value, call.resource.schema(), &writer)
    })?;
    let stored = update::replace(state, call, &old, value)?;
    Ok(Reply::ok(view(&stored, scale)))
}

pub fn patch(
    state: &mut State,
    call: &Call,
    scale: &Scale,
    patch: &Patch,
) -> Result<Reply, ApiError> {
    let current = view(&call.current(state)?, scale);
    let schema = crate::builtin::definitions::definition("io.k8s.api.autoscaling.v1.Scale");
    let wanted = patch.apply(&current, schema.expect("Scale is a built-in definition"))?;
    update(state, call, scale, &wanted)
}

fn view(object: &Value, scale: &Scale) -> Value {
    let number = |path: &str| at_path(object, path).and_then(Value::as_i64).unwrap_or_default();
    let mut status = json!({"replicas": number(&scale.status_replicas)});
    let selector = match &scale.label_selector {
        Some(path) => at_path(object, path).and_then(Value::as_str).map(str::to_owned),
        None => Some(labels_text(&object["spec"]["selector"]["matchLabels"])),
    };
    if let Some(selector) = selector.filter(|text| !text.is_empty()) {
        status["selector"] = selector.into();
    }
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field) {
            metadata[field] = value.clone();
        }
    }
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {"replicas": number(&scale.spec_replicas)}, "status": status})
}

fn labels_text(labels: &Value) -> String {
    let pairs: Vec<String> = labels
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    pairs.join(",")
}
