//! What the pages of objects without workers share: the condition `Ready` is their state. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::{
    build::{RelatedObjects, event_lines},
    format::or_none,
    page::{NodeLine, Page},
};

/// The page of an object with this condition `Ready`, nodes and advice. The caller adds its part.
pub fn of_ready(
    kind: &'static str,
    object: &impl ResourceExt,
    ready: Option<&Condition>,
    (nodes, advice): (Vec<NodeLine>, Vec<String>),
    related: &RelatedObjects,
) -> Page {
    Page {
        kind,
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        state: match ready.map(|ready| ready.status.as_str()) {
            Some("True") => "Ready",
            Some("False") => "NotReady",
            _ => "Unknown",
        }
        .to_owned(),
        reason: or_none(ready.map(|ready| ready.reason.as_str())),
        since: ready.map(|ready| ready.last_transition_time.0),
        message: or_none(ready.map(|ready| ready.message.as_str())),
        nodes,
        events: event_lines(related),
        advice,
        ..Page::default()
    }
}
