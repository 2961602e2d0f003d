//! The session with the cloud: heartbeats, syncs, reports, and the statuses of removed objects that
//! are still to be cleared.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use neptune_wire::{ObjectKey, Replica, Revision, Topic, TopicPrefix, replica::ReplicaChange};
use tokio::sync::mpsc;
use tracing::{error, warn};

use super::desired_state::DesiredState;
use crate::{
    config::Config,
    desired::resync::Resync,
    event::AgentEvent,
    random::random,
    report::{
        own_address::own_address,
        publisher::Publisher,
        reporter::{ObjectStatus, Reporter},
    },
    storage::Store,
};

/// Until reports that could not be stored are due again.
const STORE_RETRY: Duration = Duration::from_secs(30);
/// An address that no machine has (RFC 5737), behind the default route.
const BEYOND_DEFAULT_ROUTE: (&str, u16) = ("192.0.2.1", 9);

/// The session with the cloud.
pub struct CloudSession {
    pub publisher: Publisher,
    pub resync: Resync,
    pub is_up: bool,
    pub heartbeat_at: Option<Instant>,
    heartbeat: Duration,
    prefix: TopicPrefix,
    reporter: Reporter,
    report_at: Option<Instant>,
    /// Removed objects whose retained status the broker may still have.
    pending_clears: BTreeSet<ObjectKey>,
    address: Option<String>,
    lookup: AddressLookup,
}

/// How the agent finds the address at which the node is reached.
#[derive(Debug, Clone)]
pub struct AddressLookup {
    advertised: Option<String>,
    /// The address is the local one of the route to this host.
    host: String,
    port: u16,
}

impl AddressLookup {
    pub fn new(config: &Config) -> Self {
        // The node's own broker shows nothing of how the node is reached.
        let (host, port) = match config.event_bus {
            Some(_) => BEYOND_DEFAULT_ROUTE,
            None => (config.mqtt_url.host(), config.mqtt_url.port()),
        };
        Self { advertised: config.advertise.clone(), host: host.to_owned(), port }
    }

    async fn find(self) -> Option<String> {
        match self.advertised {
            Some(address) => Some(address),
            None => own_address(&self.host, self.port).await.map(|address| address.to_string()),
        }
    }
}

impl CloudSession {
    pub fn new(
        publisher: Publisher,
        reporter: Reporter,
        pending_clears: BTreeSet<ObjectKey>,
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
            lookup: AddressLookup::new(config),
        }
    }

    /// Looks up the node's address. [`AgentEvent::OwnAddress`] follows.
    pub fn find_address(&self, events: &mpsc::Sender<AgentEvent>) {
        let (lookup, events) = (self.lookup.clone(), events.clone());
        tokio::spawn(async move {
            let _ = events.send(AgentEvent::OwnAddress(lookup.find().await)).await;
        });
    }

    /// The link came up: publishes everything again, since messages may have been lost.
    pub fn on_connected(
        &mut self,
        address: Option<String>,
        replica: &Replica,
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
        self.publisher.publish_sync(replica);
        self.resync.on_connected(now, random());
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

    /// Over `EventBus` nothing confirms that a message arrived: the cloud repeats its index until a
    /// sync confirms it. A cloud that has just started sends an index, too, and knows nothing of
    /// this node yet.
    pub fn acknowledge(&mut self, topic: &str, before: (Revision, bool), desired: &DesiredState) {
        let now = desired.progress();
        let is_index = matches!(Topic::parse(&self.prefix, topic), Ok(Topic::Index(_)));
        if is_index {
            self.publisher.republish_all();
        }
        // Objects of a new index may be on their way; a later sync requests the missing ones.
        let is_repeated = is_index && now.0 == before.0;
        if is_repeated || now.1 && now != before {
            self.publisher.publish_sync(&desired.replica);
        }
    }

    pub fn publish_heartbeat(&mut self, engine: Option<&str>, now: Instant) {
        if self.heartbeat_at.is_some_and(|at| at <= now) {
            self.publisher.publish_online(self.address.clone(), engine.map(str::to_owned));
            self.heartbeat_at = Some(now + self.heartbeat);
        }
    }

    pub fn publish_sync_if_due(&mut self, replica: &Replica, now: Instant, random: u64) {
        if self.resync.is_due(replica.is_complete(), now, random) {
            self.publisher.publish_sync(replica);
        }
    }

    /// Publishes the reports that are due.
    pub fn publish_reports(
        &mut self,
        objects: &[ObjectStatus<'_>],
        store: &mut Store,
        now: Instant,
    ) {
        let due = self.reporter.due(objects, now, Timestamp::now());
        self.report_at = due.wake_at;
        if due.reports.is_empty() {
            return;
        }
        // First the disk, then the broker: a count that the cloud has seen never decreases.
        if let Err(error) = store.sync() {
            error!(%error, "counters cannot be stored; nothing is reported");
            self.reporter.resend_all();
            self.report_at = Some(now + STORE_RETRY);
            return;
        }
        for (key, report) in &due.reports {
            self.publisher.publish_status(key, report);
        }
    }

    /// Clears the status of removed objects; an object that is there again needs no clearing.
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

    /// Publishes the pending clears. [`AgentEvent::ClearsPublished`] follows.
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

    /// The broker has cleared these.
    pub fn on_clears_published(&mut self, keys: &BTreeSet<ObjectKey>, store: &mut Store) {
        let cleared: BTreeSet<_> = keys.intersection(&self.pending_clears).cloned().collect();
        self.pending_clears.retain(|key| !cleared.contains(key));
        if let Err(error) = store.delete_pending_clears(&cleared) {
            // They are published again after the next start.
            warn!(%error, "farewells stay stored");
        }
    }

    /// When the session has something to publish next.
    pub fn wake_times(&self) -> [Option<Instant>; 3] {
        [self.report_at, self.heartbeat_at, self.resync.wake_at()]
    }
}
