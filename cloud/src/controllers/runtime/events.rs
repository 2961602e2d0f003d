//! Kubernetes Events as values, and their publication.

use kube::runtime::events::{Event, EventType};

use super::{context::Context, controller::Controller};

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

/// Publishes an Event about an object. A failure is only logged: the status has the same
/// information.
pub async fn publish_event<K: Controller>(object: &K, event: ObjectEvent, context: &Context) {
    let ObjectEvent { warning, reason, mut note } = event;
    while note.len() > MAX_NOTE {
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
        tracing::warn!(%error, reason = event.reason, "cannot publish Event");
    }
}
