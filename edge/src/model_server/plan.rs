//! Decides the steps that make a model server's container and its directory of versions match the
//! current version of the rollout, which rollout/ decides. Pure.
//!
//! | current version | container | directory of versions | then |
//! |---|---|---|---|
//! | none, or its model is not on the node | of this object, alive | | keep it |
//! | " | other | | remove it |
//! | exists | any | has other versions | update it |
//! | exists | alive with its spec | right | keep it, or replace it if it hangs; remove duplicates |
//! | exists | other or none | right | after the backoff: replace it by one with its spec |

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
    },
    plan::{NodeFacts, NodePlan, Target, attempts::Attempts},
};

/// The target state of a model server.
pub struct ServerTarget<'a> {
    pub owner: &'a ObjectKey,
    pub uid: &'a str,
    pub name: &'a WorkerName,
    /// `None` while no version is chosen, or its model is not on the node.
    pub container: Option<&'a TargetContainer>,
    /// The directory that it watches.
    pub watched: Option<WatchedDirectory>,
    /// The versions in that directory; `None` if unknown.
    pub placed: Option<&'a PlacedVersions>,
    /// Whether to replace its container because it does not answer.
    pub restart: bool,
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
    let attempts = facts.attempts.get(server.name).unwrap_or(&idle);
    if facts.observed.is_err() || !facts.is_settled(attempts) {
        return;
    }
    let Some(container) = server.container else {
        plan.keep_alive(facts, (server.name, server.uid), attempts, now);
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
        restart: server.restart,
    };
    // The health of a model server comes from its probes, not from its convergence.
    let _ = plan.converge(facts, &target, attempts, now);
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
        fixtures::{node_context, observed_container, served_version},
        model_server::container::server_container,
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
            container: Some(&container),
            watched: None,
            placed,
            restart: false,
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
        let hanging = steps(std::slice::from_ref(&right), |wanted| wanted.restart = true);
        assert_eq!(hanging, [r#"start, remove ["right"]"#]);
        let exit = ContainerExit { exit_code: 1, out_of_memory: false, log_tail: String::new() };
        let ended = ObservedContainer { state: ContainerState::Exited(exit), ..right.clone() };
        assert_eq!(steps(&[ended], |_| ()), [r#"start, remove ["right"]"#]);
        let draining = ObservedContainer { state: ContainerState::Removing, ..right };
        assert_eq!(steps(&[draining], |_| ()), nothing, "waits for Docker's event");
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
