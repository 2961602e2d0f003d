//! Writes an object's status and its Events. What they say is each kind's own.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::events::{Event, EventType},
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    controllers::runtime::{
        apply::FIELD_MANAGER,
        context::{Context, LastWrite},
        controller::Kind,
        event::ObjectEvent,
        merge_patch::merge_patch,
    },
    error::Error,
    metrics,
};

/// Between two writes of one status that only the fleet's words change.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// The longest note of an Event that an API server takes, in bytes.
const LONGEST_NOTE: usize = 1024;

/// When a status that says something new may be written: `None` for now.
pub fn must_rest<K: Kind>(object: &K, is_new_spec: bool, context: &Context) -> Option<Duration> {
    let last =
        context.memory(object, |memory| memory.written.as_ref().map(|written| written.at))?;
    let rest = STATUS_INTERVAL.checked_sub(last.elapsed())?;
    (!is_new_spec && !rest.is_zero()).then_some(rest)
}

/// Writes a status over the very version that was looked at: of two writers, one looks again.
/// `cached` is what the watch has brought so far of `object`.
///
/// # Errors
/// The API server's answer.
pub async fn save<K: Kind>(
    object: &K,
    cached: &K,
    status: &impl Serialize,
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
    context.memory(cached, |memory| {
        memory.written = Some(LastWrite { over, object, at: Instant::now() });
    });
    Ok(())
}

/// Says something to whoever looks at the object. Only a help: without it the status says it too.
pub async fn emit<K: Kind>(object: &K, event: ObjectEvent, context: &Context) {
    let ObjectEvent { warning, reason, mut note } = event;
    while note.len() > LONGEST_NOTE {
        note.pop();
    }
    let event = Event {
        type_: if warning { EventType::Warning } else { EventType::Normal },
        reason,
        note: Some(note),
        action: "Reconcile".to_owned(),
        secondary: None,
    };
    if let Err(error) = context.recorder().publish(&event, &object.object_ref(&())).await {
        tracing::warn!(%error, reason = event.reason, "an Event could not be written");
    }
}
