//! What is known of a model server while the agent runs, and how it becomes the facts of a decision
//! (serving.rs) and of a plan (server.rs).

use std::{collections::BTreeMap, time::Instant};

use neptune_wire::{ContentHash, ModelServerReport, ObjectKey, WorkerReason};

use crate::{
    checks::Checks,
    container::{ContainerSpec, Site},
    depot::Depot,
    desired::{Source, WantedServer},
    edition::{Edition, Supplied},
    images::Images,
    observed::Container,
    place::Versions,
    server::{self, Watched},
    serving::{Decision, Facts, ImageSupply, Memory, Run, Supply, decide},
    track::Track,
};

/// A model server.
#[derive(Debug, Default)]
pub struct Server {
    pub uid: String,
    pub memory: Memory,
    pub placed: Option<Versions>,
    /// By edition: which run of which container is checked.
    pub checks: BTreeMap<String, (String, Checks)>,
    pub status: ModelServerReport,
    pub restart: bool,
}

/// What a decision is taken upon beside what is remembered.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    pub track: &'a Track,
    /// Why Docker shows nothing.
    pub trouble: Option<&'a str>,
    pub now: Instant,
    /// The same as a text.
    pub wall: &'a str,
}

impl Server {
    /// The container that is to run; none while nothing is, or its model is not here.
    pub fn spec(&self, depot: &Depot, site: &Site) -> Option<ContainerSpec> {
        spec(self.memory.current.as_ref()?, &self.uid, depot, site)
    }

    /// As [`server::Wanted`].
    pub fn wanted<'a>(
        &'a self,
        owner: &'a ObjectKey,
        wanted: &'a WantedServer,
        depot: &Depot,
        site: &Site,
    ) -> server::Wanted<'a> {
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
        server::Wanted {
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
    pub fn look(&mut self, containers: &[&Container], depot: &Depot, site: &Site, now: Instant) {
        let run_of = |edition| self.run_of(edition, containers, depot, site);
        // It was taken out of the directory, and is asked for in the container that had it.
        let leaving = self.memory.leaving.iter().zip(&self.memory.current);
        let leaving = leaving.map(|(leaving, current)| (leaving, run_of(current)));
        let there = self.memory.editions().map(|edition| (edition, run_of(edition)));
        let up = there.chain(leaving).filter_map(|(edition, run)| {
            let run = run?;
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

    /// The image that has to be here before the target can take the place of what runs.
    pub fn awaited_image<'a>(&self, wanted: &'a WantedServer) -> Option<&'a str> {
        let image = &wanted.serving.image;
        let is_used = self.memory.current.as_ref().is_some_and(|it| it.serving.image == *image);
        (wanted.refusal.is_none() && !is_used).then_some(image)
    }

    /// What follows from all that is known.
    pub fn decide(
        &self,
        wanted: &WantedServer,
        seen: &Seen<'_>,
        depot: &Depot,
        images: &Images,
        site: &Site,
    ) -> Decision {
        let Seen { track, trouble, now, wall } = *seen;
        let supply = match &wanted.serving.model {
            Some(model) if wanted.refusal.is_none() => depot.supply(&Source::of(model)),
            _ => Supply::Ready,
        };
        let hash = self.spec(depot, site).map(|spec| spec.hash());
        let ended = track.ending.as_deref().filter(|_| {
            let started = track.started.as_ref().map(|(started, _)| started.as_str());
            started == hash.as_ref().map(ContentHash::as_str)
        });
        let reason = track.problem.as_ref().map(|problem| problem.reason);
        let word = reason.map(|reason| format!("{reason:?}")).unwrap_or_default();
        let problem = trouble.or(track.problem.as_ref().map(|problem| problem.message.as_str()));
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
            image: self
                .awaited_image(wanted)
                .map_or(ImageSupply::Ready, |image| images.supply(image)),
            current: run(&self.memory.current),
            good: run(&self.memory.good),
            leaving: run(&self.memory.leaving),
            failures: track.failures,
            now,
            wall,
        };
        decide(&self.memory, &facts)
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
