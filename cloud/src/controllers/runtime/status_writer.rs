//! Writes the status of an object of any kind, and publishes the Events of the change.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use neptune_wire::ObjectKey;
use serde_json::{Value, json};

use super::{
    apply::FIELD_MANAGER,
    context::Context,
    controller::{Controller, StatusInputs},
    events::publish_event,
    merge_patch::merge_patch,
    state::{LastWrite, Prepared},
};
use crate::{error::Error, metrics};

/// The minimum interval between two status writes of an object without a new spec.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Writes the status if it changes, and returns when to compute it again although nothing changes.
/// `cached` is the object as the watch has it, `object` the newest known.
///
/// # Errors
/// The error of the API server.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn write_status<K: Controller>(
    object: &K,
    cached: &K,
    key: &ObjectKey,
    prepared: &Prepared<K>,
    context: &Context,
) -> Result<Option<Duration>, Error> {
    let now = Timestamp::now();
    let uid = object.uid().unwrap_or_default();
    let (unreported, settled_at) = {
        let fleet = context.fleet();
        (fleet.unreported(&uid).to_vec(), fleet.settled_at())
    };
    let inputs = StatusInputs {
        generation: object.meta().generation,
        findings: &prepared.findings,
        observed: object.observe(key, prepared.valid.as_ref(), context, now),
        unreported: &unreported,
        now,
    };
    let previous = object.status().cloned().unwrap_or_default();
    let next = object.next_status(&previous, &inputs);
    // After that time a missing report is significant.
    let until_settled = settled_at.duration_since(now).try_into().ok();
    if K::is_same_status(&previous, &next) {
        context.fleet().mark_reported(&uid, &unreported);
        return Ok(until_settled);
    }
    let is_new_spec = K::observed_generation(&previous) != K::observed_generation(&next);
    if let Some(pause) = remaining_pause(object, is_new_spec, context) {
        return Ok(Some(pause));
    }
    save(object, cached, &next, context).await?;
    context.fleet().mark_reported(&uid, &unreported);
    for event in K::events(&previous, &next) {
        publish_event(object, event, context).await;
    }
    object.enqueue_by_status(&next, context);
    Ok(until_settled)
}

/// How long to wait before the status may be written again; `None` to write it now.
fn remaining_pause<K: Controller>(
    object: &K,
    is_new_spec: bool,
    context: &Context,
) -> Option<Duration> {
    let last =
        context.object_state(object, |state| state.last_write.as_ref().map(|last| last.at))?;
    let pause = STATUS_INTERVAL.checked_sub(last.elapsed())?;
    (!is_new_spec && !pause.is_zero()).then_some(pause)
}

/// Writes a status to the version that it was computed from. Another writer causes a conflict.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn save<K: Controller>(
    object: &K,
    cached: &K,
    status: &K::Status,
    context: &Context,
) -> Result<(), Error> {
    let namespace = object.namespace().unwrap_or_default();
    let name = object.name_any();
    let api: Api<K> = Api::namespaced(context.client().clone(), &namespace);
    let value = |result: serde_json::Result<Value>| result.expect("these types are JSON");
    let before = value(serde_json::to_value(object));
    let status = merge_patch(&before["status"], &value(serde_json::to_value(status)));
    let patch = json!({
        "metadata": { "resourceVersion": object.resource_version() },
        "status": status,
    });
    let params =
        PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let result = api.patch_status(&name, &params, &Patch::Merge(&patch)).await;
    let result = result
        .map_err(Error::api(format!("write the status of {} {namespace}/{name}", K::kind(&()))));
    context.metrics().status_written(match &result {
        Ok(_) => metrics::Outcome::Ok,
        Err(error) => error.class().into(),
    });
    let object = Arc::new(result?);
    let over = cached.resource_version();
    context.object_state(cached, |state| {
        state.last_write = Some(LastWrite { over, object, at: Instant::now() });
    });
    Ok(())
}
