//! The state of one model server in memory: turns observations into the facts of a rollout decision
//! (rollout/) and into the target of the plan (plan.rs). Decides nothing itself.

use std::{collections::BTreeMap, time::Instant};

use neptune_wire::{ContentHash, ModelServerReport, ObjectKey, WorkerReason};

use crate::{
    artifacts::downloads::Downloads,
    desired::WantedServer,
    domain::{
        artifact::{ArtifactSource, DownloadState, ImageState, LocalArtifact, PlacedVersions},
        container::TargetContainer,
        node_context::NodeContext,
        observed_container::ObservedContainer,
        rollout::RolloutState,
        served_version::ServedVersion,
    },
    engine::image_pulls::ImagePulls,
    model_server::{
        container::server_container,
        plan::{ServerTarget, WatchedDirectory},
        probe::ProbeHistory,
        rollout::{InstanceState, RolloutDecision, RolloutFacts, decide},
    },
    plan::attempts::Attempts,
};

/// A model server.
#[derive(Debug, Default)]
pub struct ModelServerInstance {
    pub uid: String,
    /// As stored.
    pub rollout: RolloutState,
    /// The versions in the watched directory; `None` if unknown.
    pub placed: Option<PlacedVersions>,
    /// By version ID: the probed run of a container, and its probes.
    pub probes: BTreeMap<String, (String, ProbeHistory)>,
    pub report: ModelServerReport,
    pub restart: bool,
    /// By version ID: the containers of the kept versions whose models are on the node.
    containers: BTreeMap<String, TargetContainer>,
}

/// The facts of a decision beside the stored state.
#[derive(Clone, Copy)]
pub struct InstanceFacts<'a> {
    pub attempts: &'a Attempts,
    /// Why the containers could not be observed.
    pub engine_problem: Option<&'a str>,
    pub now: Instant,
    /// `now` as RFC 3339 text.
    pub wall: &'a str,
}

impl ModelServerInstance {
    pub fn new(uid: String, rollout: RolloutState) -> Self {
        Self { uid, rollout, ..Self::default() }
    }

    /// Computes the containers of the kept versions. Call it after the rollout or the downloads
    /// changed.
    pub fn resolve(&mut self, downloads: &Downloads, context: &NodeContext) {
        let versions = self.rollout.kept_versions();
        let containers = versions.filter_map(|version| {
            let container = container_of(version, &self.uid, downloads, context)?;
            Some((version.id().to_owned(), container))
        });
        self.containers = containers.collect();
    }

    /// The container that must run, as last resolved; `None` while the model is not on the node.
    pub fn container(&self) -> Option<&TargetContainer> {
        self.containers.get(self.rollout.current.as_ref()?.id())
    }

    /// Whether the container of this spec hash is no longer the one that must run.
    pub fn is_outdated(&self, hash: &str, downloads: &Downloads, context: &NodeContext) -> bool {
        let current = self.rollout.current.as_ref();
        let container = current.and_then(|it| container_of(it, &self.uid, downloads, context));
        container.is_some_and(|container| container.hash.as_str() != hash)
    }

    /// The target of the plan.
    pub fn target<'a>(
        &'a self,
        owner: &'a ObjectKey,
        wanted: &'a WantedServer,
        downloads: &Downloads,
        context: &NodeContext,
    ) -> ServerTarget<'a> {
        let versions = self.rollout.watched_versions();
        let current = self.rollout.current.as_ref().filter(|_| !versions.is_empty());
        let watched = current.map(|current| WatchedDirectory {
            dir: current.versions_dir(&self.uid, &context.data_dir),
            versions: versions
                .iter()
                .filter_map(|it| Some((it.version().to_owned(), model(it, downloads)?.clone())))
                .collect(),
        });
        ServerTarget {
            owner,
            uid: &self.uid,
            name: &wanted.serving.name,
            container: self.container(),
            watched,
            placed: self.placed.as_ref(),
            restart: self.restart,
        }
    }

    /// Starts the probes of versions whose containers came up, and drops those of the others.
    pub fn observe(
        &mut self,
        containers: &[&ObservedContainer],
        context: &NodeContext,
        now: Instant,
    ) {
        let run_of = |version| self.run_of(version, containers, context);
        // A draining version was removed from the directory; the running container still answers
        // with it.
        let draining = self.rollout.draining.iter().zip(&self.rollout.current);
        let draining = draining.map(|(draining, current)| (draining, run_of(current)));
        let kept = self.rollout.kept_versions().map(|version| (version, run_of(version)));
        let running = kept.chain(draining).filter_map(|(version, run)| {
            let run = run?;
            let known = self.probes.get(version.id()).filter(|(known, _)| *known == run);
            let probes = known.map_or_else(|| ProbeHistory::new(now), |(_, probes)| probes.clone());
            Some((version.id().to_owned(), (run, probes)))
        });
        self.probes = running.collect();
    }

    /// The run of the container that serves this version, if one does.
    fn run_of(
        &self,
        version: &ServedVersion,
        containers: &[&ObservedContainer],
        context: &NodeContext,
    ) -> Option<String> {
        let hash = &self.containers.get(version.id())?.hash;
        let is_placed = !version.watches()
            || self.placed.as_ref().is_some_and(|placed| {
                placed.dir == version.versions_dir(&self.uid, &context.data_dir)
                    && placed.names.contains(version.version())
            });
        let serves =
            |container: &&&ObservedContainer| container.is_alive() && container.has_spec(hash);
        let container = containers.iter().find(serves).filter(|_| is_placed)?;
        Some(format!("{}@{}", container.id, container.started_at))
    }

    /// The image that must be on the node before the target replaces the running version.
    pub fn awaited_image<'a>(&self, wanted: &'a WantedServer) -> Option<&'a str> {
        let image = &wanted.serving.image;
        let is_used = self.rollout.current.as_ref().is_some_and(|it| it.serving.image == *image);
        (wanted.refusal.is_none() && !is_used).then_some(image)
    }

    /// The next step of the rollout.
    pub fn decide(
        &self,
        wanted: &WantedServer,
        facts: &InstanceFacts<'_>,
        downloads: &Downloads,
        images: &ImagePulls,
    ) -> RolloutDecision {
        let download = match &wanted.serving.model {
            Some(model) if wanted.refusal.is_none() => downloads.state(&ArtifactSource::of(model)),
            _ => DownloadState::Ready,
        };
        let image = self.awaited_image(wanted);
        let reason = facts.attempts.problem.as_ref().map(|problem| format!("{:?}", problem.reason));
        let state = |version: &Option<ServedVersion>| {
            self.state_of(version.as_ref(), facts, reason.as_deref().unwrap_or_default())
        };
        let facts = RolloutFacts {
            target: &wanted.serving,
            refusal: wanted.refusal.as_deref(),
            download,
            image: image.map_or(ImageState::Ready, |image| images.state(image)),
            current: state(&self.rollout.current),
            last_good: state(&self.rollout.last_good),
            draining: state(&self.rollout.draining),
            failures: facts.attempts.failures,
            now: facts.now,
            wall: facts.wall,
        };
        decide(&self.rollout, &facts)
    }

    fn state_of<'a>(
        &'a self,
        version: Option<&ServedVersion>,
        facts: &InstanceFacts<'a>,
        reason: &'a str,
    ) -> InstanceState<'a> {
        if let Some((_, probes)) = version.and_then(|version| self.probes.get(version.id())) {
            return InstanceState::Up(probes);
        }
        let problem = facts.attempts.problem.as_ref();
        let message = facts.engine_problem.or(problem.map(|problem| problem.message.as_str()));
        match problem.map(|problem| problem.reason) {
            Some(WorkerReason::ContainerRefused) => {
                InstanceState::Down { reason, message: message.unwrap_or_default() }
            }
            Some(WorkerReason::CrashLoopBackOff | WorkerReason::OutOfMemory) => {
                match self.exit_message(facts.attempts) {
                    Some(message) => InstanceState::Down { reason, message },
                    None => InstanceState::Absent(message),
                }
            }
            _ => InstanceState::Absent(message),
        }
    }

    /// How the container exited, if it was the one that must run.
    fn exit_message<'a>(&self, attempts: &'a Attempts) -> Option<&'a str> {
        let started = attempts.started.as_ref().map(|(started, _)| started.as_str());
        let hash = self.container().map(|container| &container.hash);
        attempts.ending.as_deref().filter(|_| started == hash.map(ContentHash::as_str))
    }
}

fn model<'a>(version: &ServedVersion, downloads: &'a Downloads) -> Option<&'a LocalArtifact> {
    downloads.local_artifact(&ArtifactSource::of(version.serving.model.as_ref()?))
}

/// The container of a version whose model, if it has one, is on the node.
fn container_of(
    version: &ServedVersion,
    uid: &str,
    downloads: &Downloads,
    context: &NodeContext,
) -> Option<TargetContainer> {
    let local = model(version, downloads);
    let is_present = version.serving.model.is_none() || local.is_some();
    is_present.then(|| server_container(version, uid, local, context).into())
}
