//! Decides the steps that make the containers of a model server and of its transformer, and its
//! directory of versions, match the current version of the rollout, which rollout/ decides. Pure.
//!
//! | current version | container | directory of versions | then |
//! |---|---|---|---|
//! | none, or its model is not on the node | of this object, alive | | keep it |
//! | " | other | | remove it |
//! | exists | any | has other versions | update it |
//! | exists | alive with its spec | right | keep it, or replace it if it hangs; remove duplicates |
//! | exists | other or none | right | after the backoff: replace it by one with its spec |
//!
//! The transformer follows its server: it is started once the container of the server runs. One that
//! the current version does not have is removed before the server is started, because the server may
//! need its port. Of the two, at most one has a step in flight.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Instant,
};

use neptune_wire::{ObjectKey, WorkerName};

use crate::{
    domain::{
        artifact::{LocalArtifact, PlacedVersions},
        container::TargetContainer,
        observed_container::ObservedContainer,
        server_part::ServerPart,
    },
    model_server::container::beside,
    plan::{Convergence, NodeFacts, NodePlan, Target, attempts::Attempts},
};

/// The target state of a model server.
pub struct ServerTarget<'a> {
    pub owner: &'a ObjectKey,
    pub uid: &'a str,
    pub name: &'a WorkerName,
    pub transformer_name: WorkerName,
    /// `None` while no version is chosen, or its model is not on the node.
    pub container: Option<&'a TargetContainer>,
    /// The container of its transformer, if the version has one.
    pub transformer: Option<&'a TargetContainer>,
    /// The directory that it watches.
    pub watched: Option<WatchedDirectory>,
    /// The versions in that directory; `None` if unknown.
    pub placed: Option<&'a PlacedVersions>,
    /// Whose container to replace because it does not answer.
    pub restart: Option<ServerPart>,
}

/// The target state of a directory of versions.
pub struct WatchedDirectory {
    pub dir: PathBuf,
    pub versions: BTreeMap<String, LocalArtifact>,
}

impl WatchedDirectory {
    fn is_placed(&self, placed: Option<&PlacedVersions>) -> bool {
        placed.is_some_and(|placed| {
            placed.dir == self.dir
                && placed.names == self.versions.keys().cloned().collect::<BTreeSet<_>>()
        })
    }
}

/// Adds the steps for one model server.
pub fn plan_server(
    plan: &mut NodePlan,
    facts: &NodeFacts<'_>,
    server: &ServerTarget<'_>,
    now: Instant,
) {
    let idle = Attempts::default();
    let [attempts, of_transformer] = [server.name, &server.transformer_name]
        .map(|name| facts.attempts.get(name).unwrap_or(&idle));
    let is_settled = facts.is_settled(attempts) && facts.is_settled(of_transformer);
    if facts.observed.is_err() || !is_settled {
        return;
    }
    let transformer_name = &server.transformer_name;
    let Some(container) = server.container else {
        plan.keep_alive(facts, (server.name, server.uid), attempts, now);
        plan.keep_alive(facts, (transformer_name, server.uid), of_transformer, now);
        return;
    };
    if let Some(WatchedDirectory { dir, versions }) =
        server.watched.as_ref().filter(|watched| !watched.is_placed(server.placed))
    {
        return plan.place(server.name, dir.clone(), versions.clone(), attempts, now);
    }
    let target = Target {
        name: server.name,
        owner: server.owner,
        uid: server.uid,
        container,
        restart: server.restart == Some(ServerPart::Server),
    };
    let transformers = facts.containers(transformer_name);
    if let Some(stale) = stale_transformers(facts, server, &target, &transformers) {
        return plan.remove(transformer_name, stale, of_transformer, now);
    }
    // The health of a model server comes from its probes, not from its convergence.
    let Convergence::Running(running) = plan.converge(facts, &target, attempts, now) else {
        return;
    };
    if let Some(transformer) = server.transformer {
        let target = Target {
            name: transformer_name,
            container: &beside(transformer, &running.id, facts.context),
            restart: server.restart == Some(ServerPart::Transformer),
            ..target
        };
        let _ = plan.converge(facts, &target, of_transformer, now);
    }
}

/// The containers of transformers to remove before anything else: all of them if the version has
/// none, and live ones of other versions before the server is started.
fn stale_transformers(
    facts: &NodeFacts<'_>,
    server: &ServerTarget<'_>,
    target: &Target<'_>,
    transformers: &[&ObservedContainer],
) -> Option<Vec<String>> {
    let is_stale = |container: &&&ObservedContainer| match server.transformer {
        None => true,
        // A hanging server is replaced first.
        Some(_) if target.restart => false,
        // On a Docker network a transformer cannot use the next container of its server.
        Some(transformer) => {
            let is_kept = facts.context.network.is_none() && container.has_spec(&transformer.hash);
            container.is_alive() && !is_kept
        }
    };
    let starts =
        server.transformer.is_none() || target.running(&facts.containers(target.name)).is_none();
    let stale: Vec<String> = transformers
        .iter()
        .filter(|container| starts && is_stale(container))
        .map(|container| container.id.clone())
        .collect();
    (!stale.is_empty()).then_some(stale)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::unwrap_used)]
    use std::time::Duration;

    use neptune_wire::AgentInstance;

    use super::*;
    use crate::{
        desired::Desired,
        domain::{
            container::ContainerSpec,
            observed_container::{
                ContainerExit, ContainerIdentity, ContainerState, ObservedContainer,
            },
            outcome::StepOutcome,
            problem::Problem,
            step::Step,
        },
        domain::{node_context::NodeContext, served_version::ServedVersion},
        fixtures::{node_context, observed_container, served_version, serving, transformed},
        model_server::container::{VersionContainers, server_container, version_containers},
    };

    fn observed(id: &str, spec: &ContainerSpec, uid: &str) -> ObservedContainer {
        let identity = ContainerIdentity {
            node: node_context().node,
            instance: AgentInstance("this".into()),
            owner: "d/inferencemodels/m".parse().unwrap(),
            uid: uid.into(),
            worker: "m-server-1".parse().unwrap(),
            spec_hash: spec.hash().to_string(),
            restarts: 0,
        };
        let state = ContainerState::Running;
        ObservedContainer { identity, state, started_at: String::new(), ..observed_container(id) }
    }

    fn spec(version: &str) -> ContainerSpec {
        let model = LocalArtifact { path: "/data/x".into(), file: None };
        let version = served_version(version, "replace");
        server_container(&version, "uid", Some(&model), &node_context())
    }

    /// The planned steps as text, and when to plan again.
    fn planned(
        containers: &[ObservedContainer],
        attempts: Attempts,
        placed: Option<&PlacedVersions>,
        change: impl FnOnce(&mut ServerTarget<'_>),
    ) -> (Vec<String>, Option<Instant>) {
        let name: WorkerName = "m-server-1".parse().unwrap();
        let owner = "d/inferencemodels/m".parse().unwrap();
        let container = spec("4").into();
        let mut wanted = ServerTarget {
            owner: &owner,
            uid: "uid",
            name: &name,
            transformer_name: "m-server-1-transformer".parse().unwrap(),
            container: Some(&container),
            transformer: None,
            watched: None,
            placed,
            restart: None,
        };
        change(&mut wanted);
        let facts = NodeFacts {
            desired: &Desired::default(),
            is_complete: true,
            keep: &BTreeSet::new(),
            instance: &AgentInstance("this".into()),
            context: &node_context(),
            observed: Ok((containers, 1)),
            attempts: &[(name.clone(), attempts)].into(),
        };
        let mut made = NodePlan::default();
        plan_server(&mut made, &facts, &wanted, Instant::now());
        let text = |step: &Step| match step {
            Step::Start { remove, .. } => format!("start, remove {remove:?}"),
            Step::Remove { ids, .. } => format!("remove {ids:?}"),
            Step::Place { versions, .. } => format!("place {:?}", versions.keys()),
        };
        (made.steps.iter().map(text).collect(), made.next_at)
    }

    fn steps(
        containers: &[ObservedContainer],
        change: impl FnOnce(&mut ServerTarget<'_>),
    ) -> Vec<String> {
        planned(containers, Attempts::default(), None, change).0
    }

    #[test]
    fn old_container_is_removed_only_when_new_one_can_start() {
        let (old, right) =
            (observed("old", &spec("3"), "uid"), observed("right", &spec("4"), "uid"));
        let unknown = observed("unknown", &spec("3"), "of a deleted object");
        let nothing: [&str; 0] = [];
        assert_eq!(steps(&[], |_| ()), ["start, remove []"]);
        assert_eq!(steps(std::slice::from_ref(&old), |_| ()), [r#"start, remove ["old"]"#]);
        assert_eq!(
            steps(std::slice::from_ref(&old), |wanted| wanted.container = None),
            nothing,
            "its model is not on the node"
        );
        let without_model = steps(&[old.clone(), unknown], |wanted| wanted.container = None);
        assert_eq!(without_model, [r#"remove ["unknown"]"#]);
        assert_eq!(steps(std::slice::from_ref(&right), |_| ()), nothing);
        assert_eq!(steps(&[right.clone(), old], |_| ()), [r#"remove ["old"]"#]);
        let hanging =
            steps(std::slice::from_ref(&right), |wanted| wanted.restart = Some(ServerPart::Server));
        assert_eq!(hanging, [r#"start, remove ["right"]"#]);
        let exit = ContainerExit { exit_code: 1, out_of_memory: false, log_tail: String::new() };
        let ended = ObservedContainer { state: ContainerState::Exited(exit), ..right.clone() };
        assert_eq!(steps(&[ended], |_| ()), [r#"start, remove ["right"]"#]);
        let draining = ObservedContainer { state: ContainerState::Removing, ..right };
        assert_eq!(steps(&[draining], |_| ()), nothing, "waits for Docker's event");
    }

    /// The containers of a server with the transformer `image`, on this network.
    fn pair(image: Option<&str>, network: Option<&str>) -> VersionContainers {
        let mut serving = match image {
            Some(_) => transformed("4", "replace"),
            None => serving("4", "replace"),
        };
        if let (Some(transformer), Some(image)) = (&mut serving.transformer, image) {
            transformer.image = image.to_owned();
        }
        let context = NodeContext { network: network.map(str::to_owned), ..node_context() };
        let model = LocalArtifact { path: "/data/x".into(), file: None };
        // The server behind a transformer listens on another port.
        serving.args = vec![format!("--port={}", if image.is_some() { 13_501 } else { 8501 })];
        version_containers(&ServedVersion::new(&serving, 1), "uid", Some(&model), &context)
    }

    /// An engine that executes planned steps.
    struct Engine {
        containers: Vec<ObservedContainer>,
        created: usize,
        context: NodeContext,
    }

    impl Engine {
        fn new(network: Option<&str>) -> Self {
            let context = NodeContext { network: network.map(str::to_owned), ..node_context() };
            Self { containers: Vec::new(), created: 0, context }
        }

        fn named(&self, name: &str) -> Vec<&ObservedContainer> {
            let has_name = |it: &&ObservedContainer| it.identity.worker.as_str() == name;
            self.containers.iter().filter(has_name).collect()
        }

        /// Plans and executes one turn. Returns the steps as text.
        fn turn(&mut self, target: &VersionContainers, restart: Option<ServerPart>) -> Vec<String> {
            let owner = "d/inferencemodels/m".parse().unwrap();
            let name = "m-server-1".parse().unwrap();
            let server = ServerTarget {
                owner: &owner,
                uid: "uid",
                name: &name,
                transformer_name: "m-server-1-transformer".parse().unwrap(),
                container: Some(&target.server),
                transformer: target.transformer.as_ref(),
                watched: None,
                placed: None,
                restart,
            };
            let facts = NodeFacts {
                desired: &Desired::default(),
                is_complete: true,
                keep: &BTreeSet::new(),
                instance: &AgentInstance("this".into()),
                context: &self.context,
                observed: Ok((&self.containers, 1)),
                attempts: &BTreeMap::new(),
            };
            let mut plan = NodePlan::default();
            plan_server(&mut plan, &facts, &server, Instant::now());
            plan.steps.into_iter().map(|step| self.execute(step)).collect()
        }

        fn execute(&mut self, step: Step) -> String {
            let is_transformer = step.worker().as_str().ends_with("-transformer");
            let part = if is_transformer { "transformer" } else { "server" };
            match step {
                Step::Start { identity, spec, remove, .. } => {
                    self.containers.retain(|it| !remove.contains(&it.id));
                    if let Some(server) = &spec.network_of {
                        assert!(self.containers.iter().any(|it| it.id == *server && it.is_alive()));
                    }
                    let listens = |it: &&ObservedContainer| {
                        it.is_alive() && it.identity.worker != identity.worker
                    };
                    let others = self.containers.iter().filter(listens);
                    let ports: Vec<_> = others.map(|it| it.sources[0].clone()).collect();
                    let own = match spec.args.first() {
                        Some(flag) => flag.clone(),
                        None => format!("--port={}", spec.env["PORT"]),
                    };
                    assert!(!ports.contains(&own), "port conflict: {own}");
                    self.created += 1;
                    let id = format!("c{}", self.created);
                    let container = ObservedContainer {
                        identity,
                        // Its port, as a note.
                        sources: vec![own],
                        ..observed_container(&id)
                    };
                    self.containers.push(container);
                    format!("start {part}")
                }
                Step::Remove { ids, .. } => {
                    self.containers.retain(|it| !ids.contains(&it.id));
                    format!("remove {part}")
                }
                Step::Place { .. } => unreachable!("no directory of versions"),
            }
        }

        fn settle(&mut self, target: &VersionContainers) -> Vec<String> {
            let mut all = Vec::new();
            for _ in 0..8 {
                let steps = self.turn(target, None);
                if steps.is_empty() {
                    return all;
                }
                assert_eq!(steps.len(), 1, "one step at a time: {steps:?}");
                all.extend(steps);
            }
            unreachable!("does not settle: {all:?}")
        }
    }

    #[test]
    fn another_transformer_keeps_the_container_of_the_server() {
        for network in [None, Some("bridge")] {
            let mut engine = Engine::new(network);
            let pairs = ["t1", "t2"].map(|image| pair(Some(image), network));
            assert_eq!(engine.settle(&pairs[0]), ["start server", "start transformer"]);
            assert_eq!(engine.settle(&pairs[1]), ["start transformer"]);
            let hanging = engine.turn(&pairs[1], Some(ServerPart::Transformer));
            assert_eq!(hanging, ["start transformer"]);
            assert_eq!(engine.turn(&pairs[1], Some(ServerPart::Server))[0], "start server");
            let steps = engine.settle(&pairs[1]);
            match network {
                None => assert_eq!(steps.len(), 0, "it reaches the next server at the same port"),
                Some(_) => assert_eq!(steps, ["start transformer"]),
            }
        }
    }

    #[test]
    fn transformer_leaves_the_port_before_its_server_takes_it() {
        let mut engine = Engine::new(None);
        let (plain, transformed) = (pair(None, None), pair(Some("t1"), None));
        assert_eq!(engine.settle(&plain), ["start server"]);
        assert_eq!(engine.settle(&transformed), ["start server", "start transformer"]);
        assert_eq!(engine.settle(&plain), ["remove transformer", "start server"]);
    }

    proptest::proptest! {
        /// After any exits and changes of the target: the containers become those of the target, never
        /// two with one port, and none in the network of a container that is gone.
        #[test]
        fn pair_converges_after_any_faults(
            on_network in proptest::bool::ANY,
            events in proptest::collection::vec((0..4usize, 0..4usize, 0..3usize), 1..12),
        ) {
            let network = on_network.then_some("bridge");
            let targets = [None, Some("t1"), Some("t2"), Some("t3")].map(|it| pair(it, network));
            let mut engine = Engine::new(network);
            let mut last = &targets[0];
            for (target, victim, turns) in events {
                last = &targets[target];
                for _ in 0..turns {
                    let _ = engine.turn(last, None);
                }
                if let Some(container) = engine.containers.get_mut(victim) {
                    let log_tail = String::new();
                    let exit = ContainerExit { exit_code: 1, out_of_memory: false, log_tail };
                    container.state = ContainerState::Exited(exit);
                }
            }
            engine.settle(last);
            let [server] = engine.named("m-server-1")[..] else { unreachable!("one server") };
            proptest::prop_assert!(server.is_alive() && server.has_spec(&last.server.hash));
            let transformers = engine.named("m-server-1-transformer");
            proptest::prop_assert_eq!(transformers.len(), usize::from(last.transformer.is_some()));
            for (found, wanted) in transformers.iter().zip(&last.transformer) {
                let wanted = beside(wanted, &server.id, &engine.context);
                proptest::prop_assert!(found.is_alive() && found.has_spec(&wanted.hash));
            }
        }
    }

    #[test]
    fn versions_are_placed_before_server_starts() {
        let watched = || {
            let model = LocalArtifact { path: "/data/x".into(), file: None };
            Some(WatchedDirectory {
                dir: "/d/1".into(),
                versions: [("4".to_owned(), model)].into(),
            })
        };
        let placed = |dir: &str, names: &[&str]| PlacedVersions {
            dir: dir.into(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        let right = placed("/d/1", &["4"]);
        for other in [None, Some(placed("/d/1", &["3", "4"])), Some(placed("/d/2", &["4"]))] {
            let (steps, _) =
                planned(&[], Attempts::default(), other.as_ref(), |w| w.watched = watched());
            assert_eq!(steps, [r#"place ["4"]"#]);
        }
        let (steps, _) = planned(&[], Attempts::default(), Some(&right), |w| w.watched = watched());
        assert_eq!(steps, ["start, remove []"]);
    }

    #[test]
    fn busy_or_backing_off_server_has_no_steps() {
        let (mut busy, mut unseen) = (Attempts::default(), Attempts::default());
        busy.busy = true;
        unseen.fresh_from = 2;
        assert_eq!(planned(&[], busy, None, |_| ()), (vec![], None));
        assert_eq!(planned(&[], unseen, None, |_| ()), (vec![], None));
        let mut failed = Attempts::default();
        let problem =
            Problem { reason: neptune_wire::WorkerReason::ContainerRefused, message: "no".into() };
        let now = Instant::now();
        failed.done(StepOutcome::Failed(problem), None, 1, now, 0);
        let (steps, next_at) = planned(&[], failed, None, |_| ());
        assert!(
            steps.is_empty() && next_at.is_some_and(|at| at > now + Duration::from_millis(500))
        );
    }
}
