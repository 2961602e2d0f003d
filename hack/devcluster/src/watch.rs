//! Watches: sends the store's changes to one client until the client disconnects, the watch times
//! out or the server stops. Reads the clock of tokio.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster::{Cluster, State};
use crate::field::FieldError;
use crate::object::set_meta;
use crate::render::{bookmark_object, event_object};
use crate::selector::Selector;
use crate::status::{ApiError, GroupName};
use crate::store::{Change, ChangeKind};
use crate::verbs::{Call, read};

/// Duration of a watch without `timeoutSeconds`: the shortest that API servers choose.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1800);
/// The longest time between two bookmarks.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(30);

struct Watch {
    cluster: Arc<Cluster>,
    call: Call,
    selector: Selector,
    /// Changes up to this version were sent or are of no concern to the client.
    position: u64,
    bookmarks: bool,
    pending: VecDeque<Vec<u8>>,
    /// A table was sent; the next ones have no column headers.
    started: bool,
    finished: bool,
    changes: watch::Receiver<u64>,
    closing: watch::Receiver<bool>,
    deadline: Instant,
    next_bookmark: Instant,
}

/// Starts a watch. Each event is one line of JSON.
pub fn open(
    cluster: &Arc<Cluster>,
    call: Call,
) -> Result<impl Stream<Item = Result<Vec<u8>, std::convert::Infallible>> + use<>, ApiError> {
    let selector = read::selector(&call)?;
    let timeout = call
        .options
        .number("timeoutSeconds")?
        .filter(|seconds| *seconds > 0)
        .map_or(DEFAULT_TIMEOUT, Duration::from_secs);
    let from = call.options.version().map_err(ApiError::untyped)?.filter(|version| *version > 0);
    refuse_streaming_list(&call)?;
    let now = Instant::now();
    let mut watch = Watch {
        changes: cluster.changes(),
        closing: cluster.closing(),
        cluster: cluster.clone(),
        selector,
        position: from.unwrap_or_default(),
        bookmarks: call.options.flag("allowWatchBookmarks"),
        pending: VecDeque::new(),
        started: false,
        finished: false,
        deadline: now + timeout,
        next_bookmark: now + BOOKMARK_PERIOD,
        call,
    };
    if from.is_none() {
        cluster.read(|state| watch.send_current(state));
    }
    Ok(futures::stream::unfold(watch, |mut watch| async move {
        let line = watch.next().await?;
        Some((Ok(line), watch))
    }))
}

/// Refuses streaming lists as an API server without the feature does; clients then list and watch.
fn refuse_streaming_list(call: &Call) -> Result<(), ApiError> {
    if call.options.get("sendInitialEvents").is_empty() {
        return Ok(());
    }
    let detail =
        "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
    let error = FieldError::forbidden("sendInitialEvents", detail);
    Err(ApiError::invalid(GroupName { group: "meta.k8s.io", name: "ListOptions" }, "", &[error]))
}

/// Why a waiting watch continues.
enum Trigger {
    Change,
    Closing,
    Timeout,
    Bookmark,
}

impl Watch {
    async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(line) = self.pending.pop_front() {
                return Some(line);
            }
            if self.finished {
                return None;
            }
            self.changes.borrow_and_update();
            self.collect();
            if !self.pending.is_empty() || self.finished {
                continue;
            }
            let trigger = {
                let (deadline, next_bookmark, bookmarks) =
                    (self.deadline, self.next_bookmark, self.bookmarks);
                tokio::select! {
                    changed = self.changes.changed() => if changed.is_ok() { Trigger::Change } else { Trigger::Closing },
                    _ = self.closing.wait_for(|closing| *closing) => Trigger::Closing,
                    () = tokio::time::sleep_until(deadline) => Trigger::Timeout,
                    () = tokio::time::sleep_until(next_bookmark), if bookmarks => Trigger::Bookmark,
                }
            };
            self.finished = matches!(trigger, Trigger::Closing | Trigger::Timeout);
            if self.bookmarks && matches!(trigger, Trigger::Bookmark | Trigger::Timeout) {
                self.next_bookmark = Instant::now() + BOOKMARK_PERIOD;
                self.send_bookmark();
            }
        }
    }

    /// Queues the events of all changes since the last call.
    fn collect(&mut self) {
        let cluster = self.cluster.clone();
        cluster.read(|state| {
            let changes = match state.store.since(self.position) {
                Ok(changes) => changes,
                Err(compacted) => {
                    let message = format!(
                        "too old resource version: {} ({})",
                        self.position, compacted.oldest
                    );
                    self.send("ERROR", &ApiError::expired(message).to_status());
                    self.finished = true;
                    return;
                }
            };
            for change in changes {
                self.position = self.position.max(change.version);
                self.send_change(change);
            }
            let (group, version, plural) = (
                &self.call.resource.group,
                &self.call.resource.version,
                &self.call.resource.plural,
            );
            // The watch of a kind ends when the kind is no longer served.
            self.finished |= state.registry.find(group, version, plural).is_none();
        });
    }

    fn is_selected(&self, object: &Value) -> bool {
        let namespace = &self.call.namespace;
        (namespace.is_empty() || object["metadata"]["namespace"] == namespace.as_str())
            && self.selector.matches(object)
    }

    fn send_change(&mut self, change: &Change) {
        if change.storage != self.call.resource.storage {
            return;
        }
        let resource = self.call.resource.clone();
        let object = resource.in_version(&change.object);
        let before = change
            .previous
            .as_ref()
            .map(|previous| resource.in_version(previous))
            .filter(|previous| self.is_selected(previous));
        let after = change.kind != ChangeKind::Deleted && self.is_selected(&object);
        match (before, after) {
            (None, true) => self.send_object("ADDED", &object),
            (Some(_), true) => self.send_object("MODIFIED", &object),
            // An object that leaves the selection is deleted for this client. The event has the
            // last selected state and the version of the change.
            (Some(mut previous), false) => {
                let version = change.version.to_string();
                set_meta(&mut previous, "resourceVersion", Some(version.into()));
                self.send_object("DELETED", &previous);
            }
            (None, false) => {}
        }
    }

    fn send_current(&mut self, state: &State) {
        let resource = self.call.resource.clone();
        for stored in state.store.list(&resource.storage, None) {
            let object = resource.in_version(stored);
            if self.is_selected(&object) {
                self.send_object("ADDED", &object);
            }
        }
        self.position = state.store.version();
    }

    fn send_object(&mut self, kind: &str, object: &Value) {
        let shown =
            event_object(&self.call.resource, object, &self.call.options_now(), !self.started);
        self.started = true;
        self.send(kind, &shown);
    }

    fn send_bookmark(&mut self) {
        let shown = bookmark_object(&self.call.resource, self.position, &self.call.options);
        self.send("BOOKMARK", &shown);
    }

    fn send(&mut self, kind: &str, object: &Value) {
        let mut line = json!({"type": kind, "object": object}).to_string().into_bytes();
        line.push(b'\n');
        self.pending.push_back(line);
    }
}
