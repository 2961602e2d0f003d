//! The session with the cloud: heartbeats, syncs, reports, and the retained statuses of removed
//! objects that must still be cleared.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use neptune_agent_core::{
    desired::resync::Resync,
    domain::worker_count::CountTotal,
    report::reporter::{ObjectStatus, Reporter},
    worker::counts::Counts,
};
use neptune_program::random::random;
use neptune_wire::{
    NodeProblem, ObjectKey, OfferedDevice, Replica, Revision, Topic, TopicPrefix,
    replica::ReplicaChange,
};
use tokio::sync::mpsc;
use tracing::warn;

use super::desired_state::DesiredState;
use crate::{
    config::Config,
    event::AgentEvent,
    report::{own_address::AddressLookup, publisher::CloudPublisher},
    storage::Store,
};

/// Minimum interval between two reports of other devices.
const DEVICES_INTERVAL: Duration = Duration::from_secs(1);

/// What was published to the cloud, and when to publish next.
pub struct CloudSession {
    pub publisher: CloudPublisher,
    pub resync: Resync,
    pub is_up: bool,
    /// When the next heartbeat is due; `None` while disconnected.
    pub heartbeat_at: Option<Instant>,
    heartbeat: Duration,
    prefix: TopicPrefix,
    reporter: Reporter,
    report_at: Option<Instant>,
    /// Removed objects whose retained status may still be on the broker.
    pending_clears: BTreeSet<ObjectKey>,
    address: Option<String>,
    lookup: AddressLookup,
    /// The problems of the node, which each heartbeat states.
    problems: Vec<NodeProblem>,
    /// When other devices were reported, the last time.
    devices_at: Option<Instant>,
    /// The totals that are durable, by UID: those that are reported while writes fail.
    durable: BTreeMap<String, CountTotal>,
}

impl CloudSession {
    pub fn new(
        publisher: CloudPublisher,
        reporter: Reporter,
        pending_clears: BTreeSet<ObjectKey>,
        durable: BTreeMap<String, CountTotal>,
        config: &Config,
    ) -> Self {
        Self {
            publisher,
            resync: Resync::default(),
            is_up: false,
            heartbeat_at: None,
            heartbeat: config.heartbeat,
            prefix: config.prefix.clone(),
            reporter,
            report_at: None,
            pending_clears,
            address: None,
            lookup: address_lookup(config),
            problems: Vec::new(),
            devices_at: None,
            durable,
        }
    }

    /// Starts the lookup of the node's address. [`AgentEvent::OwnAddress`] reports the result.
    pub fn find_address(&self, events: &mpsc::Sender<AgentEvent>) {
        let (lookup, events) = (self.lookup.clone(), events.clone());
        tokio::spawn(async move {
            let _ = events.send(AgentEvent::OwnAddress(lookup.find().await)).await;
        });
    }

    /// Publishes everything again after a reconnect, because messages may have been lost.
    pub fn on_connected(
        &mut self,
        address: Option<String>,
        replica: &Replica,
        (counts, store): (&Counts, &mut Store),
        engine: Option<&str>,
        events: &mpsc::Sender<AgentEvent>,
        now: Instant,
    ) {
        self.is_up = self.publisher.link.is_up();
        self.address = address;
        if !self.is_up {
            return;
        }
        self.heartbeat_at = Some(now);
        self.publish_heartbeat(engine, now);
        self.resync.on_connected(self.publisher.event_bus.is_some(), now, random());
        self.publish_sync(replica, counts, store);
        self.publisher.republish_all();
        self.reporter.resend_all();
        self.publish_clears(events);
    }

    pub fn on_disconnected(&mut self) {
        self.is_up = false;
        self.heartbeat_at = None;
        self.report_at = None;
        self.resync.on_disconnected();
    }

    /// Answers an index over `EventBus`, which confirms no delivery: the cloud repeats its index
    /// until a sync confirms it. A controller that has just started sends an index, too, and has no
    /// report of this node yet.
    pub fn acknowledge(
        &mut self,
        topic: &str,
        before: (Revision, bool),
        desired: &DesiredState,
        counts: &Counts,
        store: &mut Store,
    ) {
        let now = desired.progress();
        let is_index = matches!(Topic::parse(&self.prefix, topic), Ok(Topic::Index(_)));
        if is_index {
            self.resync.on_index();
            self.publisher.republish_all();
        }
        // Objects of a new index may still be in transit; a later sync requests the missing ones.
        let is_repeated = is_index && now.0 == before.0;
        if is_repeated || now.1 && now != before {
            self.publish_sync(&desired.replica, counts, store);
        }
    }

    /// Adapts batches and heartbeats to the size of the fleet, as the newest index states it.
    pub fn set_batch_seconds(&mut self, batch_seconds: Option<u32>, now: Instant) {
        if self.publisher.set_batch_seconds(batch_seconds) {
            self.heartbeat_at = self.heartbeat_at.map(|_| now);
        }
    }

    /// Sets the problems of the node. A change is published with a heartbeat.
    pub fn set_problems(&mut self, problems: Vec<NodeProblem>, now: Instant) {
        if self.problems != problems {
            self.problems = problems;
            self.heartbeat_at = self.heartbeat_at.map(|_| now);
        }
    }

    /// Sets the devices that the node offers. A change is published with a heartbeat, at most once per
    /// [`DEVICES_INTERVAL`].
    pub fn set_devices(&mut self, devices: Vec<OfferedDevice>, now: Instant) {
        if self.publisher.node.devices == devices {
            return;
        }
        self.publisher.node.devices = devices;
        let due = self.devices_at.map_or(now, |at| now.max(at + DEVICES_INTERVAL));
        self.devices_at = Some(due);
        self.heartbeat_at = self.heartbeat_at.map(|at| at.min(due));
    }

    pub fn problems(&self) -> &[NodeProblem] {
        &self.problems
    }

    pub fn publish_heartbeat(&mut self, engine: Option<&str>, now: Instant) {
        if self.heartbeat_at.is_some_and(|at| at <= now) {
            let (address, problems) = (self.address.clone(), self.problems.clone());
            self.publisher.publish_online(address, engine.map(str::to_owned), problems);
            self.heartbeat_at = Some(now + self.heartbeat);
        }
    }

    /// Publishes the sync that is due. Over a broker it repeats the status of every object: the
    /// broker may have dropped one on its way to the cloud.
    pub fn publish_sync_if_due(
        &mut self,
        replica: &Replica,
        counts: &Counts,
        store: &mut Store,
        now: Instant,
    ) {
        if !self.resync.is_due(replica.is_complete(), now, random()) {
            return;
        }
        self.publish_sync(replica, counts, store);
        if self.publisher.event_bus.is_none() {
            for (key, report) in self.reporter.repeated() {
                self.publisher.publish_status(key, report);
            }
        }
    }

    /// Publishes what the node has, and the totals of what it no longer has, after these are
    /// durable. The counts must be saved.
    pub fn publish_sync(&mut self, replica: &Replica, counts: &Counts, store: &mut Store) {
        let mut departed = counts.departed();
        // The store logs the problem. The totals are reported later.
        if !departed.is_empty() && (store.is_failing() || store.sync().is_err()) {
            departed.clear();
        }
        self.publisher.publish_sync(replica, departed, self.resync.requests_index());
    }

    /// Publishes the reports that are due, after their counters are durable. While the database
    /// cannot be written, reports have the last durable counters.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub fn publish_reports(
        &mut self,
        objects: &mut [ObjectStatus<'_>],
        store: &mut Store,
        now: Instant,
    ) {
        if store.is_failing() {
            for object in &mut *objects {
                let durable = self.durable.get(&object.object.content.metadata.uid);
                object.total = durable.cloned().unwrap_or_default();
            }
        }
        let due = self.reporter.due(objects, now, Timestamp::now());
        self.report_at = due.next_at;
        if due.reports.is_empty() {
            return;
        }
        // Counters are durable before they are published, so that a published count never
        // decreases. The store logs the problem.
        if !store.is_failing() {
            if store.sync().is_err() {
                self.reporter.resend_all();
                self.report_at = Some(now);
                return;
            }
            let totals = objects.iter().filter(|object| object.total.has_counted);
            let uid = |object: &ObjectStatus<'_>| object.object.content.metadata.uid.clone();
            self.durable = totals.map(|object| (uid(object), object.total.clone())).collect();
        }
        for (key, report) in &due.reports {
            self.publisher.publish_status(key, report);
        }
    }

    /// Clears the status of removed objects, except of those that were created again.
    pub fn clear_removed(
        &mut self,
        changes: &[ReplicaChange],
        mut removed: BTreeSet<ObjectKey>,
        events: &mpsc::Sender<AgentEvent>,
    ) {
        for change in changes {
            if let ReplicaChange::Set(key) = change {
                self.pending_clears.remove(key);
            }
        }
        if !removed.is_empty() {
            self.pending_clears.append(&mut removed);
            self.publish_clears(events);
        }
    }

    /// Publishes the pending clears. [`AgentEvent::ClearsPublished`] confirms the delivery.
    fn publish_clears(&mut self, events: &mpsc::Sender<AgentEvent>) {
        if self.pending_clears.is_empty() {
            return;
        }
        self.publisher.clear_status(&self.pending_clears);
        let (events, link, keys) =
            (events.clone(), self.publisher.link.clone(), self.pending_clears.clone());
        tokio::spawn(async move {
            link.flushed().await;
            let _ = events.send(AgentEvent::ClearsPublished(keys)).await;
        });
    }

    /// The broker has cleared the statuses of these objects.
    pub fn on_clears_published(&mut self, keys: &BTreeSet<ObjectKey>, store: &mut Store) {
        let cleared: BTreeSet<_> = keys.intersection(&self.pending_clears).cloned().collect();
        self.pending_clears.retain(|key| !cleared.contains(key));
        if let Err(error) = store.delete_pending_clears(&cleared) {
            // They are published again after the next start.
            warn!(%error, "failed to delete published status clears");
        }
    }

    /// When the session has something to publish next.
    pub fn next_times(&self) -> [Option<Instant>; 3] {
        [self.report_at, self.heartbeat_at, self.resync.next_at()]
    }
}

fn address_lookup(config: &Config) -> AddressLookup {
    let host = (config.mqtt_url.host(), config.mqtt_url.port());
    // The route to the node's own broker does not show the node's external address.
    AddressLookup::new(config.advertise.clone(), config.event_bus.is_none().then_some(host))
}
