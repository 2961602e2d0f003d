//! Publishes the Kubernetes Events of all controllers.

use std::time::{Duration, Instant};

use futures::FutureExt as _;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use neptune_cloud_kinds::steps::ObjectEvent;
use serde_json::json;
use tokio::time::{error::Elapsed, timeout};

use super::{
    context::Context,
    recent_events::{SummaryTurn, digest},
    state::{ObjectState, Stateful},
};
use crate::kubernetes::FIELD_MANAGER;

/// The maximum length of the note of an Event in Kubernetes, in bytes.
const MAX_NOTE: usize = 1024;

/// The time to write an Event. The client repeats a write that the API server limits or does not
/// answer, with pauses, for a minute: the Events of other objects do not wait for that.
const WRITE_TIME: Duration = Duration::from_secs(10);

/// The namespace of Events about objects without a namespace.
const NODE_EVENTS: &str = "default";

/// Queues an Event about an object. A failure is only logged: the status has the same information.
pub fn queue_event<K: Stateful>(object: &K, event: ObjectEvent, context: &Context) {
    let (regarding, reason) = (object.object_ref(&()), event.reason.clone());
    let uid = object.uid().unwrap_or_default();
    let owned = context.clone();
    let publish = async move { publish_event::<K>(regarding, event, &owned).await };
    if !context.events().push(&uid, publish.boxed()) {
        tracing::warn!(reason, "dropped an Event: too many wait for the API server");
    }
}

/// Queues the Event with the numbers of a status, if they differ from those of the last one. Returns
/// when to look again, if that was published just before.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub fn queue_summary<K: Stateful>(
    object: &K,
    (previous, next): (&K::Status, &K::Status),
    context: &Context,
) -> Option<Duration> {
    let digest_of = |event: &ObjectEvent| digest(&event.reason, &event.note);
    let before = || K::summary_event(previous).as_ref().map(digest_of);
    let event = K::summary_event(next);
    let next = event.as_ref().map(digest_of);
    let turn = |state: &mut ObjectState<K>| state.summary.turn(before, next, Instant::now());
    match (context.object_state(object, turn), event) {
        (SummaryTurn::Publish, Some(event)) => queue_event(object, event, context),
        (SummaryTurn::Wait(pause), _) => return Some(pause),
        (SummaryTurn::Publish | SummaryTurn::Nothing, _) => {}
    }
    None
}

#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn publish_event<K: Stateful>(
    regarding: ObjectReference,
    event: ObjectEvent,
    context: &Context,
) {
    let ObjectEvent { warning, reason, mut note } = event;
    while note.len() > MAX_NOTE {
        note.pop();
    }
    let uid = regarding.uid.clone().unwrap_or_default();
    let digest = digest(&reason, &note);
    let now = Timestamp::now();
    let suffix = u64::try_from(now.as_nanosecond()).unwrap_or_default();
    let states = K::state(context.states());
    let occurred =
        |state: &mut ObjectState<K>| state.events.occurred(digest, suffix, Instant::now());
    // The object may be deleted by now.
    let (suffix, count) = states.with_known(&uid, occurred).unwrap_or((suffix, 1));
    let name = format!("{}.{suffix:x}", regarding.name.as_deref().unwrap_or_default());
    let namespace = regarding.namespace.clone().unwrap_or_default();
    let api: Api<Event> = Api::namespaced(context.client().clone(), &namespace);
    let writing = async {
        if count > 1 {
            let series = json!({"series": {"count": count, "lastObservedTime": MicroTime(now)}});
            api.patch(&name, &PatchParams::default(), &Patch::Merge(&series)).await
        } else {
            let event = ObjectEvent { warning, reason: reason.clone(), note };
            let event = to_kubernetes(event, name.clone(), namespace, regarding, now);
            api.create(&PostParams::default(), &event).await
        }
    };
    let written = timeout(WRITE_TIME, writing).await;
    if !matches!(written, Ok(Ok(_))) {
        states.with_known(&uid, |state| state.events.forget(digest));
    }
    log_failure(written, &reason, context);
}

/// Logs why an Event is not written, if it is not.
fn log_failure(written: Result<kube::Result<Event>, Elapsed>, reason: &str, context: &Context) {
    match written {
        Ok(Ok(_)) => {}
        Ok(Err(error)) if context.caches().api_server.failed("publish an Event", &error) => {}
        Ok(Err(error)) => tracing::warn!(%error, reason, "cannot publish Event"),
        Err(_) => tracing::warn!(reason, "the API server does not take an Event in time; skipped"),
    }
}

/// Publishes an Event about a node, or another object without a controller of its own. A failure is
/// only logged.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn publish_event_about(
    regarding: ObjectReference,
    event: ObjectEvent,
    context: &Context,
) {
    let now = Timestamp::now();
    let name =
        format!("{}.{:x}", regarding.name.as_deref().unwrap_or_default(), now.as_nanosecond());
    let namespace = regarding.namespace.clone().unwrap_or_else(|| NODE_EVENTS.to_owned());
    let api: Api<Event> = Api::namespaced(context.client().clone(), &namespace);
    let reason = event.reason.clone();
    let event = to_kubernetes(event, name, namespace, regarding, now);
    let written = timeout(WRITE_TIME, api.create(&PostParams::default(), &event)).await;
    log_failure(written, &reason, context);
}

fn to_kubernetes(
    event: ObjectEvent,
    name: String,
    namespace: String,
    regarding: ObjectReference,
    now: Timestamp,
) -> Event {
    Event {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        type_: Some(if event.warning { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(event.reason),
        note: Some(event.note),
        action: Some("Reconcile".to_owned()),
        event_time: Some(MicroTime(now)),
        reporting_controller: Some(FIELD_MANAGER.to_owned()),
        reporting_instance: Some(FIELD_MANAGER.to_owned()),
        regarding: Some(regarding),
        ..Event::default()
    }
}
