//! The agent's model servers: what is seen of each goes into the decision, what was decided to the
//! disk and into the plan. Decides nothing itself: that is served.rs, serving.rs and server.rs.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use neptune_wire::{ModelServerReport, ObjectKey, Transition, WorkerName};
use tracing::{error, info, warn};

use super::{Agent, Event};
use crate::{
    ask,
    desired::Source,
    observed::Container,
    place::{self, Versions},
    served::{Seen, Server},
    serving::Memory,
};

/// A decision changes what is current at most so often before something has to be seen.
const STEPS: usize = 4;
/// Until a decision that could not be stored is taken again.
const STORE_AGAIN: Duration = Duration::from_secs(1);

impl Agent {
    /// Makes the servers those that are wanted, and has the models that they need fetched.
    pub(super) fn servers_changed(&mut self) {
        let state = &mut self.state;
        let wanted = &state.desired.servers;
        state
            .servers
            .retain(|key, server| wanted.get(key).is_some_and(|wanted| wanted.uid == server.uid));
        for (key, wanted) in wanted {
            if !state.servers.contains_key(key) {
                let memory = self.store.serving(&wanted.uid).unwrap_or_else(|error| {
                    error!(%error, object = %key, "what was served is not known: it begins anew");
                    Memory::default()
                });
                let server = Server { uid: wanted.uid.clone(), memory, ..Server::default() };
                state.servers.insert(key.clone(), server);
            }
        }
        self.stock();
    }

    /// Has the models fetched that anything needs or may return to, and the images of what is to come.
    pub(super) fn stock(&mut self) {
        let targets = self.state.desired.servers.values();
        let targets = targets.filter(|server| server.refusal.is_none());
        let targets = targets.filter_map(|server| server.serving.model.as_ref());
        let kept = self.state.servers.values().flat_map(|server| server.memory.editions());
        let kept = kept.filter_map(|edition| edition.serving.model.as_ref());
        let served = targets.chain(kept).map(Source::of);
        let used = self.models.sources().chain(self.datasets.sources());
        self.depot.set(&served.chain(used).collect());
        let images = self.state.desired.servers.iter().filter_map(|(key, wanted)| {
            self.state.servers.get(key)?.awaited_image(wanted).map(str::to_owned)
        });
        self.images.set(&images.collect());
    }

    /// Decides for each server, and stores what was decided. Returns when to do so again.
    pub(super) fn serve(&mut self, now: Instant) -> Option<Instant> {
        let keys: Vec<ObjectKey> = self.state.desired.servers.keys().cloned().collect();
        keys.iter().filter_map(|key| self.serve_one(key, now)).min()
    }

    fn serve_one(&mut self, key: &ObjectKey, now: Instant) -> Option<Instant> {
        let mut wake_at = None;
        for _ in 0..STEPS {
            let site = &self.executor.site;
            let containers = self.state.engine.containers();
            let wanted = &self.state.desired.servers[key];
            let name = &wanted.serving.name;
            let own: Vec<&Container> =
                containers.iter().filter(|container| container.identity.worker == *name).collect();
            let track = self.state.tracks.entry(name.clone()).or_default();
            let server = self.state.servers.get_mut(key)?;
            let trouble = self.state.engine.shown().err();
            if trouble.is_none() {
                server.look(&own, &self.depot, site, now);
            }
            let seen = Seen { track, trouble, now, wall: &format!("{:.3}", Timestamp::now()) };
            let decision = server.decide(wanted, &seen, &self.depot, &self.images, site);
            if decision.memory == server.memory {
                wake_at = decision.wake_at;
                server.restart = decision.restart;
                say(key, &server.status, &decision.status);
                server.status = decision.status;
                break;
            }
            if let Err(error) = self.store.keep_serving(key, &wanted.uid, &decision.memory) {
                error!(%error, object = %key, "a decision cannot be stored, and is not acted on");
                return Some(now + STORE_AGAIN);
            }
            if decision.memory.current != server.memory.current {
                let id = |memory: &Memory| {
                    memory.current.as_ref().map(|current| current.version().to_owned())
                };
                info!(object = %key, from = id(&server.memory), to = id(&decision.memory), "version switched");
                track.forgive();
            }
            server.memory = decision.memory;
            self.stock();
            // What is not needed any more is removed after the next look.
            self.state.engine.changed(now);
        }
        wake_at
    }

    /// Tells the track of each server what it should be.
    pub(super) fn aim_servers(&mut self) {
        for (key, wanted) in &self.state.desired.servers {
            let spec = self
                .state
                .servers
                .get(key)
                .and_then(|server| server.spec(&self.depot, &self.executor.site));
            if let Some(spec) = spec {
                self.state.tracks.entry(wanted.serving.name.clone()).or_default().aim(&spec.hash());
            }
        }
    }

    /// Asks the servers whose check is due. Returns when the next one is.
    pub(super) fn ask(&mut self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for (key, server) in &mut self.state.servers {
            for edition in server.memory.asked() {
                let id = edition.id().to_owned();
                let Some((run, checks)) = server.checks.get_mut(&id) else { continue };
                if checks.is_due(now) {
                    let (events, key, run) =
                        (self.executor.events.clone(), key.clone(), run.clone());
                    let (port, path) = (edition.serving.port, edition.health_path());
                    let within = Duration::from_millis(edition.serving.health.timeout_ms.max(1));
                    tokio::spawn(async move {
                        let answer = ask::health(port, path.as_deref(), within).await;
                        let _ = events.send(Event::Checked { key, edition: id, run, answer }).await;
                    });
                } else if let Some(at) = checks.wake_at() {
                    next = Some(next.map_or(at, |next| next.min(at)));
                }
            }
        }
        next
    }

    pub(super) fn checked(
        &mut self,
        key: &ObjectKey,
        edition: &str,
        run: &str,
        answer: Result<(), String>,
        now: Instant,
    ) {
        let Some(server) = self.state.servers.get_mut(key) else { return };
        let health = server.memory.asked().find(|known| known.id() == edition);
        let Some(health) = health.map(|edition| edition.serving.health.clone()) else { return };
        if let Some((_, checks)) =
            server.checks.get_mut(edition).filter(|(checked, _)| checked == run)
        {
            checks.answered(answer, &health, now);
        }
    }

    /// The model of the server of this name is not where it was.
    pub(super) fn look_for_served(&mut self, name: &WorkerName) {
        let key = self.state.desired.server_named(name);
        let Some(server) = key.and_then(|key| self.state.servers.get(key)) else { return };
        for model in server.memory.editions().filter_map(|edition| edition.serving.model.as_ref()) {
            self.depot.look_again(&Source::of(model));
        }
    }

    /// These versions are now in the directory of the server or worker of this name.
    pub(super) fn placed(&mut self, name: &WorkerName, versions: &Versions) {
        if let Some(key) = self.state.desired.server_named(name)
            && let Some(server) = self.state.servers.get_mut(key)
        {
            server.placed = Some(versions.clone());
        } else if let Some(reloading) = self.state.reloads.get_mut(name) {
            reloading.placed = Some(versions.clone());
        }
    }

    /// Whether the operation on this server was for what it should be no more.
    pub(super) fn is_outdated(&self, name: &WorkerName, spec_hash: &str) -> bool {
        let key = self.state.desired.server_named(name);
        let server = key.and_then(|key| self.state.servers.get(key));
        let spec = server.and_then(|server| server.spec(&self.depot, &self.executor.site));
        spec.is_some_and(|spec| spec.hash().as_str() != spec_hash)
    }

    /// Removes directories of versions that no server watches any more.
    pub(super) fn tidy_versions(&mut self) {
        let data_dir = &self.executor.site.data_dir;
        let root = data_dir.join(crate::edition::VERSIONS);
        let mounted =
            self.state.engine.containers().iter().flat_map(|container| &container.sources);
        let mut kept: BTreeSet<PathBuf> =
            mounted.map(PathBuf::from).filter(|path| path.starts_with(&root)).collect();
        for server in self.state.servers.values() {
            kept.extend(
                server.memory.editions().map(|edition| edition.versions_dir(&server.uid, data_dir)),
            );
        }
        let uids: BTreeSet<String> =
            self.state.servers.values().map(|server| server.uid.clone()).collect();
        if self.state.tidied.as_ref() == Some(&kept) {
            return;
        }
        match place::tidy(&root, &uids, &kept) {
            Ok(()) => self.state.tidied = Some(kept),
            Err(error) => warn!(%error, path = %root.display(), "unused versions stay"),
        }
    }
}

/// Tells the log what is new.
fn say(key: &ObjectKey, before: &ModelServerReport, status: &ModelServerReport) {
    let what = |status: &ModelServerReport| {
        (status.transition, status.serving_version.clone(), status.message.clone())
    };
    if what(before) != what(status) {
        let ModelServerReport {
            serving_version: serving,
            target_version: target,
            transition,
            message,
            ..
        } = status;
        match transition {
            Transition::UpToDate | Transition::InProgress => {
                info!(object = %key, serving, target, ?transition, message, "model server");
            }
            Transition::BlockedByFailedLoad | Transition::InvalidSpec => {
                warn!(object = %key, serving, target, ?transition, message, "model server");
            }
        }
    }
}
