//! The node's workers: their messages and counters, their health, and the reloads of their models.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    path::Path,
    time::Instant,
};

use jiff::Timestamp;
use neptune_agent_core::{
    desired::{Desired, WantedWorker},
    domain::{
        health::{WorkerHealth, is_transient},
        observed_container::ObservedContainer,
    },
    gateway::report_paths::on_node,
    worker::{
        container::model_url,
        counts::Counts,
        gateway_reports::GatewayReports,
        message::{MessageContext, MessageError, WorkerCounters, parse},
        model_reports::{KnownModel, resolve},
        reload::ReloadDecision,
    },
};
use neptune_link::{Link, Message};
use neptune_wire::{
    AgentInstance, ObjectKey, RejectedMessages, Resource, Role, Topic, TopicPrefix, WorkerModel,
    WorkerName, replica::ReplicaChange,
};
use tracing::{info, warn};

use super::{
    containers::Containers,
    desired_state::DesiredState,
    dropped::DroppedMessages,
    model_reloads::{ModelReloads, ReloadContext},
};
use crate::{agent::pending_messages::PendingMessages, artifacts::models::Models, storage::Store};

/// Maximum length of the reason of a rejected message in a report.
const MAX_REASON_CHARS: usize = 256;

/// The state of the node's workers.
pub struct WorkerPool {
    pub counts: Counts,
    /// What gateways report in their present runs.
    pub gateways: GatewayReports,
    pub reloads: ModelReloads,
    /// Messages of workers whose containers no observation includes yet.
    pub pending: PendingMessages,
    health: BTreeMap<WorkerName, WorkerHealth>,
    /// Identifies this boot of the machine.
    pub(super) boot_id: String,
    /// Workers of removed objects, until their containers are removed.
    departed: BTreeMap<WorkerName, WantedWorker>,
    /// The rejected messages of desired workers since the start of the agent.
    rejected: BTreeMap<WorkerName, RejectedMessages>,
}

/// What follows from a message of a worker.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct MessageEffect {
    /// The plan may change.
    pub needs_plan: bool,
    /// Totals changed that only a sync reports.
    pub needs_sync: bool,
}

/// What a message of the cloud removed from this node.
#[derive(Debug)]
pub struct RemovedObjects {
    pub keys: BTreeSet<ObjectKey>,
    /// Whether any of them has totals, which only a sync reports from now on.
    pub has_totals: bool,
}

/// The state of other parts that the handling of a worker's message reads.
pub struct NodeView<'a> {
    pub instance: &'a AgentInstance,
    pub prefix: &'a TopicPrefix,
    pub desired: &'a DesiredState,
    pub containers: &'a Containers,
    pub models: &'a Models,
    /// The node's directory of secrets.
    pub secret_dir: &'a Path,
}

impl WorkerPool {
    /// `link` is the connection to the workers' broker.
    pub fn new(counts: Counts, link: Link, prefix: TopicPrefix, boot_id: String) -> Self {
        Self {
            counts,
            gateways: GatewayReports::default(),
            reloads: ModelReloads::new(link, prefix),
            pending: PendingMessages::default(),
            health: BTreeMap::new(),
            boot_id,
            departed: BTreeMap::new(),
            rejected: BTreeMap::new(),
        }
    }

    /// Logs the changes and keeps the totals of removed objects. `desired`: not yet derived from the
    /// changed objects.
    pub fn on_changes(
        &mut self,
        changes: &[ReplicaChange],
        desired: &DesiredState,
    ) -> RemovedObjects {
        let has_totals = self.counts.on_changes(changes, &desired.replica);
        let mut removed = RemovedObjects { keys: BTreeSet::new(), has_totals };
        let workers_of = |key: &ObjectKey| {
            let key = key.clone();
            desired.desired.workers.values().filter(move |wanted| wanted.owner == key)
        };
        for change in changes {
            match change {
                ReplicaChange::Set(key) => {
                    let object = &desired.replica.objects()[key];
                    info!(object = %key, revision = %object.revision, "object received");
                    let uid = &object.content.metadata.uid;
                    self.on_removed(workers_of(key).filter(|wanted| wanted.uid != *uid));
                }
                ReplicaChange::Removed(key) => {
                    info!(object = %key, "object removed");
                    self.on_removed(workers_of(key));
                    removed.keys.insert(key.clone());
                }
                ReplicaChange::Renewed(_) | ReplicaChange::Index => {}
            }
        }
        removed
    }

    /// Keeps the workers of an object that is removed: their last messages count.
    fn on_removed<'a>(&mut self, workers: impl Iterator<Item = &'a WantedWorker>) {
        let named = workers.map(|wanted| (wanted.worker.name.clone(), wanted.clone()));
        self.departed.extend(named);
    }

    /// Drops the state of workers that are not desired and have no container.
    pub fn forget_unknown(&mut self, desired: &Desired, observed: &[ObservedContainer]) {
        let has_container = |name: &WorkerName, wanted: &WantedWorker| {
            observed.iter().any(|container| {
                container.identity.worker == *name && container.identity.uid == wanted.uid
            })
        };
        self.departed.retain(|name, wanted| has_container(name, wanted));
        self.rejected.retain(|name, _| desired.workers.contains_key(name));
    }

    /// The rejected messages of a worker, if any.
    pub fn rejected(&self, worker: &WorkerName) -> Option<&RejectedMessages> {
        self.rejected.get(worker)
    }

    pub fn health(&self) -> &BTreeMap<WorkerName, WorkerHealth> {
        &self.health
    }

    /// Replaces the health of all workers, and logs the changes.
    pub fn set_health(&mut self, health: BTreeMap<WorkerName, WorkerHealth>) {
        log_changes(&self.health, &health);
        self.health = health;
    }

    /// Decides the reloads of all workers with [`ModelReloads::decide`].
    pub fn decide_reloads(
        &mut self,
        node: &ReloadContext<'_>,
        containers: &mut Containers,
        now: Instant,
    ) -> BTreeMap<WorkerName, ReloadDecision> {
        self.reloads.decide(node, &self.counts, containers, now)
    }

    /// Records the counters and models that a worker reports.
    pub fn on_message(
        &mut self,
        message: &Message,
        node: &NodeView<'_>,
        dropped: &mut DroppedMessages,
        wall: Timestamp,
    ) -> MessageEffect {
        let known = MessageContext {
            instance: node.instance,
            desired: &node.desired.desired,
            departed: &self.departed,
            containers: node.containers.observer.latest().ok().map(|(containers, _)| containers),
            counts: &self.counts,
        };
        let parsed = match parse((&message.topic, &message.payload), node.prefix, &known) {
            Ok(parsed)
                if !parsed.is_departed
                    && parsed.may_be_of_newer_container(&self.counts)
                    && node.containers.may_appear(&parsed.worker) =>
            {
                self.hold(message, dropped);
                return MessageEffect::default();
            }
            Ok(parsed) => parsed,
            // The message can arrive before the engine reports the container.
            Err(MessageError::NoContainer { worker, .. })
                if node.containers.may_appear(&worker) =>
            {
                self.hold(message, dropped);
                return MessageEffect::default();
            }
            Err(why) => {
                self.reject(message, node, &why, dropped);
                return MessageEffect::default();
            }
        };
        let wanted = parsed.wanted.clone();
        let counts = parsed.counts.as_ref().map(WorkerCounters::report);
        let (worker, info) = (&parsed.worker, &parsed.info);
        let before = self.counts.status(&wanted.uid, worker).to_owned();
        let observed =
            self.counts.observe(&wanted.owner, &wanted.uid, worker, info, counts.as_ref());
        if let Err(why) = observed {
            self.reject(message, node, &why, dropped);
            return MessageEffect::default();
        }
        let is_same_status = before == self.counts.status(&wanted.uid, worker);
        let container = parsed.container.map_or_else(String::new, |it| it.id.clone());
        if wanted.worker.role == Role::Edge
            && let Some(report) = parsed.info.gateway.as_deref()
            && let Some(container) = parsed.container.filter(|it| it.is_alive())
        {
            let spec = wanted.worker.gateway.as_deref();
            let report = match spec {
                Some(spec) => on_node(report, spec, node.secret_dir),
                None => report.clone(),
            };
            self.gateways.set(&wanted.uid, worker, container.run_name(), report);
        }
        if parsed.is_departed {
            self.counts.set_departed(&wanted.uid);
            return MessageEffect { needs_sync: counts.is_some(), needs_plan: false };
        }
        let (rejected, needs_plan) = match parsed.models {
            Ok(models) => {
                let rejected = self.record_models(&wanted, &container, models, node, wall);
                // The worker may have loaded the requested version.
                (rejected, !is_same_status || self.reloads.is_requested(&wanted.worker.name))
            }
            Err(why) => (vec![why.to_string()], !is_same_status),
        };
        for why in rejected {
            self.reject(message, node, &why, dropped);
        }
        MessageEffect { needs_plan, needs_sync: false }
    }

    /// Keeps a message until the container of its worker is observed.
    fn hold(&mut self, message: &Message, dropped: &mut DroppedMessages) {
        if let Some(oldest) = self.pending.push(message.clone()) {
            let why = "too many messages wait for the observation of their containers";
            dropped.add_from_worker(&oldest.topic, &why);
        }
    }

    /// Counts a rejected message, also for the status of its worker.
    fn reject(
        &mut self,
        message: &Message,
        node: &NodeView<'_>,
        why: &impl Display,
        dropped: &mut DroppedMessages,
    ) {
        dropped.add_from_worker(&message.topic, why);
        let Ok(Topic::WorkerInfo(worker)) = Topic::parse(node.prefix, &message.topic) else {
            return;
        };
        if node.desired.desired.workers.contains_key(&worker) {
            let rejected = self.rejected.entry(worker).or_default();
            rejected.count += 1;
            rejected.reason = why.to_string().chars().take(MAX_REASON_CHARS).collect();
        }
    }

    /// Records the models that a worker reports. Returns a reason per rejected model.
    fn record_models(
        &mut self,
        wanted: &WantedWorker,
        container: &str,
        models: Vec<WorkerModel>,
        node: &NodeView<'_>,
        wall: Timestamp,
    ) -> Vec<String> {
        let worker = &wanted.worker.name;
        let mut rejected = Vec::new();
        for model in models {
            let own = wanted.model.as_ref();
            let Some(name) = model.name.clone().or_else(|| own.map(|key| key.name.clone())) else {
                rejected.push("output.models: name missing; the worker has no model".to_owned());
                continue;
            };
            let namespace = wanted.owner.namespace.clone();
            let key = ObjectKey { namespace, resource: Resource::Models, name };
            let Some(object) = node.desired.replica.objects().get(&key) else {
                rejected.push(format!("output.models: {key} not found on this node"));
                continue;
            };
            let available = node.models.availability().get(&key);
            let usable = available.and_then(|available| available.usable.as_ref());
            let context = &node.containers.executor.context;
            let path = usable
                .filter(|_| own == Some(&key))
                .map(|model| model_url(wanted, (&key, model), context));
            let (url, sha256) = node.models.source_in_use(&key).unwrap_or_default();
            let known_model = KnownModel {
                name: &key.name,
                uid: &object.content.metadata.uid,
                format: object.content.model.as_deref().map_or("", |model| &model.format),
                url: &url,
                sha256,
                path: path.as_deref(),
            };
            let known = self.counts.reported_models(&wanted.uid, worker);
            let reported = resolve(model, &known_model, container, known);
            self.counts.record_model(&wanted.uid, worker, reported, wall);
        }
        rejected
    }

    /// Stores the counters that changed. Those that cannot be stored stay in memory until writes
    /// succeed again; the store logs the problem.
    pub fn save_counts(&mut self, store: &mut Store) {
        if self.counts.is_saved() || store.is_failing() {
            return;
        }
        if store.save_counts(&self.counts.unsaved().collect::<Vec<_>>()).is_ok() {
            self.counts.mark_saved();
        }
    }
}

fn log_changes(
    before: &BTreeMap<WorkerName, WorkerHealth>,
    after: &BTreeMap<WorkerName, WorkerHealth>,
) {
    let changed = after.iter().filter(|(worker, health)| before.get(worker) != Some(health));
    for (worker, WorkerHealth { state, reason, message, restarts }) in changed {
        match reason {
            None => info!(%worker, ?state, restarts, message, "worker"),
            Some(reason) if is_transient(*reason) => {
                info!(%worker, ?state, ?reason, message, "worker health changed");
            }
            Some(reason) => warn!(%worker, ?state, ?reason, restarts, message, "worker"),
        }
    }
}
