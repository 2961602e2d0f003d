//! The agent's ear and voice to the cloud: what it takes from there, and what it says when.

use std::{collections::BTreeSet, time::Instant};

use jiff::Timestamp;
use neptune_link::Message;
use neptune_wire::{
    ObjectKey, Replica, Resource, Revision, Topic, WorkerName, WorkerReason, WorkerState,
    replica::ReplicaChange,
};
use tracing::{error, info, warn};

use super::{Agent, Event, STORE_AGAIN, State};
use crate::{
    counts::Counts,
    datasets::Datasets,
    depot::Depot,
    desired::desired,
    dice::dice,
    downstream::{Received, receive},
    model::Models,
    plan::Health,
    report::Subject,
    upstream::own_address,
};

/// An address of no machine (RFC 5737), behind the default route.
const FAR_AWAY: &str = "192.0.2.1";

impl Agent {
    pub(super) fn downstream(&mut self, message: &Message) {
        let (node, prefix) = (&self.config.node, &self.config.prefix);
        let before = self.holds();
        match receive(message, node, prefix, &mut self.replica, &mut self.store) {
            Ok(Received::Changed(changes)) => self.replica_changed(&changes),
            Ok(Received::Known) => {}
            Ok(Received::OlderIndex) => self.state.resync.nudge(),
            Ok(Received::Rejected(why)) => {
                return self.state.rejected.add_from_cloud(&message.topic, &why);
            }
            // The object is still missing, so that a sync asks for it again.
            Err(error) => {
                error!(%error, topic = message.topic, "desired state cannot be stored; it is asked for again");
            }
        }
        if self.upstream.bus.is_some() {
            self.answer(&message.topic, before);
        }
    }

    /// The newest index, and whether this node has all of it.
    fn holds(&self) -> (Revision, bool) {
        (self.replica.index().revision, self.replica.is_complete())
    }

    /// Over `EventBus` nobody is told that a message arrived: the cloud repeats its index until a sync
    /// tells that it did. An index also comes of a cloud that has just started and knows nothing of this node.
    fn answer(&mut self, topic: &str, before: (Revision, bool)) {
        let now = self.holds();
        let is_index = matches!(Topic::parse(&self.config.prefix, topic), Ok(Topic::Index(_)));
        if is_index {
            self.upstream.again();
        }
        // What is missing of a new index may be on its way, and is asked for a little later.
        let is_repeated = is_index && now.0 == before.0;
        if is_repeated || now.1 && now != before {
            self.upstream.sync(&self.replica);
        }
    }

    pub(super) fn replica_changed(&mut self, changes: &[ReplicaChange]) {
        let mut gone = BTreeSet::new();
        for change in changes {
            match change {
                ReplicaChange::Set(key) => {
                    info!(object = %key, revision = %self.replica.objects()[key].revision, "object received");
                    self.farewells.remove(key);
                    self.counts
                        .forget(key, Some(&self.replica.objects()[key].content.metadata.uid));
                }
                ReplicaChange::Removed(key) => {
                    info!(object = %key, "object removed");
                    self.counts.forget(key, None);
                    gone.insert(key.clone());
                }
                ReplicaChange::Renewed(_) | ReplicaChange::Index => {}
            }
        }
        if !gone.is_empty() {
            self.farewells.append(&mut gone);
            self.say_farewells();
        }
        self.desired_changed();
    }

    pub(super) fn desired_changed(&mut self) {
        self.state.desired = desired(&self.replica);
        self.models.set(&self.state.desired.models);
        self.datasets.set(&self.state.desired.datasets, &self.store);
        self.servers_changed();
    }

    pub(super) fn report(&mut self, now: Instant) {
        let Self { replica, state, counts, models, datasets, depot, reporter, .. } = self;
        let subjects = subjects(replica, state, counts, (models, datasets), depot);
        let due = reporter.due(&subjects, now, Timestamp::now());
        self.state.report_at = due.wake_at;
        if due.reports.is_empty() {
            return;
        }
        // What the cloud sees never goes back: first the disk, then the broker.
        if let Err(error) = self.store.sync() {
            error!(%error, "counters cannot be stored; nothing is reported");
            self.reporter.forget();
            self.state.report_at = Some(now + STORE_AGAIN);
            return;
        }
        for (key, report) in &due.reports {
            self.upstream.status(key, report);
        }
    }

    pub(super) fn find_address(&mut self) {
        let (events, advertise) = (self.executor.events.clone(), self.config.advertise.clone());
        let url = &self.config.mqtt_url;
        // The node's own broker tells nothing of how the node is reached.
        let (host, port) = match self.config.event_bus {
            Some(_) => (FAR_AWAY.to_owned(), 9),
            None => (url.host().to_owned(), url.port()),
        };
        tokio::spawn(async move {
            let address = match advertise {
                Some(address) => Some(address),
                None => own_address(&host, port).await.map(|address| address.to_string()),
            };
            let _ = events.send(Event::Address(address)).await;
        });
    }

    /// The link to the cloud came up: everything is said anew, since nobody knows what was lost.
    pub(super) fn greet(&mut self, address: Option<String>, now: Instant) {
        self.state.is_up = self.upstream.link.is_up();
        self.state.address = address;
        if !self.state.is_up {
            return;
        }
        self.state.heartbeat_at = Some(now);
        self.heartbeat(now);
        self.upstream.sync(&self.replica);
        self.state.resync.sent_on_connecting(now, dice());
        self.upstream.again();
        self.reporter.forget();
        self.say_farewells();
    }

    pub(super) fn cloud_lost(&mut self) {
        self.state.is_up = false;
        self.state.heartbeat_at = None;
        self.state.report_at = None;
        self.state.resync.down();
    }

    pub(super) fn heartbeat(&mut self, now: Instant) {
        if self.state.heartbeat_at.is_some_and(|at| at <= now) {
            self.upstream
                .online(self.state.address.clone(), self.state.engine.version().map(str::to_owned));
            self.state.heartbeat_at = Some(now + self.config.heartbeat);
        }
    }

    pub(super) fn say_farewells(&mut self) {
        if self.farewells.is_empty() {
            return;
        }
        self.upstream.farewells(&self.farewells);
        let (events, link, keys) =
            (self.executor.events.clone(), self.upstream.link.clone(), self.farewells.clone());
        tokio::spawn(async move {
            link.flushed().await;
            let _ = events.send(Event::FarewellsSaid(keys)).await;
        });
    }

    pub(super) fn farewells_said(&mut self, keys: &BTreeSet<ObjectKey>) {
        let said: BTreeSet<_> = keys.intersection(&self.farewells).cloned().collect();
        self.farewells.retain(|key| !said.contains(key));
        if let Err(error) = self.store.farewells_said(&said) {
            // They are said once more after the next start.
            warn!(%error, "farewells stay stored");
        }
    }
}

fn subjects<'a>(
    replica: &'a Replica,
    state: &State,
    counts: &Counts,
    (models, datasets): (&Models, &Datasets),
    depot: &Depot,
) -> Vec<Subject<'a>> {
    let objects = replica.objects().iter().filter(|(key, held)| {
        let is_model = key.resource == Resource::Models;
        let is_served = held.content.serving.is_some();
        let is_counted = key.resource == Resource::Datasets;
        is_model || is_served || is_counted || !held.content.workers.is_empty()
    });
    let subject = |(key, held): (&'a ObjectKey, &'a neptune_wire::replica::StoredObject)| {
        let uid = &held.content.metadata.uid;
        let workers = held.content.workers.iter().map(|worker| {
            let clash = state
                .desired
                .clashes
                .iter()
                .find(|(owner, clashing, _)| owner == key && clashing.name == worker.name);
            let health = match clash {
                Some((_, _, other)) => clashes(&worker.name, other),
                None => state.health.get(&worker.name).cloned().unwrap_or_else(unknown),
            };
            (health, counts.status(uid, &worker.name).to_owned())
        });
        let serving = state.servers.get(key).map(|server| server.status.clone());
        Subject {
            key,
            held,
            workers: workers.collect(),
            total: counts.total(uid),
            serving,
            outputs: counts.models(uid),
            model: models.presence(key, depot),
            dataset: datasets.status(key).cloned(),
        }
    };
    objects.map(subject).collect()
}

fn clashes(worker: &WorkerName, other: &ObjectKey) -> Health {
    Health {
        state: WorkerState::Failed,
        reason: Some(WorkerReason::ContainerRefused),
        message: format!(
            "{other} has a worker named {worker} on this node already; delete or rename one of the two objects"
        ),
        restarts: 0,
    }
}

fn unknown() -> Health {
    Health {
        state: WorkerState::Pending,
        reason: Some(WorkerReason::Starting),
        message: String::new(),
        restarts: 0,
    }
}
