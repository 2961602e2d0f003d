//! The node's model servers: derives decisions from observations, stores them before they take
//! effect, and sends the health probes. The decisions are made in `model_server/rollout`.

mod needs;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use neptune_agent_core::{
    desired::{Desired, WantedServer},
    domain::{
        artifact::PlacedVersions,
        node_context::NodeContext,
        observed_container::ObservedContainer,
        rollout::RolloutState,
        served_version::{ServedVersion, VERSIONS_DIR},
        server_part::{ObservedServer, ProbeFailure, ServerPart, part_name},
    },
    model_server::{container::proxy_dir, plan::plan_server},
    plan::{NodeFacts, NodePlan, attempts::Attempts},
};
use neptune_edge_engine::image_pulls::ImagePulls;
use neptune_wire::ObjectKey;
use tokio::sync::mpsc;
use tracing::{error, info};

use super::{
    containers::Containers,
    node_artifacts::sync_downloads,
    rollout_log::{log_changes, log_switch},
};
use crate::{
    artifacts::{datasets::Datasets, downloads::Downloads, models::Models, version_directory},
    event::AgentEvent,
    model_server::{
        instance::{InstanceFacts, InstanceInputs, ModelServerInstance, Route},
        route_file,
    },
    probes::http::{self, Request},
    storage::Store,
    values::opened::ServerValues,
};

/// Maximum changes of the rollout state per turn. The next change waits for the next observation.
const MAX_DECISIONS: usize = 4;
/// Pause between a failed write of a decision and the next attempt.
const STORE_RETRY: Duration = Duration::from_secs(1);
/// Time from the switch of the proxy to another transformer until the previous one is stopped.
const DRAIN: Duration = Duration::from_secs(10);

/// The model servers of the node, by object.
#[derive(Default)]
pub struct ModelServers {
    instances: BTreeMap<ObjectKey, ModelServerInstance>,
    /// Directories that the last garbage collection retained.
    gc_kept: Option<BTreeSet<PathBuf>>,
}

/// The state of other parts that the decisions use.
pub struct ServerContext<'a> {
    pub desired: &'a Desired,
    pub context: &'a NodeContext,
    pub values: &'a ServerValues,
    pub models: &'a Models,
    pub datasets: &'a Datasets,
    pub downloads: &'a mut Downloads,
    pub images: &'a mut ImagePulls<AgentEvent>,
    pub store: &'a mut Store,
}

impl ServerContext<'_> {
    fn inputs(&self) -> InstanceInputs<'_> {
        InstanceInputs { downloads: self.downloads, values: self.values, context: self.context }
    }
}

/// Whether a server needs another decision in this turn.
enum ServerDecision {
    /// Decided until the next observation, or until this time.
    Settled(Option<Instant>),
    /// The rollout state changed, so that the next decision may differ.
    Changed,
}

impl ModelServers {
    pub fn get(&self, key: &ObjectKey) -> Option<&ModelServerInstance> {
        self.instances.get(key)
    }

    /// The rollout of each server.
    pub fn rollouts(&self) -> impl Iterator<Item = (&ObjectKey, &RolloutState)> {
        self.instances.iter().map(|(key, server)| (key, &server.rollout))
    }

    /// Creates the state of new model servers from the database, and drops the removed ones.
    pub fn set_wanted(&mut self, wanted: &BTreeMap<ObjectKey, WantedServer>, store: &Store) {
        self.instances
            .retain(|key, server| wanted.get(key).is_some_and(|wanted| wanted.uid == server.uid));
        for (key, wanted) in wanted {
            if self.instances.contains_key(key) {
                continue;
            }
            let rollout = store.rollout(&wanted.uid).unwrap_or_else(|error| {
                error!(%error, object = %key, "failed to read stored rollout state; starting without it");
                RolloutState::default()
            });
            let server =
                ModelServerInstance::new(key.namespace.clone(), wanted.uid.clone(), rollout);
            self.instances.insert(key.clone(), server);
        }
    }

    /// Decides for each server, and stores the decisions. Returns when the next decision is due.
    pub fn decide(
        &mut self,
        node: &mut ServerContext<'_>,
        containers: &mut Containers,
        now: Instant,
    ) -> Option<Instant> {
        let desired = node.desired;
        let times = desired.servers.iter().filter_map(|(key, wanted)| {
            self.instances.get_mut(key)?.resolve(&node.inputs());
            let mut next_at = None;
            for _ in 0..MAX_DECISIONS {
                if let ServerDecision::Settled(at) =
                    self.decide_once(key, wanted, node, containers, now)
                {
                    next_at = at;
                    break;
                }
            }
            [next_at, self.update_route(key, node.context, now)].into_iter().flatten().min()
        });
        times.min()
    }

    /// Lets the proxy of a server pass requests to the right transformer. Returns when to try again
    /// after a failure.
    fn update_route(
        &mut self,
        key: &ObjectKey,
        context: &NodeContext,
        now: Instant,
    ) -> Option<Instant> {
        let server = self.instances.get_mut(key)?;
        let Some((slot, port)) = server.wanted_route() else {
            server.route = None;
            return None;
        };
        let previous = server.route.as_ref();
        if previous.is_some_and(|route| (route.slot, route.port) == (slot, port)) {
            return None;
        }
        if let Err(error) = route_file::write(&proxy_dir(&server.uid, &context.data_dir), port) {
            error!(%error, object = %key, "failed to write the target of the proxy; it keeps the previous one");
            return Some(now + STORE_RETRY);
        }
        let is_other = previous.is_some_and(|route| route.slot != slot);
        if is_other {
            info!(object = %key, port, "requests are passed to the other transformer");
        }
        server.route = Some(Route { slot, port, drained_at: is_other.then_some(now + DRAIN) });
        None
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn decide_once(
        &mut self,
        key: &ObjectKey,
        wanted: &WantedServer,
        node: &mut ServerContext<'_>,
        containers: &mut Containers,
        now: Instant,
    ) -> ServerDecision {
        let Some(server) = self.instances.get_mut(key) else {
            return ServerDecision::Settled(None);
        };
        let name = &wanted.serving.name;
        let names = ServerPart::ALL.map(|part| (part, part_name(name, part)));
        let undescribed = containers.observer.undescribed();
        let undescribed = names.iter().find_map(|(_, name)| undescribed.get(name));
        let engine_problem = containers.observer.latest().err().map(str::to_owned);
        let engine_problem = engine_problem.or_else(|| undescribed.cloned());
        if engine_problem.is_none() {
            let observed = names.iter();
            let observed: ObservedServer = observed
                .map(|(part, name)| (*part, containers.observed_of(name).collect()))
                .collect();
            server.observe(&observed, node.context, now);
        }
        let idle = Attempts::default();
        let attempts = |name| containers.attempts.get(name).unwrap_or(&idle);
        let [_, beside @ ..] = &names;
        let facts = InstanceFacts {
            attempts: attempts(name),
            beside: &beside.iter().map(|(part, name)| (*part, attempts(name))).collect(),
            engine_problem: engine_problem.as_deref(),
            now,
            wall: &format!("{:.3}", Timestamp::now()),
        };
        let mut decision = server.decide(wanted, &facts, &node.inputs(), node.images);
        decision.mask(|text| node.values.mask(name, text));
        if decision.state == server.rollout {
            server.restart = decision.restart;
            log_changes(key, &server.report, &decision.report);
            server.report = decision.report;
            return ServerDecision::Settled(decision.next_at);
        }
        if let Err(error) = node.store.save_rollout(key, &wanted.uid, &decision.state) {
            error!(%error, object = %key, "failed to store rollout decision; it takes no effect until it is stored");
            return ServerDecision::Settled(Some(now + STORE_RETRY));
        }
        if log_switch(key, &server.rollout, &decision) {
            for (_, name) in &names {
                containers.attempts_of(name).reset_failures();
            }
        }
        server.rollout = decision.state;
        let artifacts = (node.models, node.datasets);
        let needs = self.needs(node.desired, node.values);
        sync_downloads(needs, artifacts, node.downloads, node.images);
        if let Some(server) = self.instances.get_mut(key) {
            server.resolve(&node.inputs());
        }
        // The garbage collection after the next observation removes what is no longer needed.
        containers.observer.invalidate(now);
        ServerDecision::Changed
    }

    /// Sets the spec hash that the container of each server and transformer must have.
    pub fn set_targets(&self, desired: &Desired, containers: &mut Containers) {
        for (key, wanted) in &desired.servers {
            let server = self.instances.get(key);
            let restarted_at = wanted.serving.restarted_at.as_ref();
            if let Some(container) = server.and_then(ModelServerInstance::container) {
                containers.set_target(&wanted.serving.name, &container.hash, restarted_at);
            }
            for (part, hash) in server.iter().flat_map(|server| &server.hashes) {
                if *part != ServerPart::Server {
                    let name = part_name(&wanted.serving.name, *part);
                    containers.set_target(&name, hash, restarted_at);
                }
            }
        }
    }

    /// Adds the steps of all servers to the plan.
    pub fn plan(
        &self,
        plan: &mut NodePlan,
        facts: &NodeFacts<'_>,
        downloads: &Downloads,
        now: Instant,
    ) {
        for (key, wanted) in &facts.desired.servers {
            // Containers of this name may belong to another object that has the same name.
            let has_name = facts.desired.server_named(&wanted.serving.name) == Some(key);
            if let Some(server) = self.instances.get(key).filter(|_| has_name) {
                let target = server.target(key, wanted, downloads, facts.context);
                plan_server(plan, facts, &target, now);
            }
        }
    }

    /// Sends the probes that are due. Returns when the next one is due.
    pub fn send_probes(
        &mut self,
        events: &mpsc::Sender<AgentEvent>,
        now: Instant,
    ) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for (key, server) in &mut self.instances {
            for version in server.rollout.probed_versions() {
                let is_routed = server.is_routed(version);
                let Some((run, probes)) = server.probes.get_mut(version.id()) else { continue };
                if probes.is_due(now) {
                    send_probe(key, (version, is_routed), run, events);
                } else if let Some(at) = probes.next_at() {
                    next = Some(next.map_or(at, |next| next.min(at)));
                }
            }
        }
        next
    }

    /// Records the result of a probe. Results of earlier runs are ignored.
    pub fn on_probe_done(
        &mut self,
        key: &ObjectKey,
        version: &str,
        run: &str,
        answer: Result<(), ProbeFailure>,
        now: Instant,
    ) {
        let Some(server) = self.instances.get_mut(key) else { return };
        let health = server.rollout.probed_versions().find(|known| known.id() == version);
        let Some(health) = health.map(|version| version.serving.health.clone()) else { return };
        if let Some((_, probes)) =
            server.probes.get_mut(version).filter(|(probed, _)| probed == run)
        {
            probes.record(answer, &health, now);
        }
    }

    /// Records the versions that are in the server's directory now. Returns whether the server
    /// exists.
    pub fn set_placed(&mut self, key: &ObjectKey, versions: &PlacedVersions) -> bool {
        let server = self.instances.get_mut(key);
        server.map(|server| server.placed = Some(versions.clone())).is_some()
    }

    /// Downloads the models of this server again, because a file is missing.
    pub fn refetch_models(&self, key: &ObjectKey, downloads: &mut Downloads) {
        let server = self.instances.get(key).into_iter();
        for source in server.flat_map(ModelServerInstance::kept_sources) {
            downloads.refetch(&source);
        }
    }

    /// Removes version directories that no server watches any more.
    pub fn gc(&mut self, containers: &[ObservedContainer], data_dir: &Path) {
        let root = data_dir.join(VERSIONS_DIR);
        let mut kept = version_directory::mounted_below(&root, containers);
        for server in self.instances.values() {
            let versions = server.rollout.kept_versions();
            kept.extend(versions.map(|version| version.versions_dir(&server.uid, data_dir)));
            kept.extend(server.route.iter().map(|_| proxy_dir(&server.uid, data_dir)));
        }
        let uids = self.instances.values().map(|server| server.uid.clone()).collect();
        version_directory::gc_changed(&root, &uids, kept, &mut self.gc_kept);
    }
}

fn send_probe(
    key: &ObjectKey,
    (version, is_routed): (&ServedVersion, bool),
    run: &str,
    events: &mpsc::Sender<AgentEvent>,
) {
    let (events, key) = (events.clone(), key.clone());
    let (id, run) = (version.id().to_owned(), run.to_owned());
    let checks = version.checks(is_routed);
    let timeout = Duration::from_millis(version.serving.health.timeout_ms.max(1));
    tokio::spawn(async move {
        let mut answer = Ok(());
        for (part, port, path) in checks {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let request = path.as_deref().map_or(Request::Connect, Request::Get);
            let result = http::probe(address, request, timeout).await;
            answer = result.map_err(|message| ProbeFailure { part, message });
            if answer.is_err() {
                break;
            }
        }
        let _ = events.send(AgentEvent::ProbeDone { key, version: id, run, answer }).await;
    });
}
