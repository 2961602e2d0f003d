//! Keeps the `EdgeNodes`: creates that of a Node whose agent connects, records the keys that nodes
//! report, and writes what their agents report. What a status has is decided by `nodes::status`,
//! and when it is written by `pace`.

mod migrate;
mod pace;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kube::ResourceExt as _;
use neptune_api::{EdgeNode, EdgeNodeSpec, EdgeNodeStatus};
use neptune_cloud_kinds::{
    error_class::Class,
    fleet::Presence,
    nodes::{
        keys::KeyChange,
        status::{Difference, NodeObservation, difference, next_status},
    },
    steps::ObjectEvent,
};
use neptune_wire::NodeName;
use serde_json::{Value, json};

use self::{migrate::migrate, pace::StatusPace};
use crate::{
    controllers::runtime::{Context, merge_patch, publish_event_about},
    error::Error,
    kubernetes::edge_node_writes::{create, patch_status},
};

/// The pause after each write: at most 35 per second, which are 64 KiB. A new `EdgeNode` is two.
const PAUSE: Duration = Duration::from_millis(28);

/// The size of an `EdgeNode` that a write is charged for.
const BYTES: usize = 1800;

/// The pause after a write that was refused because the object changed, or while other writes
/// precede it.
const AGAIN: Duration = Duration::from_secs(1);

/// The pause after a failed write.
const RETRY: Duration = Duration::from_secs(10);

/// Writes `EdgeNodes`, indefinitely. `namespace` is that of the controller.
pub async fn write_edge_nodes(context: &Context, namespace: &str) {
    migrate(context, namespace).await;
    let mut writer =
        Writer { context, pace: StatusPace::default(), is_failing: false, awaits_settling: true };
    loop {
        writer.observe_changed();
        let count = writer.write_next().await;
        if count > 0 {
            tokio::time::sleep(PAUSE * count).await;
        } else {
            tokio::select! {
                () = context.key_reports().notified() => {}
                () = tokio::time::sleep(writer.until_due()) => {}
            }
        }
    }
}

struct Writer<'a> {
    context: &'a Context,
    pace: StatusPace,
    is_failing: bool,
    /// Whether nodes that have not reported may still do so, because this controller has just
    /// started.
    awaits_settling: bool,
}

/// What a node's `EdgeNode` should have.
struct Desired {
    object: Option<Arc<EdgeNode>>,
    difference: Difference,
    previous: EdgeNodeStatus,
    next: EdgeNodeStatus,
    key_change: Option<KeyChange>,
}

impl Writer<'_> {
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn until_due(&self) -> Duration {
        /// The time after which changes are seen that nobody is notified about.
        const TICK: Duration = Duration::from_secs(1);
        let due = self.pace.next_due();
        due.map_or(TICK, |due| due.saturating_duration_since(Instant::now()).min(TICK))
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn observe_changed(&mut self) {
        let mut changed = self.context.fleet().take_changed_nodes();
        let settled_at = self.context.fleet().settled_at();
        if self.awaits_settling && self.context.fleet_now() >= settled_at {
            self.awaits_settling = false;
            let objects = self.context.caches().nodes.edge_nodes();
            changed.extend(objects.iter().filter_map(|object| object.name_any().parse().ok()));
        }
        for node in changed {
            let next = self.desired(&node).map(|desired| (desired.difference, desired.next));
            self.pace.observe(&node, next, Instant::now());
        }
    }

    /// What to write of a node; `None` if nothing changes, or the node has no `EdgeNode` and needs
    /// none.
    fn desired(&self, node: &NodeName) -> Option<Desired> {
        let nodes = &self.context.caches().nodes;
        let object = nodes.edge_node(node.as_str());
        let is_revoked = object.as_ref().is_some_and(|object| object.spec.revoked);
        let previous = object.as_ref().and_then(|object| object.status.clone()).unwrap_or_default();
        let (fleet_now, generation) = (
            self.context.fleet_now(),
            object.as_ref().and_then(|object| object.metadata.generation),
        );
        let (observed, key_change) = {
            let fleet = self.context.fleet();
            let online = match fleet.presence(node) {
                Presence::Online => Some(true),
                Presence::Offline { .. } => Some(false),
                Presence::NeverSeen if fleet_now >= fleet.settled_at() => {
                    previous.online.map(|_| false)
                }
                Presence::NeverSeen => None,
            };
            if object.is_none() && (online != Some(true) || !nodes.has_node_object(node)) {
                return None;
            }
            let (change, record) = (fleet.key_change(node), fleet.key_record(node));
            let (seen, waiting) = match &change {
                Some(change) => (change.seen.clone(), change.waiting.clone()),
                None => (record.seen, record.waiting),
            };
            let observed = NodeObservation {
                online,
                is_revoked,
                details: fleet.details(node).cloned(),
                address: fleet.address(node).map(str::to_owned),
                key: fleet.node_key(node),
                seen,
                waiting,
                sealing: fleet.next_sealing(node),
            };
            (observed, change)
        };
        let next = next_status(&previous, &observed, generation, Context::wall_now());
        let difference = difference(&previous, &next)?;
        Some(Desired { object, difference, previous, next, key_change })
    }

    /// Writes the next status that is due. Returns the number of writes; 0 if none is due.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    async fn write_next(&mut self) -> u32 {
        let Some((node, kind)) = self.pace.pop(Instant::now()) else { return 0 };
        if kind == Difference::Rest && !self.context.take_spare_write(BYTES) {
            self.pace.defer_rest(Instant::now() + AGAIN);
            self.pace.defer(&node, Instant::now());
            return 0;
        }
        let Some(desired) = self.desired(&node) else {
            self.pace.observe(&node, None, Instant::now());
            return 0;
        };
        let count = if desired.object.is_some() { 1 } else { 2 };
        match self.write(&node, &desired).await {
            Ok(()) => {
                self.is_failing = false;
                self.pace.written(&node, Instant::now());
                self.publish(&node, desired.key_change).await;
            }
            // The watch brings the other write.
            Err(error) if error.class() == Class::Conflict => {
                self.pace.defer(&node, Instant::now() + AGAIN);
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(%error, "cannot write EdgeNodes; retrying");
                }
                self.pace.defer(&node, Instant::now() + RETRY);
            }
        }
        count
    }

    async fn write(&self, node: &NodeName, desired: &Desired) -> Result<(), Error> {
        let client = self.context.client();
        let version = if let Some(object) = &desired.object {
            object.resource_version()
        } else {
            let spec = EdgeNodeSpec { requires_node: true, ..EdgeNodeSpec::default() };
            create(client, node, spec).await?.resource_version()
        };
        let value = |status: &EdgeNodeStatus| json!(status);
        let has_status = desired.object.as_ref().is_some_and(|object| object.status.is_some());
        let before = if has_status { value(&desired.previous) } else { Value::Null };
        let status = merge_patch(&before, &value(&desired.next));
        patch_status(client, node, version, status).await
    }

    async fn publish(&self, node: &NodeName, change: Option<KeyChange>) {
        let Some((reason, text)) = change.and_then(|change| change.event) else { return };
        tracing::warn!(%node, "{text}");
        if let Some(regarding) = self.context.caches().nodes.reference(node.as_str()) {
            publish_event_about(regarding, ObjectEvent::warning(reason, text), self.context).await;
        }
    }
}
