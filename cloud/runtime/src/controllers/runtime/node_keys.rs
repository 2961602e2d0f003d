//! Records the keys of the nodes in their `ConfigMap`, and publishes an Event for each key that
//! changed. What to record is decided by `fleet`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::ResourceExt as _;
use neptune_cloud_kinds::{
    error_class::Class,
    fleet::KeyChange,
    kubernetes::node_keys::{KeyRecords, NODE_KEYS, parse},
    steps::ObjectEvent,
};

use super::{context::Context, events::publish_node_event};
use crate::kubernetes::save_node_keys::save;

/// The pause between two writes. Two agents of one name would write without end.
const PAUSE: Duration = Duration::from_secs(1);

/// The pause after a failed write.
const RETRY: Duration = Duration::from_secs(10);

/// Records reported keys, indefinitely.
pub async fn record_node_keys(context: &Context, namespace: &str) {
    let (mut is_failing, mut reported) = (false, BTreeMap::new());
    loop {
        report_invalid(context, &mut reported).await;
        match record(context, namespace, &mut is_failing).await {
            Some(pause) => tokio::time::sleep(pause).await,
            None => context.key_reports().notified().await,
        }
    }
}

/// Publishes an Event for each node whose entry is invalid, once per problem, if that prevents the
/// use of its key.
async fn report_invalid(context: &Context, reported: &mut BTreeMap<String, String>) {
    let entries = {
        let fleet = context.fleet();
        if fleet.requires_known_keys() { fleet.key_entries() } else { return }
    };
    let invalid = &entries.invalid;
    reported.retain(|name, why| invalid.get(name) == Some(why));
    for (name, why) in invalid {
        let (name, why) = (name.clone(), why.clone());
        let Some(node) = context.caches().node(&name).filter(|_| !reported.contains_key(&name))
        else {
            continue;
        };
        let text = format!(
            "the entry of node {name} in ConfigMap {NODE_KEYS} is invalid: {why}; no key of the node is used; correct the entry: kubectl neptune trust {name} --pin PIN"
        );
        publish_node_event(&node, ObjectEvent::warning("NodeKeyInvalid", text), context).await;
        reported.insert(name, why);
    }
}

/// Returns the pause before the next write; `None` if nothing had to be written.
async fn record(context: &Context, namespace: &str, is_failing: &mut bool) -> Option<Duration> {
    let changes = context.fleet().key_changes();
    let caches = context.caches();
    let changes: Vec<KeyChange> =
        changes.into_iter().filter(|change| caches.has_node(&change.node)).collect();
    if changes.is_empty() {
        return None;
    }
    let entries: KeyRecords =
        changes.iter().map(|change| (change.node.clone(), change.record.clone())).collect();
    let held = caches.node_keys.state().into_iter().next();
    let version = held.and_then(|held| held.resource_version());
    match save(context.client(), namespace, version.as_deref(), &entries).await {
        Ok(()) => {
            for change in changes {
                let node = caches.node(change.node.as_str());
                let Some((node, text)) = node.zip(change.note) else { continue };
                tracing::warn!(node = %change.node, "{text}");
                let event = ObjectEvent::warning("NodeKeyChanged", text);
                publish_node_event(&node, event, context).await;
            }
            *is_failing = false;
            Some(PAUSE)
        }
        // The watch brings the other write.
        Err(error) if error.class() == Class::Conflict => Some(PAUSE),
        Err(error) => {
            if !std::mem::replace(is_failing, true) {
                tracing::warn!(%error, "cannot record keys of nodes; retrying");
            }
            Some(RETRY)
        }
    }
}

impl Context {
    /// Uses the recorded keys of the cache, and updates the rosters and objects of nodes whose record
    /// changed.
    pub fn load_node_keys(&self) {
        let held = self.caches().node_keys.state().into_iter().next();
        let entries = Arc::new(parse(held.as_deref()));
        let before = self.fleet().key_entries();
        for (name, why) in &entries.invalid {
            if before.invalid.get(name) != Some(why) {
                tracing::warn!("ConfigMap {NODE_KEYS}: entry {name} is invalid: {why}");
            }
        }
        // Compared before the lock: reports of nodes must not wait for it.
        let changed = before.changed(&entries);
        self.fleet().set_key_entries(entries, &changed);
        if changed.is_empty() {
            return;
        }
        for node in &changed {
            self.update_peer(node);
            self.enqueue_node(node);
        }
        self.key_reports().notify_one();
    }
}
