//! The node's workers: their messages and counters, their health, and the reloads of their models.

use std::{collections::BTreeMap, time::Instant};

use jiff::Timestamp;
use neptune_link::{Link, Message};
use neptune_wire::{ObjectKey, Resource, TopicPrefix, WorkerModel, WorkerName};
use tracing::{error, info, warn};

use super::{
    containers::Containers,
    desired_state::DesiredState,
    dropped::DroppedMessages,
    model_reloads::{ModelReloads, ReloadContext},
};
use crate::{
    artifacts::models::Models,
    desired::WantedWorker,
    domain::health::{WorkerHealth, is_transient},
    storage::Store,
    worker::{
        container::model_url,
        counts::Counts,
        message::{MessageContext, MessageError, parse},
        model_reports::{KnownModel, resolve},
        pending_messages::PendingMessages,
        reload::ReloadDecision,
    },
};

/// The state of the node's workers.
pub struct WorkerPool {
    pub counts: Counts,
    pub reloads: ModelReloads,
    /// Messages of workers whose containers no observation includes yet.
    pub pending: PendingMessages,
    health: BTreeMap<WorkerName, WorkerHealth>,
}

/// The state of other parts that the handling of a worker's message reads.
pub struct NodeView<'a> {
    pub prefix: &'a TopicPrefix,
    pub desired: &'a DesiredState,
    pub containers: &'a Containers,
    pub models: &'a Models,
}

impl WorkerPool {
    /// `link` is the connection to the workers' broker.
    pub fn new(counts: Counts, link: Link, prefix: TopicPrefix) -> Self {
        Self {
            counts,
            reloads: ModelReloads::new(link, prefix),
            pending: PendingMessages::default(),
            health: BTreeMap::new(),
        }
    }

    pub fn health(&self) -> &BTreeMap<WorkerName, WorkerHealth> {
        &self.health
    }

    /// Replaces the health of all workers, and logs the changes.
    pub fn set_health(&mut self, health: BTreeMap<WorkerName, WorkerHealth>) {
        log_changes(&self.health, &health);
        self.health = health;
    }

    /// As [`ModelReloads::decide`].
    pub fn decide_reloads(
        &mut self,
        node: &ReloadContext<'_>,
        containers: &mut Containers,
        now: Instant,
    ) -> BTreeMap<WorkerName, ReloadDecision> {
        self.reloads.decide(node, &self.counts, containers, now)
    }

    /// Records the counters and models that a worker reports. Returns whether the plan may change.
    pub fn on_message(
        &mut self,
        message: &Message,
        node: &NodeView<'_>,
        dropped: &mut DroppedMessages,
        wall: Timestamp,
    ) -> bool {
        let known = MessageContext {
            desired: &node.desired.desired,
            containers: node.containers.observer.latest().ok().map(|(containers, _)| containers),
            counts: &self.counts,
        };
        let parsed = match parse(message, node.prefix, &known) {
            Ok(parsed) => parsed,
            // The message can arrive before the engine reports the container.
            Err(MessageError::NoContainer { worker, .. })
                if node.containers.may_appear(&worker) =>
            {
                if let Some(oldest) = self.pending.push(message.clone()) {
                    let why = "too many messages wait for the observation of their containers";
                    dropped.add_from_worker(&oldest.topic, &why);
                }
                return false;
            }
            Err(why) => {
                dropped.add_from_worker(&message.topic, &why);
                return false;
            }
        };
        let wanted = parsed.wanted;
        let counts = parsed.counts.as_ref().map(|(run, counters)| (run.as_str(), *counters));
        self.counts.observe(&wanted.owner, &wanted.uid, &parsed.worker, &parsed.info, counts);
        let (rejected, needs_plan) = match parsed.models {
            Ok(models) => {
                let container = parsed.container.unwrap_or_default();
                let rejected = self.record_models(wanted, container, models, node, wall);
                // The worker may have loaded the requested version.
                (rejected, self.reloads.is_requested(&wanted.worker.name))
            }
            Err(why) => (vec![why.to_string()], false),
        };
        for why in rejected {
            dropped.add_from_worker(&message.topic, &why);
        }
        needs_plan
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
            let key = ObjectKey {
                namespace: wanted.owner.namespace.clone(),
                resource: Resource::Models,
                name: model.name.clone().unwrap_or_else(|| wanted.worker.model.clone()),
            };
            let Some(object) = node.desired.replica.objects().get(&key) else {
                rejected.push(format!("output.models: {key} not found on this node"));
                continue;
            };
            let available = node.models.availability().get(&key);
            let usable = available.and_then(|available| available.usable.as_ref());
            let context = &node.containers.executor.context;
            let path = usable
                .filter(|_| key == wanted.model)
                .map(|model| model_url(wanted, model, context));
            let (url, sha256) = node.models.source_in_use(&key).unwrap_or_default();
            let known_model = KnownModel {
                name: &key.name,
                uid: &object.content.metadata.uid,
                format: object.content.model.as_deref().map_or("", |model| &model.format),
                url,
                sha256,
                path: path.as_deref(),
            };
            let known = self.counts.reported_models(&wanted.uid, worker);
            let reported = resolve(model, &known_model, container, known);
            self.counts.record_model(&wanted.uid, worker, reported, wall);
        }
        rejected
    }

    /// Stores the counters that changed.
    pub fn save_counts(&mut self, store: &mut Store) {
        if self.counts.is_saved() {
            return;
        }
        match store.save_counts(self.counts.unsaved()) {
            Ok(()) => self.counts.mark_saved(),
            // They stay in memory, and the next turn stores them.
            Err(error) => error!(%error, "failed to store counters; retrying"),
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
