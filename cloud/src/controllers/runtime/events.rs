//! Kubernetes Events as values, and their publication.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::events::v1::Event,
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::{apply::FIELD_MANAGER, context::Context, controller::Controller};

/// The maximum length of the note of an Event in Kubernetes, in bytes.
const MAX_NOTE: usize = 1024;

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

/// Events that are remembered to count repetitions.
const MAX_RECENT: usize = 10_000;

/// The object, by uid, the reason and the note of an Event. With another note it is another Event:
/// the API server does not allow to change a note.
type Occurrence = (String, String, String);

/// The Events that were published last.
#[derive(Debug, Default)]
pub struct RecentEvents(Mutex<HashMap<Occurrence, Series>>);

#[derive(Debug, Clone)]
struct Series {
    name: String,
    count: i32,
    at: Instant,
}

impl RecentEvents {
    /// The name of the Event, and its count. An Event with the count 1 is created, another one is
    /// updated.
    fn occurred(&self, occurrence: Occurrence, new_name: String, now: Instant) -> (String, i32) {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() >= MAX_RECENT && !recent.contains_key(&occurrence) {
            recent.retain(|_, series| now < series.at + SERIES);
            if recent.len() >= MAX_RECENT {
                recent.clear();
            }
        }
        let new = Series { name: new_name, count: 0, at: now };
        let series = recent.entry(occurrence).or_insert_with(|| new.clone());
        if now >= series.at + SERIES {
            *series = new;
        }
        series.count = series.count.saturating_add(1);
        series.at = now;
        (series.name.clone(), series.count)
    }

    /// The Event does not exist any more, or was not created.
    fn forget(&self, occurrence: &Occurrence) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(occurrence);
    }
}

/// Publishes an Event about an object. A failure is only logged: the status has the same
/// information.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn publish_event<K: Controller>(object: &K, event: ObjectEvent, context: &Context) {
    let ObjectEvent { warning, reason, mut note } = event;
    while note.len() > MAX_NOTE {
        note.pop();
    }
    let regarding = object.object_ref(&());
    let uid = regarding.uid.clone().unwrap_or_default();
    let occurrence = (uid, reason.clone(), note.clone());
    let now = Timestamp::now();
    let new_name = format!("{}.{:x}", object.name_any(), now.as_nanosecond());
    let (name, count) = context.events().occurred(occurrence.clone(), new_name, Instant::now());
    let namespace = object.namespace().unwrap_or_default();
    let api: Api<Event> = Api::namespaced(context.client().clone(), &namespace);
    let result = if count > 1 {
        let series = json!({"series": {"count": count, "lastObservedTime": MicroTime(now)}});
        api.patch(&name, &PatchParams::default(), &Patch::Merge(&series)).await
    } else {
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(namespace),
                ..ObjectMeta::default()
            },
            type_: Some(if warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(reason.clone()),
            note: Some(note),
            action: Some("Reconcile".to_owned()),
            event_time: Some(MicroTime(now)),
            reporting_controller: Some(FIELD_MANAGER.to_owned()),
            reporting_instance: Some(FIELD_MANAGER.to_owned()),
            regarding: Some(regarding),
            ..Event::default()
        };
        api.create(&PostParams::default(), &event).await
    };
    if let Err(error) = result {
        context.events().forget(&occurrence);
        if !context.caches().api_server.failed("publish an Event", &error) {
            tracing::warn!(%error, reason, "cannot publish Event");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn event_with_another_note_is_another_event() {
        let (events, now) = (RecentEvents::default(), Instant::now());
        let occurred = |note: &str, name: &str, now| {
            let occurrence = ("uid".to_owned(), "Serving".to_owned(), note.to_owned());
            events.occurred(occurrence, name.to_owned(), now)
        };
        assert_eq!(occurred("version 1 is served", "a", now), ("a".to_owned(), 1));
        assert_eq!(occurred("version 1 is served", "b", now), ("a".to_owned(), 2));
        assert_eq!(occurred("version 2 is served", "c", now), ("c".to_owned(), 1));
        assert_eq!(occurred("version 1 is served", "d", now + SERIES), ("d".to_owned(), 1));
    }

    #[test]
    fn remembered_events_are_bounded() {
        let (events, now) = (RecentEvents::default(), Instant::now());
        for n in 0..3 * MAX_RECENT {
            let occurrence = (n.to_string(), String::new(), String::new());
            events.occurred(occurrence, n.to_string(), now);
        }
        let recent = events.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(recent.len() <= MAX_RECENT);
    }
}
