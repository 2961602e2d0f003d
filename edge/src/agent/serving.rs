//! The agent's model servers: what is seen of each goes into the decision, what was decided to the
//! disk and into the plan. Decides nothing itself: that is serving.rs and server.rs.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use neptune_wire::{ObjectKey, ServingStatus, Transition, WorkerName, WorkerReason};
use tracing::{error, info, warn};

use super::{Agent, Event};
use crate::{
    ask,
    checks::Checks,
    container::{ContainerSpec, Site},
    depot::Depot,
    desired::{Source, WantedServer},
    edition::{Edition, Supplied},
    observed::Container,
    place::{self, Versions},
    server::Watched,
    serving::{Decision, Facts, Memory, Run, Supply, decide},
    track::Track,
};

/// A decision changes what is current at most so often before something has to be seen.
const STEPS: usize = 4;
/// Until a decision that could not be stored is taken again.
const STORE_AGAIN: Duration = Duration::from_secs(1);

/// A model server, as the loop knows it.
#[derive(Debug, Default)]
pub struct Server {
    uid: String,
    pub memory: Memory,
    placed: Option<Versions>,
    /// By edition: which run of which container is checked.
    checks: BTreeMap<String, (String, Checks)>,
    pub status: ServingStatus,
    restart: bool,
}

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

    /// Has the models fetched that anything needs or may return to.
    pub(super) fn stock(&mut self) {
        let targets = self.state.desired.servers.values();
        let targets = targets.filter(|server| server.refusal.is_none());
        let targets = targets.filter_map(|server| server.serving.model.as_ref());
        let kept = self.state.servers.values().flat_map(|server| server.memory.editions());
        let kept = kept.filter_map(|edition| edition.serving.model.as_ref());
        let served = targets.chain(kept).map(Source::of);
        self.depot.set(&served.chain(self.models.sources()).collect());
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
            server.look(&own, &self.depot, site, now);
            let decision = server.decide(wanted, track, &self.depot, site, now);
            if decision.memory == server.memory {
                wake_at = decision.wake_at;
                server.restart = decision.restart;
                server.say(key, decision.status);
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
            for edition in server.memory.editions() {
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
        let health = server.memory.editions().find(|known| known.id() == edition);
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

    /// These versions are now in the directory of the server of this name.
    pub(super) fn placed(&mut self, name: &WorkerName, versions: &Versions) {
        if let Some(key) = self.state.desired.server_named(name)
            && let Some(server) = self.state.servers.get_mut(key)
        {
            server.placed = Some(versions.clone());
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

impl Server {
    /// The container that is to run; none while nothing is, or its model is not here.
    pub fn spec(&self, depot: &Depot, site: &Site) -> Option<ContainerSpec> {
        spec(self.memory.current.as_ref()?, &self.uid, depot, site)
    }

    /// As [`crate::server::Wanted`].
    pub fn wanted<'a>(
        &'a self,
        owner: &'a ObjectKey,
        wanted: &'a WantedServer,
        depot: &Depot,
        site: &Site,
    ) -> crate::server::Wanted<'a> {
        let versions = self.memory.versions();
        let dir = self
            .memory
            .current
            .as_ref()
            .map(|current| current.versions_dir(&self.uid, &site.data_dir));
        let supplied = versions.iter().filter_map(|edition| {
            Some((edition.version().to_owned(), model(edition, depot)?.clone()))
        });
        let watched = dir
            .filter(|_| !versions.is_empty())
            .map(|dir| Watched { dir, versions: supplied.collect() });
        crate::server::Wanted {
            owner,
            uid: &self.uid,
            name: &wanted.serving.name,
            spec: self.spec(depot, site),
            watched,
            placed: self.placed.as_ref(),
            restart: self.restart,
        }
    }

    /// Begins the checks of what came up, and forgets those of what went.
    fn look(&mut self, containers: &[&Container], depot: &Depot, site: &Site, now: Instant) {
        let up = self.memory.editions().filter_map(|edition| {
            let run = self.run_of(edition, containers, depot, site)?;
            let known = self.checks.get(edition.id()).filter(|(known, _)| *known == run);
            let checks = known.map_or_else(|| Checks::new(now), |(_, checks)| checks.clone());
            Some((edition.id().to_owned(), (run, checks)))
        });
        self.checks = up.collect();
    }

    /// The run of the container in which this edition is, if it is.
    fn run_of(
        &self,
        edition: &Edition,
        containers: &[&Container],
        depot: &Depot,
        site: &Site,
    ) -> Option<String> {
        let hash = spec(edition, &self.uid, depot, site)?.hash();
        let is_there = !edition.watches()
            || self.placed.as_ref().is_some_and(|placed| {
                placed.dir == edition.versions_dir(&self.uid, &site.data_dir)
                    && placed.names.contains(edition.version())
            });
        let is_its = |container: &&&Container| container.is_alive() && container.has_spec(&hash);
        let container = containers.iter().find(is_its).filter(|_| is_there)?;
        Some(format!("{}@{}", container.id, container.started_at))
    }

    fn decide(
        &self,
        wanted: &WantedServer,
        track: &Track,
        depot: &Depot,
        site: &Site,
        now: Instant,
    ) -> Decision {
        let supply = match &wanted.serving.model {
            Some(model) if wanted.refusal.is_none() => depot.supply(&Source::of(model)),
            _ => Supply::Ready,
        };
        let hash = self.spec(depot, site).map(|spec| spec.hash());
        let ended = track.ending.as_deref().filter(|_| {
            let started = track.started.as_ref().map(|(started, _)| started.as_str());
            started == hash.as_ref().map(neptune_wire::ContentHash::as_str)
        });
        let reason = track.problem.as_ref().map(|problem| problem.reason);
        let word = reason.map(|reason| format!("{reason:?}")).unwrap_or_default();
        let problem = track.problem.as_ref().map(|problem| problem.message.as_str());
        let run = |edition: &Option<Edition>| {
            let checks = edition.as_ref().and_then(|edition| self.checks.get(edition.id()));
            match (checks, reason) {
                (Some((_, checks)), _) => Run::Up(checks),
                (None, Some(WorkerReason::ContainerRefused)) => {
                    Run::Down { reason: &word, message: problem.unwrap_or_default() }
                }
                (None, Some(WorkerReason::CrashLoopBackOff | WorkerReason::OutOfMemory)) => ended
                    .map_or(Run::Absent(problem), |message| Run::Down { reason: &word, message }),
                (None, _) => Run::Absent(problem),
            }
        };
        let facts = Facts {
            target: &wanted.serving,
            refusal: wanted.refusal.as_deref(),
            supply,
            current: run(&self.memory.current),
            good: run(&self.memory.good),
            failures: track.failures,
            now,
            wall: &format!("{:.3}", Timestamp::now()),
        };
        decide(&self.memory, &facts)
    }

    fn say(&mut self, key: &ObjectKey, status: ServingStatus) {
        let what = |status: &ServingStatus| {
            (status.transition, status.serving_version.clone(), status.message.clone())
        };
        if what(&self.status) != what(&status) {
            let ServingStatus {
                serving_version: serving,
                target_version: target,
                transition,
                message,
                ..
            } = &status;
            match transition {
                Transition::UpToDate | Transition::InProgress => {
                    info!(object = %key, serving, target, ?transition, message, "model server");
                }
                Transition::BlockedByFailedLoad | Transition::InvalidSpec => {
                    warn!(object = %key, serving, target, ?transition, message, "model server");
                }
            }
        }
        self.status = status;
    }
}

fn model<'a>(edition: &Edition, depot: &'a Depot) -> Option<&'a Supplied> {
    edition.serving.model.as_ref().and_then(|model| depot.supplied(&Source::of(model)))
}

fn spec(edition: &Edition, uid: &str, depot: &Depot, site: &Site) -> Option<ContainerSpec> {
    let supplied = model(edition, depot);
    let is_here = edition.serving.model.is_none() || supplied.is_some();
    is_here.then(|| edition.container(uid, supplied, site))
}
