//! The agent's models: which worker is to load what while it runs, and the directories for that.
//! Decides nothing itself: that is reload.rs.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Instant,
};

use jiff::Timestamp;
use neptune_link::{LinkError, Message};
use neptune_wire::{
    ModelReload, ObjectKey, Resource, Topic, WorkerModel, WorkerName, WorkerUpdateMode, encode,
};
use tracing::{info, warn};

use super::Agent;
use crate::{
    container::{container, model_url},
    desired::Wanted,
    place, reload,
    spoken::{Subject, heard},
    supplies::Supplies,
};

impl Agent {
    /// Takes note of what a worker says of models. Returns why not of each that is left out.
    pub(super) fn heard_of_models(
        &mut self,
        wanted: &Wanted,
        container: &str,
        models: Vec<WorkerModel>,
        wall: Timestamp,
    ) -> Vec<String> {
        let worker = &wanted.worker.name;
        let mut left_out = Vec::new();
        for model in models {
            let key = ObjectKey {
                namespace: wanted.owner.namespace.clone(),
                resource: Resource::Models,
                name: model.name.clone().unwrap_or_else(|| wanted.worker.model.clone()),
            };
            let Some(held) = self.replica.objects().get(&key) else {
                left_out.push(format!("output.models: this node was told of no {key}"));
                continue;
            };
            let usable = self.models.views().get(&key).and_then(|view| view.usable.as_ref());
            let path = usable
                .filter(|_| key == wanted.model)
                .map(|model| model_url(wanted, model, &self.executor.site));
            let (url, sha256) = self.models.used(&key).unwrap_or_default();
            let format = held.content.spec.get("format").and_then(|format| format.as_str());
            let subject = Subject {
                name: &key.name,
                uid: &held.content.metadata.uid,
                format: format.unwrap_or_default(),
                url,
                sha256,
                path: path.as_deref(),
            };
            let known = self.counts.spoken(&wanted.uid, worker);
            let spoken = heard(model, &subject, container, known);
            self.counts.spoke(&wanted.uid, worker, spoken, wall);
        }
        // It may have loaded what it was told.
        self.state.is_stale |=
            self.state.reloads.get(worker).is_some_and(|reloading| reloading.asked.is_some());
        left_out
    }

    /// Decides for the workers that load other versions while they run, and tells them.
    pub(super) fn reload(&mut self, now: Instant) -> BTreeMap<WorkerName, reload::Decision> {
        let site = Arc::clone(&self.executor.site);
        let supplies = Supplies { models: self.models.views(), datasets: self.datasets.views() };
        let mut decisions = BTreeMap::new();
        let mut tell = Vec::new();
        for (name, wanted) in &self.state.desired.workers {
            let Ok(uses) = supplies.of(wanted, &self.state.desired) else { continue };
            let (view, model) = (self.models.views().get(&wanted.model), uses.model);
            let Some(target) = reload::version(wanted, model, &site) else { continue };
            let hash = container(wanted, uses, &site).hash();
            let mut containers = self.state.engine.containers().iter();
            let running = containers.find(|container| {
                container.identity.worker == *name
                    && container.is_alive()
                    && container.has_spec(&hash)
            });
            let spoken = self.counts.spoken(&wanted.uid, name).iter();
            let spoken = spoken.rev().find(|spoken| spoken.output.model == wanted.model.name);
            let facts = reload::Facts { wanted, model, site: &site, running, spoken, now };
            let memory = self.state.reloads.entry(name.clone()).or_default();
            let decision = reload::decide(memory, &facts, target);
            let is_other = |before: &String| *before != decision.target;
            if memory.target.as_ref().is_some_and(is_other) {
                // The version that it failed with is not the one that it gets now.
                self.state.tracks.entry(name.clone()).or_default().forgive();
            }
            memory.target = Some(decision.target.clone());
            memory.asked.clone_from(&decision.asked);
            if decision.restart {
                let within = reload::WITHIN.as_secs();
                warn!(worker = %name, within, "it has not loaded its model's version and is restarted");
            }
            // The version before, which runs until the present one is here, was told when it came.
            if decision.place.is_none() && view.is_some_and(|view| view.problem.is_none()) {
                tell.push((name.clone(), wanted.model.clone(), model_url(wanted, model, &site)));
            }
            decisions.insert(name.clone(), decision);
        }
        self.state.reloads.retain(|name, _| decisions.contains_key(name));
        for (worker, model, path) in tell {
            self.tell(&worker, &model, path);
        }
        self.tell_nobody_else();
        decisions
    }

    fn tell(&mut self, worker: &WorkerName, model: &ObjectKey, path: String) {
        let (Some(held), Some((url, sha256))) =
            (self.replica.objects().get(model), self.models.used(model))
        else {
            return;
        };
        let message = ModelReload {
            name: model.name.clone(),
            path,
            url: url.to_owned(),
            sha256: sha256.map(str::to_owned),
            revision: held.revision,
        };
        let known = self.state.told.get(worker);
        // A new revision of equal content is no news.
        if known.is_some_and(|known| {
            *known == ModelReload { revision: known.revision, ..message.clone() }
        }) {
            return;
        }
        info!(%worker, path = message.path, "told which version to load");
        self.say_locally(worker, encode(&message));
        self.state.told.insert(worker.clone(), message);
    }

    /// Takes back what was said to workers that are not there any more, or do not reload.
    fn tell_nobody_else(&mut self) {
        let workers = &self.state.desired.workers;
        let is_told = |name: &WorkerName| {
            let update = workers.get(name).map(|wanted| wanted.worker.model_update);
            update == Some(WorkerUpdateMode::Reload)
        };
        let gone: Vec<_> = self.state.told.keys().filter(|name| !is_told(name)).cloned().collect();
        for worker in gone {
            self.say_locally(&worker, Vec::new());
            self.state.told.remove(&worker);
        }
    }

    fn say_locally(&self, worker: &WorkerName, payload: Vec<u8>) {
        let topic = Topic::WorkerReload(worker.clone()).under(&self.config.prefix);
        let message = Message { topic, payload: payload.into(), retain: true };
        match self.local.publish(message) {
            // Closed: the agent is on its way out.
            Ok(()) | Err(LinkError::Closed) => {}
            Err(error) => warn!(%error, %worker, "the worker is not told which version to load"),
        }
    }

    /// Removes the directories of versions of workers that are no more.
    pub(super) fn tidy_workers(&mut self) {
        let site = &self.executor.site;
        let root = site.data_dir.join(reload::WORKERS);
        let workers = self.state.desired.workers.values();
        let reloading: Vec<&Wanted> = workers
            .filter(|wanted| wanted.worker.model_update == WorkerUpdateMode::Reload)
            .collect();
        let uids: BTreeSet<String> = reloading.iter().map(|wanted| wanted.uid.clone()).collect();
        let mounted =
            self.state.engine.containers().iter().flat_map(|container| &container.sources);
        let mut kept: BTreeSet<PathBuf> =
            mounted.map(PathBuf::from).filter(|path| path.starts_with(&root)).collect();
        kept.extend(reloading.iter().map(|wanted| reload::dir(wanted, site)));
        if self.state.tidied_workers.as_ref() == Some(&kept) {
            return;
        }
        match place::tidy(&root, &uids, &kept) {
            Ok(()) => self.state.tidied_workers = Some(kept),
            Err(error) => warn!(%error, path = %root.display(), "unused versions stay"),
        }
    }
}
