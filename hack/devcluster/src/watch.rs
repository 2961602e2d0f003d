//! Watches: replays the store's changes to one client until it leaves, its time is up, or the server ends. Touches the clock of tokio.

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

/// Without `timeoutSeconds` a watch ends after this time, the shortest that API servers choose.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1800);
/// Clients learn the current version at least this often when they take bookmarks.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(30);

struct Watch {
    cluster: Arc<Cluster>,
    call: Call,
    selector: Selector,
    /// Changes up to this version were sent or did not concern the client.
    position: u64,
    bookmarks: bool,
    pending: VecDeque<Vec<u8>>,
    /// A table was sent, so that the next one carries no headers.
    started: bool,
    ended: bool,
    changes: watch::Receiver<u64>,
    closing: watch::Receiver<bool>,
    deadline: Instant,
    next_bookmark: Instant,
}

/// Starts a watch: a line of JSON an event.
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
    let initial = initial_events(&call)?;
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
        ended: false,
        deadline: now + timeout,
        next_bookmark: now + BOOKMARK_PERIOD,
        call,
    };
    if initial == Some(true) || (initial.is_none() && from.is_none()) {
        cluster.read(|state| watch.send_current(state));
        if initial == Some(true) {
            watch.send_bookmark(true);
        }
    } else if from.is_none() {
        watch.position = cluster.read(|state| state.store.version());
    }
    Ok(futures::stream::unfold(watch, |mut watch| async move {
        let line = watch.next().await?;
        Some((Ok(line), watch))
    }))
}

/// Whether the client asks for the present objects as events; none when it does not say.
fn initial_events(call: &Call) -> Result<Option<bool>, ApiError> {
    let options = &call.options;
    let given = match options.get("sendInitialEvents") {
        "" => None,
        text => Some(text == "true"),
    };
    let wrong = match (given, options.get("resourceVersionMatch")) {
        (None, "") | (Some(_), "NotOlderThan") => None,
        (None, _) => {
            Some("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
        }
        (Some(_), _) => {
            Some("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
        }
    };
    match wrong {
        None => Ok(given),
        Some(detail) => {
            let kind = GroupName { group: "meta.k8s.io", name: "ListOptions" };
            Err(ApiError::invalid(
                kind,
                "",
                &[FieldError::forbidden("resourceVersionMatch", detail)],
            ))
        }
    }
}

/// Why a waiting watch goes on.
enum Woken {
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
            if self.ended {
                return None;
            }
            self.changes.borrow_and_update();
            self.collect();
            if !self.pending.is_empty() || self.ended {
                continue;
            }
            let woken = {
                let (deadline, next_bookmark, bookmarks) =
                    (self.deadline, self.next_bookmark, self.bookmarks);
                tokio::select! {
                    changed = self.changes.changed() => if changed.is_ok() { Woken::Change } else { Woken::Closing },
                    _ = self.closing.wait_for(|closing| *closing) => Woken::Closing,
                    () = tokio::time::sleep_until(deadline) => Woken::Timeout,
                    () = tokio::time::sleep_until(next_bookmark), if bookmarks => Woken::Bookmark,
                }
            };
            self.ended = matches!(woken, Woken::Closing | Woken::Timeout);
            if self.bookmarks && matches!(woken, Woken::Bookmark | Woken::Timeout) {
                self.next_bookmark = Instant::now() + BOOKMARK_PERIOD;
                self.send_bookmark(false);
            }
        }
    }

    /// Queues what happened since the last look.
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
                    self.ended = true;
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
            // A kind that is no longer served ends its watches.
            self.ended |= state.registry.find(group, version, plural).is_none();
        });
    }

    fn concerns(&self, object: &Value) -> bool {
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
            .filter(|previous| self.concerns(previous));
        let after = change.kind != ChangeKind::Deleted && self.concerns(&object);
        match (before, after) {
            (None, true) => self.send_object("ADDED", &object),
            (Some(_), true) => self.send_object("MODIFIED", &object),
            // An object that leaves the selection is deleted for this client, which sees it as it was before, at the version of the change.
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
            if self.concerns(&object) {
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

    fn send_bookmark(&mut self, initial_end: bool) {
        let shown =
            bookmark_object(&self.call.resource, self.position, initial_end, &self.call.options);
        self.send("BOOKMARK", &shown);
    }

    fn send(&mut self, kind: &str, object: &Value) {
        let mut line = json!({"type": kind, "object": object}).to_string().into_bytes();
        line.push(b'\n');
        self.pending.push_back(line);
    }
}
