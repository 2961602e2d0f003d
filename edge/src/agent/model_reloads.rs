//! Model reloads of running workers: decides with `worker/reload.rs`, publishes the version to load
//! on the local broker, and removes unused version directories.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Instant,
};

use neptune_agent_core::{
    desired::{Desired, WantedWorker},
    domain::{
        artifact::PlacedVersions,
        node_context::{NodeContext, WORKERS_DIR},
        observed_container::ObservedContainer,
    },
    worker::{
        container::{RunnableWorker, RunnableWorkers, worker_versions_dir},
        counts::Counts,
        reload::{RELOAD_TIMEOUT, ReloadDecision, ReloadFacts, ReloadState, decide},
    },
};
use neptune_link::{Link, LinkError, Message};
use neptune_wire::{
    ModelReload, ObjectKey, Replica, Topic, TopicPrefix, WorkerName, WorkerUpdateMode, encode,
};
use tracing::{info, warn};

use super::containers::Containers;
use crate::artifacts::{models::Models, version_directory};

/// The state of the reloads per worker.
pub struct ModelReloads {
    states: BTreeMap<WorkerName, ReloadState>,
    /// The last request for a reload that was published, per worker.
    last_sent: BTreeMap<WorkerName, ModelReload>,
    /// Directories that the last garbage collection retained.
    gc_kept: Option<BTreeSet<PathBuf>>,
    link: Link,
    prefix: TopicPrefix,
}

/// The state of other parts that the decisions read.
pub struct ReloadContext<'a> {
    pub desired: &'a Desired,
    pub replica: &'a Replica,
    pub resolved: &'a RunnableWorkers<'a>,
    pub models: &'a Models,
    pub context: &'a NodeContext,
}

impl ModelReloads {
    pub fn new(link: Link, prefix: TopicPrefix) -> Self {
        Self { states: BTreeMap::new(), last_sent: BTreeMap::new(), gc_kept: None, link, prefix }
    }

    /// Publishes all messages again, because the local broker may have lost its retained messages.
    pub fn resend_all(&mut self) {
        self.last_sent.clear();
    }

    /// Whether the worker was requested to load a version and has not confirmed it.
    pub fn is_requested(&self, worker: &WorkerName) -> bool {
        self.states.get(worker).is_some_and(|state| state.requested.is_some())
    }

    /// Records the versions that are in the worker's directory now.
    pub fn set_placed(&mut self, worker: &WorkerName, versions: &PlacedVersions) {
        if let Some(state) = self.states.get_mut(worker) {
            state.placed = Some(versions.clone());
        }
    }

    /// Decides for each worker that reloads models, and publishes the versions to load.
    pub fn decide(
        &mut self,
        node: &ReloadContext<'_>,
        counts: &Counts,
        containers: &mut Containers,
        now: Instant,
    ) -> BTreeMap<WorkerName, ReloadDecision> {
        let mut decisions = BTreeMap::new();
        let mut to_publish = Vec::new();
        for (name, wanted) in &node.desired.workers {
            let Some(Ok(worker)) = node.resolved.get(name) else { continue };
            let decision = self.decide_one((wanted, worker), node.context, counts, containers, now);
            let Some(decision) = decision else { continue };
            // The previous version, which is used until the desired one is on the node, was
            // published before.
            if decision.place.is_none() && worker.model_problem.is_none() {
                to_publish.extend(worker.model.as_ref().map(|model| (name, model.key, &model.url)));
            }
            decisions.insert(name.clone(), decision);
        }
        self.states.retain(|name, _| decisions.contains_key(name));
        for (worker, model, path) in to_publish {
            self.publish_version(worker, model, path, node);
        }
        self.clear_unwanted(node.desired);
        decisions
    }

    /// Decides for one worker; `None` if it does not reload.
    fn decide_one(
        &mut self,
        (wanted, worker): (&WantedWorker, &RunnableWorker<'_>),
        context: &NodeContext,
        counts: &Counts,
        containers: &mut Containers,
        now: Instant,
    ) -> Option<ReloadDecision> {
        let model = worker.model.as_ref()?;
        let target = model.version.clone()?;
        let name = &wanted.worker.name;
        let hash = &worker.container.hash;
        let running = containers.observed_of(name).find(|it| it.is_alive() && it.has_spec(hash));
        let reported = counts.reported_models(&wanted.uid, name).iter();
        let reported = reported.rev().find(|it| it.output.model == model.key.name);
        let model = (model.key, model.local);
        let facts = ReloadFacts { wanted, model, context, running, reported, now };
        let state = self.states.entry(name.clone()).or_default();
        let decision = decide(state, &facts, target);
        if state.target.as_ref().is_some_and(|before| *before != decision.target) {
            // The failures belong to the previous version.
            containers.attempts_of(name).reset_failures();
        }
        state.target = Some(decision.target.clone());
        state.requested.clone_from(&decision.requested);
        if decision.restart {
            let within = RELOAD_TIMEOUT.as_secs();
            warn!(worker = %name, within, "model reload not confirmed in time; restarting worker");
        }
        Some(decision)
    }

    fn publish_version(
        &mut self,
        worker: &WorkerName,
        model: &ObjectKey,
        path: &str,
        node: &ReloadContext<'_>,
    ) {
        let (Some(object), Some((url, sha256))) =
            (node.replica.objects().get(model), node.models.source_in_use(model))
        else {
            return;
        };
        let message = ModelReload {
            name: model.name.clone(),
            path: path.to_owned(),
            url,
            sha256: sha256.map(str::to_owned),
            revision: object.revision,
        };
        // A new revision with the same content changes nothing for the worker.
        let is_sent = self.last_sent.get(worker).is_some_and(|sent| {
            *sent == ModelReload { revision: sent.revision, ..message.clone() }
        });
        if is_sent {
            return;
        }
        info!(%worker, path = message.path, "model reload published");
        self.publish(worker, encode(&message));
        self.last_sent.insert(worker.clone(), message);
    }

    /// Clears the messages to workers that are no longer desired, or do not reload models.
    fn clear_unwanted(&mut self, desired: &Desired) {
        let reloads = |name: &WorkerName| {
            let update = desired.workers.get(name).map(|wanted| wanted.worker.model_update);
            update == Some(WorkerUpdateMode::Reload)
        };
        let unwanted: Vec<_> =
            self.last_sent.keys().filter(|name| !reloads(name)).cloned().collect();
        for worker in unwanted {
            self.publish(&worker, Vec::new());
            self.last_sent.remove(&worker);
        }
    }

    fn publish(&self, worker: &WorkerName, payload: Vec<u8>) {
        let topic = Topic::WorkerReload(worker.clone()).under(&self.prefix);
        let message = Message { topic, payload: payload.into(), retain: true };
        match self.link.publish(message) {
            // Closed: the agent is stopping.
            Ok(()) | Err(LinkError::Closed) => {}
            Err(error) => warn!(%error, %worker, "failed to publish model reload"),
        }
    }

    /// Removes the version directories of workers that are no longer desired.
    pub fn gc(
        &mut self,
        desired: &Desired,
        containers: &[ObservedContainer],
        context: &NodeContext,
    ) {
        let root = context.data_dir.join(WORKERS_DIR);
        let workers = desired.workers.values();
        let reloading: Vec<&WantedWorker> = workers
            .filter(|wanted| wanted.worker.model_update == WorkerUpdateMode::Reload)
            .collect();
        let uids: BTreeSet<String> = reloading.iter().map(|wanted| wanted.uid.clone()).collect();
        let mut kept = version_directory::mounted_below(&root, containers);
        kept.extend(reloading.iter().map(|wanted| worker_versions_dir(wanted, context)));
        version_directory::gc_changed(&root, &uids, kept, &mut self.gc_kept);
    }
}
