//! The state of one model server in memory: turns observations into the facts of a rollout decision
//! (rollout/) and into the target of the plan (plan.rs). Decides nothing itself.

mod facts;

use std::{collections::BTreeMap, time::Instant};

use neptune_agent_core::{
    desired::WantedServer,
    domain::{
        artifact::{ArtifactSource, LocalArtifact, PlacedVersions},
        container::TargetContainer,
        node_context::NodeContext,
        observed_container::ObservedContainer,
        rollout::RolloutState,
        served_version::{ServedVersion, images_of},
        server_part::{ObservedServer, ServerPart, Slot, part_name},
    },
    model_server::{
        container::{VersionContainers, VersionInputs, beside, version_containers},
        plan::{ServerTarget, WatchedDirectory},
        probe::ProbeHistory,
    },
    plan::attempts::Attempts,
    volumes::mounts::{engine_volumes, volumes_of},
};
use neptune_wire::{ContentHash, ModelServer, ModelServerReport, Namespace, ObjectKey};

use crate::{artifacts::downloads::Downloads, values::opened::ServerValues};

/// One model server of the node, in memory.
#[derive(Debug)]
pub struct ModelServerInstance {
    namespace: Namespace,
    pub uid: String,
    /// The state of the rollout, as it is stored.
    pub rollout: RolloutState,
    /// The versions in the watched directory; `None` if unknown.
    pub placed: Option<PlacedVersions>,
    /// The probed run of a container and its probes, by version ID.
    pub probes: BTreeMap<String, (String, ProbeHistory)>,
    pub report: ModelServerReport,
    /// What to restart because it does not answer.
    pub restart: Option<ServerPart>,
    /// The transformer that gets the requests, if the current version has a proxy.
    pub route: Option<Route>,
    /// The hashes that the containers must have. A container that waits for one of the server has
    /// none.
    pub hashes: BTreeMap<ServerPart, ContentHash>,
    /// The containers of the kept versions whose models are on the node, by version ID.
    containers: BTreeMap<String, VersionContainers>,
}

/// The transformer to which the proxy passes requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub slot: Slot,
    /// The port on which that transformer listens.
    pub port: u16,
    /// Requests in flight at the other transformer end before this time.
    pub drained_at: Option<Instant>,
}

/// What the versions of a server need on the node.
#[derive(Clone, Copy)]
pub struct InstanceInputs<'a> {
    pub downloads: &'a Downloads,
    pub values: &'a ServerValues,
    pub context: &'a NodeContext,
}

/// The facts of a decision beside the stored state.
#[derive(Clone, Copy)]
pub struct InstanceFacts<'a> {
    pub attempts: &'a Attempts,
    /// The attempts of the transformers and of the proxy.
    pub beside: &'a BTreeMap<ServerPart, &'a Attempts>,
    /// Why the containers could not be observed.
    pub engine_problem: Option<&'a str>,
    pub now: Instant,
    /// `now` as RFC 3339 text.
    pub wall: &'a str,
}

impl ModelServerInstance {
    pub fn new(namespace: Namespace, uid: String, rollout: RolloutState) -> Self {
        Self {
            namespace,
            uid,
            rollout,
            placed: None,
            probes: BTreeMap::new(),
            report: ModelServerReport::default(),
            restart: None,
            route: None,
            hashes: BTreeMap::new(),
            containers: BTreeMap::new(),
        }
    }

    /// The downloads of the versions to which the server may return.
    pub fn kept_sources(&self) -> impl Iterator<Item = ArtifactSource> {
        let versions = self.rollout.kept_versions();
        versions.filter_map(|version| self.source(&version.serving))
    }

    fn source(&self, serving: &ModelServer) -> Option<ArtifactSource> {
        Some(ArtifactSource::from_model(&self.namespace, serving.model.as_ref()?))
    }

    fn model<'a>(
        &self,
        version: &ServedVersion,
        downloads: &'a Downloads,
    ) -> Option<&'a LocalArtifact> {
        downloads.local_artifact(&self.source(&version.serving)?)
    }

    /// The containers of a version whose model, if it has one, is on the node, and whose values can be
    /// read.
    fn containers_of(
        &self,
        version: &ServedVersion,
        InstanceInputs { downloads, values, context }: &InstanceInputs<'_>,
    ) -> Option<VersionContainers> {
        let ModelServer { name, program, model, .. } = &version.serving;
        let local = self.model(version, downloads);
        let values = values.of_program(name, program).and_then(Result::ok);
        let has_model = model.is_none() || local.is_some();
        let has_values = !program.has_values() || values.is_some();
        let inputs = VersionInputs { model: local, values };
        (has_model && has_values).then(|| version_containers(version, &self.uid, inputs, context))
    }

    /// Computes the containers of the kept versions. Call it after the rollout or the inputs changed.
    pub fn resolve(&mut self, inputs: &InstanceInputs<'_>) {
        let versions = self.rollout.kept_versions();
        let containers = versions.filter_map(|version| {
            let containers = self.containers_of(version, inputs)?;
            Some((version.id().to_owned(), containers))
        });
        self.containers = containers.collect();
    }

    /// The container of the server that must run, as last resolved; `None` while the model is not
    /// on the node.
    pub fn container(&self) -> Option<&TargetContainer> {
        self.current().map(|containers| &containers.server)
    }

    fn current(&self) -> Option<&VersionContainers> {
        self.containers.get(self.rollout.current.as_ref()?.id())
    }

    /// Whether the container of this spec hash is no longer the one of this part that must run.
    pub fn is_outdated(&self, part: ServerPart, hash: &str, inputs: &InstanceInputs<'_>) -> bool {
        let current = self.rollout.current.as_ref();
        let containers = current.and_then(|it| self.containers_of(it, inputs));
        containers.is_some_and(|containers| match part {
            ServerPart::Server => containers.server.hash.as_str() != hash,
            _ => match self.hashes.get(&part) {
                Some(target) => target.as_str() != hash,
                None => containers.part(part).is_none(),
            },
        })
    }

    /// The containers of the last good version, if its transformer runs beside that of the current
    /// one during the trial.
    fn kept(&self) -> Option<&VersionContainers> {
        let good = self.containers.get(self.rollout.last_good.as_ref()?.id())?;
        self.current().filter(|current| current.can_coexist(good)).map(|_| good)
    }

    /// The container of a part that must run.
    fn part(&self, part: ServerPart) -> Option<&TargetContainer> {
        let current = self.current()?;
        current.part(part).or_else(|| self.kept()?.part(part))
    }

    /// The transformer that must get the requests: that of the current version, unless that is on
    /// trial, not healthy, and the previous one still runs. With its port.
    pub fn wanted_route(&self) -> Option<(Slot, u16)> {
        let current = self.rollout.current.as_ref()?;
        self.current()?.proxy.as_ref()?;
        let is_healthy = || {
            let probes = self.probes.get(current.id());
            probes.is_some_and(|(_, probes)| probes.healthy_since.is_some())
        };
        let good = self.rollout.last_good.as_ref().filter(|_| self.kept().is_some());
        let version = good.filter(|_| !is_healthy()).unwrap_or(current);
        Some((version.slot, version.listen_port()?))
    }

    /// Whether requests reach the transformer of this version.
    pub fn is_routed(&self, version: &ServedVersion) -> bool {
        self.route.as_ref().is_some_and(|route| route.slot == version.slot)
    }

    /// Returns the target of a plan, with the containers that must run.
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
                .filter_map(|it| {
                    Some((it.version().to_owned(), self.model(it, downloads)?.clone()))
                })
                .collect(),
        });
        let parts = ServerPart::ALL.into_iter().filter(|part| match part {
            // Its directory has no file yet.
            ServerPart::Proxy => self.route.is_some(),
            _ => true,
        });
        let draining = self.route.as_ref().and_then(|it| Some((it.slot.other(), it.drained_at?)));
        ServerTarget {
            owner,
            uid: &self.uid,
            name: &wanted.serving.name,
            names: ServerPart::ALL.map(|part| (part, part_name(&wanted.serving.name, part))).into(),
            parts: parts.filter_map(|part| Some((part, self.part(part)?))).collect(),
            draining: draining.map(|(slot, at)| (ServerPart::Transformer(slot), at)),
            watched,
            placed: self.placed.as_ref(),
            restart: self.restart,
            restarted_at: wanted.serving.restarted_at.as_ref(),
            kept_volumes: self.kept_volumes(context),
        }
    }

    /// The volumes of the engine of the kept versions: a version to which the server returns finds
    /// its files.
    fn kept_volumes(&self, context: &NodeContext) -> Vec<String> {
        let volumes = self.rollout.kept_versions().flat_map(|version| {
            let volumes = volumes_of(version.node_program(&self.uid), context);
            engine_volumes(&volumes).into_iter().map(str::to_owned).collect::<Vec<_>>()
        });
        volumes.collect()
    }

    /// Starts the probes of versions whose containers came up, and drops those of the others.
    pub fn observe(
        &mut self,
        containers: &ObservedServer<'_>,
        context: &NodeContext,
        now: Instant,
    ) {
        let server = self.container().and_then(|it| live(containers, ServerPart::Server, &it.hash));
        let hash = |part| {
            let container = self.part(part)?;
            if part == ServerPart::Server || context.network.is_none() {
                return Some((part, container.hash.clone()));
            }
            Some((part, beside(container, &server?.id, context).hash.clone()))
        };
        self.hashes = ServerPart::ALL.into_iter().filter_map(hash).collect();
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

    /// The run of the containers that serve this version, if they do.
    fn run_of(
        &self,
        version: &ServedVersion,
        observed: &ObservedServer<'_>,
        context: &NodeContext,
    ) -> Option<String> {
        let containers = self.containers.get(version.id())?;
        let is_placed = !version.watches()
            || self.placed.as_ref().is_some_and(|placed| {
                placed.dir == version.versions_dir(&self.uid, &context.data_dir)
                    && placed.names.contains(version.version())
            });
        let server = live(observed, ServerPart::Server, &containers.server.hash);
        let server = server.filter(|_| is_placed)?;
        let Some(transformer) = &containers.transformer else { return Some(server.run_name()) };
        let transformer = beside(transformer, &server.id, context);
        let part = ServerPart::Transformer(containers.slot);
        let transformer = live(observed, part, &transformer.hash)?;
        Some(format!("{}+{}", server.run_name(), transformer.run_name()))
    }

    /// The images that must be on the node before the target replaces the running version.
    pub fn awaited_images<'a>(
        &'a self,
        wanted: &'a WantedServer,
    ) -> impl Iterator<Item = &'a String> {
        let current = self.rollout.current.as_ref();
        let is_used = move |image: &String| {
            current.is_some_and(|current| images_of(&current.serving).any(|used| used == image))
        };
        let images = images_of(&wanted.serving);
        images.filter(move |image| wanted.refusal.is_none() && !is_used(image))
    }
}

/// The live container of a part with this hash.
fn live<'a>(
    containers: &ObservedServer<'a>,
    part: ServerPart,
    hash: &ContentHash,
) -> Option<&'a ObservedContainer> {
    let is_target =
        |container: &&&ObservedContainer| container.is_alive() && container.has_spec(hash);
    containers.get(&part)?.iter().find(is_target).copied()
}
