//! What of a status's change a user would ask about, as Kubernetes Events. Pure.
//!
//! Only changes make a notice, so that they are few however often a model is looked at.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use neptune_api::{InferenceModelStatus, TransitionStatus};

use super::{
    super::notice::Notice,
    status::{DEGRADED, PROGRESSING, READY},
};
use crate::reason::Reason;

/// What is to be said when `previous` becomes `next`.
pub fn notices(previous: &InferenceModelStatus, next: &InferenceModelStatus) -> Vec<Notice> {
    let mut notices = Vec::new();
    let version = next
        .target_version
        .as_deref()
        .map_or("the image".to_owned(), |target| format!("version {target}"));
    if next.progress.is_some()
        && (previous.progress.is_none() || previous.target_version != next.target_version)
    {
        notices.push(Notice::normal("DownloadStarted", format!("{version} is being downloaded")));
    }
    let (was, is) = (previous.transition_status, next.transition_status);
    let switched = was != is || previous.target_version != next.target_version;
    if is == Some(TransitionStatus::UpToDate) && switched {
        let note = message(next, PROGRESSING);
        notices.push(Notice::normal("SwitchCommitted", note));
    }
    let failed = was != is || previous.last_failure != next.last_failure;
    if is == Some(TransitionStatus::BlockedByFailedLoad) && failed {
        notices.push(blocked(previous, next));
    } else if let Some(notice) = trouble(previous, next) {
        notices.push(notice);
    }
    if word(previous, DEGRADED).1 == OFFLINE && word(next, DEGRADED).1 != OFFLINE {
        notices.push(Notice::normal("NodeOnline", "the node is connected again"));
    }
    let stopped = word(previous, READY).0 == "True" && word(next, READY).0 == "False";
    if stopped && previous.node == next.node {
        notices.push(Notice::warning("ServingFailed", message(next, READY)));
    }
    notices
}

const OFFLINE: &str = "NodeOffline";

/// A version that failed: with another one in its place again, or with none, or without having been
/// started at all.
fn blocked(previous: &InferenceModelStatus, next: &InferenceModelStatus) -> Notice {
    let note = message(next, DEGRADED);
    match &next.serving_version {
        Some(serving) if previous.serving_version.as_ref() != Some(serving) => {
            Notice::warning("RolledBack", format!("version {serving} is served again: {note}"))
        }
        Some(serving) => {
            Notice::warning("LoadFailed", format!("version {serving} is still served: {note}"))
        }
        None => Notice::warning("LoadFailed", note),
    }
}

/// Another reason for which something is wrong or awaited.
fn trouble(previous: &InferenceModelStatus, next: &InferenceModelStatus) -> Option<Notice> {
    let (status, reason) = word(next, DEGRADED);
    let is_news = word(previous, DEGRADED) != (status, reason);
    if status == "True" && is_news {
        return Some(Notice::warning(reason, message(next, DEGRADED)));
    }
    let (status, reason) = word(next, PROGRESSING);
    let is_news = word(previous, PROGRESSING) != (status, reason);
    let is_step = reason.parse().is_ok_and(Reason::is_progress) && reason != "ModelDownloading";
    (status == "True" && is_news && is_step)
        .then(|| Notice::normal(reason, message(next, PROGRESSING)))
}

fn find<'a>(status: &'a InferenceModelStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

fn word<'a>(status: &'a InferenceModelStatus, type_: &str) -> (&'a str, &'a str) {
    find(status, type_)
        .map_or(("", ""), |condition| (condition.status.as_str(), condition.reason.as_str()))
}

fn message<'a>(status: &'a InferenceModelStatus, type_: &str) -> &'a str {
    find(status, type_).map_or("", |condition| condition.message.as_str())
}
