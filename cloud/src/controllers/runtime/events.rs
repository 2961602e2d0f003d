//! Kubernetes Events as values, and their publication.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::{Duration, Instant},
};

use futures::FutureExt as _;
use k8s_openapi::{
    api::{
        core::v1::{Node, ObjectReference},
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::time::{error::Elapsed, timeout};

use super::{apply::FIELD_MANAGER, context::Context, controller::Controller, state::ObjectState};

/// The maximum length of the note of an Event in Kubernetes, in bytes.
const MAX_NOTE: usize = 1024;

/// The time to write an Event. The client repeats a write that the API server limits or does not
/// answer, with pauses, for a minute: the Events of other objects do not wait for that.
const WRITE_TIME: Duration = Duration::from_secs(10);

/// The namespace of Events about objects without a namespace.
const NODE_EVENTS: &str = "default";

/// An Event to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectEvent {
    /// Whether a user may have to act.
    pub warning: bool,
    /// The reason in CamelCase.
    pub reason: String,
    /// The message.
    pub note: String,
}

impl ObjectEvent {
    /// An Event of type Normal.
    pub fn normal(reason: &str, note: impl Into<String>) -> Self {
        Self { warning: false, reason: reason.to_owned(), note: note.into() }
    }

    /// An Event of type Warning.
    pub fn warning(reason: &str, note: impl Into<String>) -> Self {
        Self { warning: true, reason: reason.to_owned(), note: note.into() }
    }
}

/// How long a repeated Event increases the count of the first one.
const SERIES: Duration = Duration::from_secs(6 * 60);

/// Events of an object that are remembered to count repetitions.
const MAX_PER_OBJECT: usize = 8;

/// The Events of an object that were published last, the newest last.
#[derive(Debug, Default)]
pub struct RecentEvents(Vec<Series>);

/// An Event and its repetitions.
#[derive(Debug)]
struct Series {
    /// A hash of reason and note. With another note it is another Event: the API server does not
    /// allow to change a note.
    digest: u64,
    /// The end of the Event's name.
    suffix: u64,
    count: i32,
    at: Instant,
}

impl RecentEvents {
    /// The suffix of the name of the Event, and its count. An Event with the count 1 is created,
    /// another one is updated.
    fn occurred(&mut self, digest: u64, suffix: u64, now: Instant) -> (u64, i32) {
        self.0.retain(|series| now < series.at + SERIES);
        let known = self.0.iter().position(|series| series.digest == digest);
        let new = Series { digest, suffix, count: 0, at: now };
        let series = known.map_or(new, |position| self.0.remove(position));
        let (suffix, count) = (series.suffix, series.count.saturating_add(1));
        // `Vec` would reserve room for four, and most objects have one or two.
        self.0.reserve_exact(1);
        self.0.push(Series { count, at: now, ..series });
        if self.0.len() > MAX_PER_OBJECT {
            self.0.remove(0);
        }
        (suffix, count)
    }

    /// The Event does not exist any more, or was not created.
    fn forget(&mut self, digest: u64) {
        self.0.retain(|series| series.digest != digest);
    }
}

fn digest(reason: &str, note: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (reason, note).hash(&mut hasher);
    hasher.finish()
}

/// Queues an Event about an object. A failure is only logged: the status has the same information.
pub fn queue_event<K: Controller>(object: &K, event: ObjectEvent, context: &Context) {
    let (regarding, reason) = (object.object_ref(&()), event.reason.clone());
    let uid = object.uid().unwrap_or_default();
    let owned = context.clone();
    let publish = async move { publish_event::<K>(regarding, event, &owned).await };
    if !context.events().push(&uid, publish.boxed()) {
        tracing::warn!(reason, "dropped an Event: too many wait for the API server");
    }
}

#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn publish_event<K: Controller>(
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

/// Publishes an Event about a Node. A failure is only logged.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn publish_node_event(node: &Node, event: ObjectEvent, context: &Context) {
    let now = Timestamp::now();
    let name = format!("{}.{:x}", node.name_any(), now.as_nanosecond());
    let api: Api<Event> = Api::namespaced(context.client().clone(), NODE_EVENTS);
    let reason = event.reason.clone();
    let event = to_kubernetes(event, name, NODE_EVENTS.to_owned(), node.object_ref(&()), now);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn event_with_another_note_is_another_event() {
        let (mut events, now) = (RecentEvents::default(), Instant::now());
        let mut occurred =
            |note: &str, suffix, now| events.occurred(digest("Serving", note), suffix, now);
        assert_eq!(occurred("version 1 is served", 1, now), (1, 1));
        assert_eq!(occurred("version 1 is served", 2, now), (1, 2));
        assert_eq!(occurred("version 2 is served", 3, now), (3, 1));
        assert_eq!(occurred("version 1 is served", 4, now + SERIES), (4, 1));
    }

    #[test]
    fn newest_events_of_an_object_are_remembered() {
        let (mut events, now) = (RecentEvents::default(), Instant::now());
        for n in 0..1000 {
            events.occurred(n, n, now);
        }
        assert_eq!(events.0.len(), MAX_PER_OBJECT);
        assert_eq!(events.occurred(999, 1, now), (999, 2));
        events.forget(999);
        assert_eq!(events.occurred(999, 2, now), (2, 1));
    }
}
