//! Decides the steps that make the containers of a model server and of its transformer, and its
//! directory of versions, match the current version of the rollout, which rollout/ decides.
//!
//! | current version | container | directory of versions | then |
//! |---|---|---|---|
//! | none, or its model is not on the node | of this object, alive | | keep it |
//! | " | other | | remove it |
//! | exists | any | has other versions | update it |
//! | exists, but a device is not there or not free | any | any | remove it |
//! | exists | alive with its spec | right | keep it, or replace it if it hangs; remove duplicates |
//! | exists | other or none | right | after the backoff: replace it by one with its spec |
//!
//! The transformer and its proxy follow their server: they are started once the container of the
//! server runs. Those that the current version does not have are removed before the server is
//! started, because the server may need their port. While another transformer is on trial before
//! the same container of the server, both run. The one that gets no requests any more is kept until
//! its last requests are answered. Of all parts, at most one has a step in flight.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Instant,
};

use neptune_wire::{ObjectKey, RestartTime, WorkerName};

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

/// The containers that a model server needs now, and what is known of them.
pub struct ServerTarget<'a> {
    pub owner: &'a ObjectKey,
    pub uid: &'a str,
    pub name: &'a WorkerName,
    /// The names of all parts, also of those that it does not have.
    pub names: BTreeMap<ServerPart, WorkerName>,
    /// The containers that must run; none while no version is chosen, or its model is not on the
    /// node.
    pub parts: BTreeMap<ServerPart, &'a TargetContainer>,
    /// The transformer that gets no requests any more, and when its last ones are answered.
    pub draining: Option<(ServerPart, Instant)>,
    /// The directory that it watches.
    pub watched: Option<WatchedDirectory>,
    /// The versions in that directory; `None` if unknown.
    pub placed: Option<&'a PlacedVersions>,
    /// Whose container to replace because it does not answer.
    pub restart: Option<ServerPart>,
    /// The last restart of all parts that a person requested.
    pub restarted_at: Option<&'a RestartTime>,
    /// The volumes of the engine of the versions that run, or to which the server may return.
    pub kept_volumes: Vec<String>,
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
    let attempts_of = |name: &WorkerName| facts.attempts.get(name).unwrap_or(&idle);
    let is_settled = server.names.values().all(|name| facts.is_settled(attempts_of(name)));
    let is_described = server.names.values().all(|name| !facts.undescribed.contains_key(name));
    if facts.observed.is_err() || !is_settled || !is_described {
        return;
    }
    let Some(container) = server.parts.get(&ServerPart::Server) else {
        for name in server.names.values() {
            plan.keep_alive(facts, (name, server.uid), attempts_of(name), now);
        }
        return;
    };
    let attempts = attempts_of(server.name);
    let Ok(devices) = facts.devices_of(server.name, container) else {
        return plan.release_devices(facts, server.name, attempts, now);
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
        devices,
        restart: server.restart == Some(ServerPart::Server),
        restarted_at: server.restarted_at,
        kept_volumes: &server.kept_volumes,
    };
    let starts = target.running(&facts.containers(server.name)).is_none();
    for (part, name) in server.names.iter().filter(|(part, _)| **part != ServerPart::Server) {
        let stale = stale(facts, server, *part, name, starts);
        if stale.is_empty() {
            continue;
        }
        if let Some(drained_at) = server.drained_at(*part, now).filter(|_| !starts) {
            plan.schedule(drained_at);
            continue;
        }
        return plan.remove(name, stale, attempts_of(name), now);
    }
    // The health of a model server comes from its probes, not from its convergence.
    let Convergence::Running(running) = plan.converge(facts, &target, attempts, now) else {
        return;
    };
    for (part, container) in server.parts.iter().filter(|(part, _)| **part != ServerPart::Server) {
        let name = &server.names[part];
        let target = Target {
            name,
            container: &beside(container, &running.id, facts.context),
            devices: &[],
            restart: server.restart == Some(*part),
            ..target
        };
        let containers = facts.containers(name);
        let is_live = containers.iter().any(|container| container.is_alive());
        if target.running(&containers).is_none()
            && let Some(drained_at) = server.drained_at(*part, now).filter(|_| is_live)
        {
            plan.schedule(drained_at);
            continue;
        }
        match plan.converge(facts, &target, attempts_of(name), now) {
            Convergence::Running(_) | Convergence::BackingOff => {}
            Convergence::Starting | Convergence::Removing => return,
        }
    }
}

impl ServerTarget<'_> {
    /// When the last requests at this part are answered, if that is in the future.
    fn drained_at(&self, part: ServerPart, now: Instant) -> Option<Instant> {
        let draining = self.draining.filter(|(draining, at)| *draining == part && *at > now);
        draining.map(|(_, at)| at)
    }
}

/// The containers of a transformer or a proxy to remove before anything else: all of them if the
/// version does not have it, and live ones of other versions before the server is started.
fn stale(
    facts: &NodeFacts<'_>,
    server: &ServerTarget<'_>,
    part: ServerPart,
    name: &WorkerName,
    starts: bool,
) -> Vec<String> {
    let wanted = server.parts.get(&part);
    let is_hanging = server.restart == Some(ServerPart::Server);
    let is_stale = |container: &&&ObservedContainer| match wanted {
        None => true,
        // A hanging server is replaced first.
        Some(_) if !starts || is_hanging => false,
        // On a Docker network, none can use the next container of its server.
        Some(wanted) => {
            let is_kept = facts.context.network.is_none() && container.has_spec(&wanted.hash);
            container.is_alive() && !is_kept
        }
    };
    let containers = facts.containers(name);
    containers.iter().filter(is_stale).map(|container| container.id.clone()).collect()
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
            device::DeviceUnit,
            observed_container::{
                ContainerExit, ContainerIdentity, ContainerState, ObservedContainer,
            },
            outcome::StepOutcome,
            problem::Problem,
            step::Step,
            volume::{ObservedVolume, volume_name},
        },
        domain::{
            node_context::NodeContext,
            served_version::ServedVersion,
            server_part::{Slot, part_name},
        },
        fixtures::{
            node_context, observed_container, proxied, served_version, serving, transformed,
        },
        model_server::container::{
            VersionContainers, VersionInputs, server_container, version_containers,
        },
        plan::devices::GrantedDevices,
        probes::WorkerProbes,
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
            restarted_at: None,
        };
        let state = ContainerState::Running;
        ObservedContainer { identity, state, started_at: String::new(), ..observed_container(id) }
    }

    fn spec(version: &str) -> ContainerSpec {
        let model = LocalArtifact { path: "/data/x".into(), file: None };
        let version = served_version(version, "replace");
        server_container(
            &version,
            "uid",
            VersionInputs { model: Some(&model), values: None },
            &node_context(),
        )
    }

    fn names(server: &WorkerName) -> BTreeMap<ServerPart, WorkerName> {
        ServerPart::ALL.map(|part| (part, part_name(server, part))).into()
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
            names: names(&name),
            parts: [(ServerPart::Server, &container)].into(),
            draining: None,
            watched: None,
            placed,
            restart: None,
            restarted_at: None,
            kept_volumes: Vec::new(),
        };
        change(&mut wanted);
        let facts = NodeFacts {
            desired: &Desired::default(),
            is_complete: true,
            keep: &BTreeSet::new(),
            instance: &AgentInstance("this".into()),
            context: &node_context(),
            observed: Ok((containers, 1)),
            undescribed: &BTreeMap::new(),
            attempts: &[(name.clone(), attempts)].into(),
            devices: &BTreeMap::new(),
            volumes: &[],
            probes: &WorkerProbes::default(),
        };
        let mut made = NodePlan::default();
        plan_server(&mut made, &facts, &wanted, Instant::now());
        let text = |step: &Step| match step {
            Step::Start { remove, .. } => format!("start, remove {remove:?}"),
            Step::Remove { ids, .. } => format!("remove {ids:?}"),
            Step::Stop { .. } => unreachable!("no probe of workers"),
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
            steps(std::slice::from_ref(&old), |wanted| wanted.parts.clear()),
            nothing,
            "its model is not on the node"
        );
        let without_model = steps(&[old.clone(), unknown], |wanted| wanted.parts.clear());
        assert_eq!(without_model, [r#"remove ["unknown"]"#]);
        assert_eq!(steps(std::slice::from_ref(&right), |_| ()), nothing);
        assert_eq!(steps(&[right.clone(), old], |_| ()), [r#"remove ["old"]"#]);
        let hanging =
            steps(std::slice::from_ref(&right), |wanted| wanted.restart = Some(ServerPart::Server));
        assert_eq!(hanging, [r#"start, remove ["right"]"#]);
        let time = "2026-11-24T06:00:00.000Z".parse().unwrap();
        let restart = |wanted: &mut ServerTarget<'_>| {
            // The plan is dropped within the test.
            wanted.restarted_at = Some(Box::leak(Box::new(time)));
        };
        let restarted = steps(std::slice::from_ref(&right), restart);
        assert_eq!(restarted, [r#"start, remove ["right"]"#], "as a person requested");
        let exit = ContainerExit { exit_code: 1, out_of_memory: false, log_tail: String::new() };
        let ended = ObservedContainer { state: ContainerState::Exited(exit), ..right.clone() };
        assert_eq!(steps(&[ended], |_| ()), [r#"start, remove ["right"]"#]);
        let draining = ObservedContainer { state: ContainerState::Removing, ..right };
        assert_eq!(steps(&[draining], |_| ()), nothing, "waits for Docker's event");
    }

    #[test]
    fn server_that_waits_for_a_device_is_not_started_and_keeps_none() {
        let mut waiting = spec("4");
        waiting.devices.insert("a.b/camera".to_owned(), 1);
        let running = observed("running", &waiting, "uid");
        let waiting: &TargetContainer = Box::leak(Box::new(waiting.into()));
        let wait = |wanted: &mut ServerTarget<'_>| {
            wanted.parts = [(ServerPart::Server, waiting)].into();
        };
        let nothing: [&str; 0] = [];
        assert_eq!(steps(&[], wait), nothing);
        assert_eq!(steps(&[running], wait), [r#"remove ["running"]"#]);
    }

    #[test]
    fn transformer_gets_no_device_of_its_server() {
        let mut target = pair(Some("t1"), None, None);
        let mut server = ContainerSpec::clone(&target.server.spec);
        server.devices.insert("a.b/camera".to_owned(), 1);
        target.server = server.into();
        let unit = DeviceUnit {
            name: "a.b/camera /dev/video0".to_owned(),
            resource: "a.b/camera".to_owned(),
            identity: "81:0".to_owned(),
            parts: Vec::new(),
        };
        let mut engine = Engine::new(None);
        engine.granted.insert("m-server-1".parse().unwrap(), Ok(vec![unit]));
        assert_eq!(engine.settle(&target, None), ["start server", "start transformer"]);
        let devices = |part| engine.named(part)[0].devices.len();
        assert_eq!((devices(ServerPart::Server), devices(FIRST)), (1, 0));
    }

    /// The containers of a server with the transformer `image` in this place, behind a proxy or not.
    fn pair(image: Option<&str>, slot: Option<Slot>, network: Option<&str>) -> VersionContainers {
        let mut serving = match (image, slot) {
            (Some(image), Some(_)) => proxied(image, "4", "replace"),
            (Some(_), None) => transformed("4", "replace"),
            (None, _) => serving("4", "replace"),
        };
        if let (Some(transformer), Some(image)) = (&mut serving.transformer, image) {
            image.clone_into(&mut transformer.program.image);
        }
        let context = NodeContext { network: network.map(str::to_owned), ..node_context() };
        let model = LocalArtifact { path: "/data/x".into(), file: None };
        // The server behind a transformer listens on another port.
        serving.program.args =
            vec![format!("--port={}", if image.is_some() { 13_501 } else { 8501 })];
        let slot = slot.unwrap_or_default();
        let version = ServedVersion::new(&serving, 1).in_slot(slot);
        version_containers(
            &version,
            "uid",
            VersionInputs { model: Some(&model), values: None },
            &context,
        )
    }

    /// An engine that executes planned steps.
    struct Engine {
        containers: Vec<ObservedContainer>,
        created: usize,
        context: NodeContext,
        draining: Option<(ServerPart, Instant)>,
        granted: GrantedDevices,
    }

    impl Engine {
        fn new(network: Option<&str>) -> Self {
            let context = NodeContext { network: network.map(str::to_owned), ..node_context() };
            let (containers, granted) = (Vec::new(), GrantedDevices::new());
            Self { containers, created: 0, context, draining: None, granted }
        }

        fn named(&self, part: ServerPart) -> Vec<&ObservedContainer> {
            let name = part_name(&"m-server-1".parse().unwrap(), part);
            self.containers.iter().filter(|it| it.identity.worker == name).collect()
        }

        /// Plans and executes one turn. Returns the steps as text.
        fn turn(
            &mut self,
            target: &VersionContainers,
            kept: Option<&VersionContainers>,
            restart: Option<ServerPart>,
        ) -> Vec<String> {
            let owner = "d/inferencemodels/m".parse().unwrap();
            let name = "m-server-1".parse().unwrap();
            let part = |part| {
                let kept = kept.filter(|kept| target.can_coexist(kept));
                Some((part, target.part(part).or_else(|| kept?.part(part))?))
            };
            let server = ServerTarget {
                owner: &owner,
                uid: "uid",
                name: &name,
                names: names(&name),
                parts: ServerPart::ALL.into_iter().filter_map(part).collect(),
                draining: self.draining,
                watched: None,
                placed: None,
                restart,
                restarted_at: None,
                kept_volumes: Vec::new(),
            };
            let facts = NodeFacts {
                desired: &Desired::default(),
                is_complete: true,
                keep: &BTreeSet::new(),
                instance: &AgentInstance("this".into()),
                context: &self.context,
                observed: Ok((&self.containers, 1)),
                undescribed: &BTreeMap::new(),
                attempts: &BTreeMap::new(),
                devices: &self.granted,
                volumes: &[],
                probes: &WorkerProbes::default(),
            };
            let mut plan = NodePlan::default();
            plan_server(&mut plan, &facts, &server, Instant::now());
            let is_scheduled = plan.next_at.is_some();
            assert!(!is_scheduled || plan.next_at == self.draining.map(|(_, at)| at));
            plan.steps.into_iter().map(|step| self.execute(step)).collect()
        }

        fn execute(&mut self, step: Step) -> String {
            let part = step.worker().as_str().trim_start_matches("m-server-1");
            let part = if part.is_empty() { "server" } else { &part[1..] }.to_owned();
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
                    let own = match spec.args.get(2).or(spec.args.first()) {
                        Some(flag) => flag.rsplit(['=', ':']).next().unwrap().to_owned(),
                        None => spec.env["PORT"].clone(),
                    };
                    assert!(!ports.contains(&own), "port conflict: {own}");
                    self.created += 1;
                    let id = format!("c{}", self.created);
                    let units = spec.units.into_iter();
                    let container = ObservedContainer {
                        identity,
                        devices: units.map(|unit| (unit.name, unit.identity)).collect(),
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
                Step::Stop { .. } | Step::Place { .. } => {
                    unreachable!("no probe of workers, no directory of versions")
                }
            }
        }

        fn settle(
            &mut self,
            target: &VersionContainers,
            kept: Option<&VersionContainers>,
        ) -> Vec<String> {
            let mut all = Vec::new();
            for _ in 0..10 {
                let steps = self.turn(target, kept, None);
                if steps.is_empty() {
                    return all;
                }
                assert_eq!(steps.len(), 1, "one step at a time: {steps:?}");
                all.extend(steps);
            }
            unreachable!("does not settle: {all:?}")
        }
    }

    const FIRST: ServerPart = ServerPart::Transformer(Slot::First);
    const SECOND: ServerPart = ServerPart::Transformer(Slot::Second);

    #[test]
    fn another_transformer_keeps_the_container_of_the_server() {
        for network in [None, Some("bridge")] {
            let mut engine = Engine::new(network);
            let pairs = ["t1", "t2"].map(|image| pair(Some(image), None, network));
            assert_eq!(engine.settle(&pairs[0], None), ["start server", "start transformer"]);
            assert_eq!(engine.settle(&pairs[1], None), ["start transformer"]);
            assert_eq!(engine.turn(&pairs[1], None, Some(FIRST)), ["start transformer"]);
            let hanging = engine.turn(&pairs[1], None, Some(ServerPart::Server));
            assert_eq!(hanging[0], "start server");
            let steps = engine.settle(&pairs[1], None);
            match network {
                None => assert_eq!(steps.len(), 0, "it reaches the next server at the same port"),
                Some(_) => assert_eq!(steps, ["start transformer"]),
            }
        }
    }

    #[test]
    fn next_transformer_starts_beside_the_one_that_answers() {
        for network in [None, Some("bridge")] {
            let mut engine = Engine::new(network);
            let old = pair(Some("t1"), Some(Slot::First), network);
            let new = pair(Some("t2"), Some(Slot::Second), network);
            let first = engine.settle(&old, None);
            assert_eq!(first, ["start server", "start transformer", "start proxy"]);
            assert_eq!(engine.settle(&new, Some(&old)), ["start transformer-2"]);
            assert_eq!((engine.named(FIRST).len(), engine.named(SECOND).len()), (1, 1));
            // The trial is passed: the old one answers its last requests.
            engine.draining = Some((FIRST, Instant::now() + Duration::from_secs(60)));
            assert_eq!(engine.settle(&new, Some(&new)).len(), 0);
            engine.draining = Some((FIRST, Instant::now()));
            assert_eq!(engine.settle(&new, Some(&new)), ["remove transformer"]);
            // Back, and the trial of a third one that replaces a failed second one.
            let again = pair(Some("t3"), Some(Slot::First), network);
            assert_eq!(engine.settle(&again, Some(&new)), ["start transformer"]);
            let third = pair(Some("t4"), Some(Slot::First), network);
            engine.draining = Some((FIRST, Instant::now() + Duration::from_secs(60)));
            assert_eq!(engine.settle(&third, Some(&new)).len(), 0, "it drains first");
            engine.draining = None;
            assert_eq!(engine.settle(&third, Some(&new)), ["start transformer"]);
            assert_eq!(engine.settle(&new, Some(&new)), ["remove transformer"]);
        }
    }

    #[test]
    fn transformer_leaves_the_port_before_its_server_takes_it() {
        let mut engine = Engine::new(None);
        let (plain, transformed) = (pair(None, None, None), pair(Some("t1"), None, None));
        let proxied = pair(Some("t1"), Some(Slot::Second), None);
        assert_eq!(engine.settle(&plain, None), ["start server"]);
        assert_eq!(engine.settle(&transformed, None), ["start server", "start transformer"]);
        let steps = engine.settle(&proxied, None);
        assert_eq!(steps, ["remove transformer", "start transformer-2", "start proxy"]);
        // Nothing waits for requests in flight that the change of the server ends.
        engine.draining = Some((SECOND, Instant::now() + Duration::from_secs(60)));
        let steps = engine.settle(&plain, None);
        assert_eq!(steps, ["remove transformer-2", "remove proxy", "start server"]);
    }

    proptest::proptest! {
        /// After any exits and changes of the target, the containers become those of the target,
        /// never two with one port, and none in the network of a container that is gone.
        #[test]
        fn pair_converges_after_any_faults(
            on_network in proptest::bool::ANY,
            events in proptest::collection::vec((0..6usize, 0..6usize, 0..5usize, 0..4usize), 1..12),
        ) {
            let network = on_network.then_some("bridge");
            let (first, second) = (Some(Slot::First), Some(Slot::Second));
            let targets = [
                (None, None), (Some("t1"), None), (Some("t2"), None),
                (Some("t1"), first), (Some("t2"), second), (Some("t3"), first),
            ];
            let targets = targets.map(|(image, slot)| pair(image, slot, network));
            let mut engine = Engine::new(network);
            let (mut last, mut kept) = (&targets[0], None);
            for (target, good, victim, turns) in events {
                (last, kept) = (&targets[target], Some(&targets[good]));
                for _ in 0..turns {
                    let _ = engine.turn(last, kept, None);
                }
                if let Some(container) = engine.containers.get_mut(victim) {
                    let log_tail = String::new();
                    let exit = ContainerExit { exit_code: 1, out_of_memory: false, log_tail };
                    container.state = ContainerState::Exited(exit);
                }
            }
            engine.settle(last, kept);
            let kept = kept.filter(|kept| last.can_coexist(kept));
            let [server] = engine.named(ServerPart::Server)[..] else { unreachable!("one server") };
            for part in ServerPart::ALL {
                let containers = engine.named(part);
                let wanted = last.part(part).or_else(|| kept?.part(part));
                proptest::prop_assert_eq!(containers.len(), usize::from(wanted.is_some()));
                for (container, wanted) in containers.iter().zip(wanted) {
                    let is_server = part == ServerPart::Server;
                    let beside = beside(wanted, &server.id, &engine.context);
                    let hash = if is_server { &wanted.hash } else { &beside.hash };
                    proptest::prop_assert!(container.is_alive() && container.has_spec(hash));
                }
            }
        }

        /// With any order of changes and rollbacks behind one proxy, the transformer that gets the
        /// requests runs, and one that drains is not removed.
        #[test]
        fn routed_transformer_always_runs(
            on_network in proptest::bool::ANY,
            events in proptest::collection::vec((0..4usize, proptest::bool::ANY, 0..4usize), 1..16),
        ) {
            let network = on_network.then_some("bridge");
            let numbered = |number: usize, slot| {
                pair(Some(["t1", "t2", "t3", "t4"][number]), Some(slot), network)
            };
            let mut engine = Engine::new(network);
            let (mut good, mut slot) = (numbered(0, Slot::First), Slot::First);
            engine.settle(&good, None);
            let forever = Instant::now() + Duration::from_secs(3600);
            for (number, passes, turns) in events {
                let next = numbered(number, slot.other());
                // The previous trial is over.
                engine.draining = None;
                for _ in 0..turns {
                    let _ = engine.turn(&next, Some(&good), None);
                    let routed = engine.named(ServerPart::Transformer(slot));
                    proptest::prop_assert!(routed.len() == 1 && routed[0].is_alive());
                }
                if passes {
                    engine.settle(&next, Some(&good));
                    (good, slot) = (next, slot.other());
                    let drained = ServerPart::Transformer(slot.other());
                    engine.draining = Some((drained, forever));
                    engine.settle(&good, Some(&good));
                    proptest::prop_assert_eq!(engine.named(drained).len(), 1);
                } else {
                    engine.settle(&good, Some(&good));
                    proptest::prop_assert_eq!(engine.named(ServerPart::Transformer(slot.other())).len(), 0);
                }
                proptest::prop_assert_eq!(engine.named(ServerPart::Transformer(slot)).len(), 1);
            }
        }
    }

    #[test]
    fn volume_of_a_version_to_which_the_server_may_return_is_kept() {
        let running = observed("right", &spec("4"), "uid");
        let volume = |name: &str| ObservedVolume {
            name: volume_name(&node_context().node, &running.identity.worker, name),
            identity: running.identity.clone(),
        };
        let (state, cache) = (volume("state"), volume("cache"));
        let name: WorkerName = "m-server-1".parse().unwrap();
        let owner = "d/inferencemodels/m".parse().unwrap();
        let container: TargetContainer = spec("4").into();
        for (kept, removed) in [
            (vec![state.name.clone(), cache.name.clone()], vec![]),
            (vec![cache.name.clone()], vec![state.name.clone()]),
        ] {
            let server = ServerTarget {
                owner: &owner,
                uid: "uid",
                name: &name,
                names: names(&name),
                parts: [(ServerPart::Server, &container)].into(),
                draining: None,
                watched: None,
                placed: None,
                restart: None,
                restarted_at: None,
                kept_volumes: kept,
            };
            let facts = NodeFacts {
                desired: &Desired::default(),
                is_complete: true,
                keep: &BTreeSet::new(),
                instance: &AgentInstance("this".into()),
                context: &node_context(),
                observed: Ok((std::slice::from_ref(&running), 1)),
                undescribed: &BTreeMap::new(),
                attempts: &BTreeMap::new(),
                devices: &BTreeMap::new(),
                volumes: &[state.clone(), cache.clone()],
                probes: &WorkerProbes::default(),
            };
            let mut plan = NodePlan::default();
            plan_server(&mut plan, &facts, &server, Instant::now());
            let steps = plan.steps.iter().map(|step| match step {
                Step::Remove { ids, volumes, .. } if ids.is_empty() => volumes.clone(),
                other => unreachable!("{other:?}"),
            });
            assert_eq!(steps.flatten().collect::<Vec<_>>(), removed);
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
