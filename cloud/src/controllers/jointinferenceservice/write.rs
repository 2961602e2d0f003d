//! Writes a service's status and its Events. What they say is `status`'s and `notices`'.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::events::{Event, EventType},
};
use neptune_api::{JointInferenceService, JointInferenceServiceStatus};
use neptune_wire::ObjectKey;
use serde_json::json;

use super::{
    apply::FIELD_MANAGER,
    context::{Context, Written},
    notices::{Notice, notices},
    observe, status,
};
use crate::{error::Error, metrics, reason::Finding};

/// Between two writes of one status that only the fleet's words change.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// The longest note of an Event that an API server takes, in bytes.
const LONGEST_NOTE: usize = 1024;

/// Writes the status if it says something new, and returns when to look again. `copy` is what the
/// watch has brought so far of `service`.
pub async fn write_status(
    service: &JointInferenceService,
    copy: &JointInferenceService,
    key: &ObjectKey,
    findings: &[Finding],
    context: &Context,
) -> Result<Option<Duration>, Error> {
    let now = Timestamp::now();
    let uid = service.uid().unwrap_or_default();
    let (counted, settled_at) = {
        let fleet = context.fleet();
        (fleet.unread(&uid).to_vec(), fleet.settled_at())
    };
    let previous = service.status.clone().unwrap_or_default();
    let next = status::next(
        &previous,
        &status::Facts {
            generation: service.metadata.generation,
            findings,
            workers: observe::workers(service, key, context, now),
            counted: &counted,
            now,
        },
    );
    // Silence means something from then on.
    let until_settled = settled_at.duration_since(now).try_into().ok();
    if status::says_the_same(&previous, &next) {
        context.fleet().read(&uid, &counted);
        return Ok(until_settled);
    }
    let is_new_spec = previous.observed_generation != next.observed_generation;
    let last = context.memory(service, |memory| memory.written.as_ref().map(|written| written.at));
    if let Some(rest) = last.and_then(|at| STATUS_INTERVAL.checked_sub(at.elapsed()))
        && !is_new_spec
        && !rest.is_zero()
    {
        return Ok(Some(rest));
    }
    let object = Arc::new(patch_status(service, &next, context).await?);
    let over = copy.resource_version();
    context.memory(service, |memory| {
        memory.written = Some(Written { over, object, at: Instant::now() });
    });
    context.fleet().read(&uid, &counted);
    for notice in notices(&previous, &next) {
        emit(service, notice, context).await;
    }
    Ok(until_settled)
}

/// Only over the very version that was looked at: of two writers, one looks again.
async fn patch_status(
    service: &JointInferenceService,
    status: &JointInferenceServiceStatus,
    context: &Context,
) -> Result<JointInferenceService, Error> {
    let namespace = service.namespace().unwrap_or_default();
    let name = service.name_any();
    let api: Api<JointInferenceService> = Api::namespaced(context.client().clone(), &namespace);
    let over = service.resource_version();
    let patch = json!({ "metadata": { "resourceVersion": over }, "status": status });
    let params =
        PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let result = api.patch_status(&name, &params, &Patch::Merge(&patch)).await;
    let result = result.map_err(Error::api(format!(
        "write the status of JointInferenceService {namespace}/{name}"
    )));
    context.metrics().status_written(match &result {
        Ok(_) => metrics::Outcome::Ok,
        Err(error) => error.class().into(),
    });
    result
}

/// Says something to whoever looks at the service. Only a help: without it the status says it too.
pub async fn emit(service: &JointInferenceService, notice: Notice, context: &Context) {
    let Notice { warning, reason, mut note } = notice;
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
    if let Err(error) = context.recorder().publish(&event, &service.object_ref(&())).await {
        tracing::warn!(%error, reason = event.reason, "an Event could not be written");
    }
}
