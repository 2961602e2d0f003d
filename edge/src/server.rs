//! Decides what is to be done to a model server's container and its directory of versions, so that
//! they become those of the edition that is to run. Which edition that is, is serving.rs's.
//!
//! | current edition | container | directory of versions | then |
//! |---|---|---|---|
//! | none, or its model is not here | of this object, alive | | leave it |
//! | " | other | | remove it |
//! | there | any | has other versions | bring it up to date |
//! | there | alive with its spec | right | leave it, or replace it if it hangs; remove its doubles |
//! | there | other or none | right | when the back-off allows: replace by one with its spec |

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Instant,
};

use neptune_wire::{ObjectKey, WorkerName};

use crate::{
    container::ContainerSpec,
    edition::Supplied,
    observed::{Container, ContainerState, Identity},
    place::Versions,
    plan::{Facts, Plan, Step},
    track::Track,
};

/// A model server as it should be.
pub struct Wanted<'a> {
    pub owner: &'a ObjectKey,
    pub uid: &'a str,
    pub name: &'a WorkerName,
    /// None while nothing is to run, or its model is not on the node.
    pub spec: Option<ContainerSpec>,
    /// The directory that it watches.
    pub watched: Option<Watched>,
    /// What is in that directory, as far as is known.
    pub placed: Option<&'a Versions>,
    /// It hangs.
    pub restart: bool,
}

/// A directory of versions as it should be.
pub struct Watched {
    pub dir: PathBuf,
    pub versions: BTreeMap<String, Supplied>,
}

impl Watched {
    fn is_placed(&self, placed: Option<&Versions>) -> bool {
        placed.is_some_and(|placed| {
            placed.dir == self.dir
                && placed.names == self.versions.keys().cloned().collect::<BTreeSet<_>>()
        })
    }
}

/// Adds to the plan what is to be done now.
pub fn plan(plan: &mut Plan, facts: &Facts<'_>, wanted: &Wanted<'_>, now: Instant) {
    let idle = Track::default();
    let track = facts.tracks.get(wanted.name).unwrap_or(&idle);
    if facts.observed.is_err() || !facts.is_settled(track) {
        return;
    }
    let containers = facts.containers(wanted.name);
    let Some(spec) = &wanted.spec else {
        let is_own =
            |container: &Container| container.is_alive() && container.identity.uid == wanted.uid;
        let others = containers.iter().filter(|container| !is_own(container));
        return plan.remove(
            wanted.name,
            others.map(|container| container.id.clone()).collect(),
            track,
            now,
        );
    };
    if let Some(watched) =
        wanted.watched.as_ref().filter(|watched| !watched.is_placed(wanted.placed))
    {
        if let Some(at) = track.next_try.filter(|at| *at > now) {
            return plan.wake(at);
        }
        plan.steps.push(Step::Place {
            worker: wanted.name.clone(),
            dir: watched.dir.clone(),
            versions: watched.versions.clone(),
        });
        return;
    }
    let hash = spec.hash();
    let right = containers
        .iter()
        .find(|container| container.is_alive() && container.has_spec(&hash) && !wanted.restart);
    let wrong =
        containers.iter().filter(|container| right.is_none_or(|right| right.id != container.id));
    let remove: Vec<String> = wrong.map(|container| container.id.clone()).collect();
    if right.is_some() {
        return plan.remove(wanted.name, remove, track, now);
    }
    if containers.iter().any(|container| container.state == ContainerState::Removing) {
        // Docker says when it is gone.
        return;
    }
    if let Some(at) = track.next_try.filter(|at| *at > now) {
        return plan.wake(at);
    }
    let identity = Identity {
        node: facts.site.node.clone(),
        instance: facts.instance.clone(),
        owner: wanted.owner.clone(),
        uid: wanted.uid.to_owned(),
        worker: wanted.name.clone(),
        restarts: track.restarts_of(&hash),
        spec_hash: hash.to_string(),
    };
    let may_pull = track.may_pull(now);
    plan.steps.push(Step::Start { identity, spec: Box::new(spec.clone()), remove, may_pull });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use neptune_wire::AgentInstance;

    use super::*;
    use crate::{
        container::tests::site,
        desired::Desired,
        edition::tests::edition,
        observed::Ending,
        track::{Outcome, Problem},
    };

    fn shown(id: &str, spec: &ContainerSpec, uid: &str) -> Container {
        let identity = Identity {
            node: site().node,
            instance: AgentInstance("ours".into()),
            owner: "d/inferencemodels/m".parse().unwrap(),
            uid: uid.into(),
            worker: "m-server-1".parse().unwrap(),
            spec_hash: spec.hash().to_string(),
            restarts: 0,
        };
        let state = ContainerState::Running;
        Container {
            id: id.into(),
            identity,
            state,
            started_at: String::new(),
            sources: Vec::new(),
            version: None,
        }
    }

    fn spec(version: &str) -> ContainerSpec {
        let model = Supplied { path: "/data/x".into(), file: None };
        edition(version, "replace").container("uid", Some(&model), &site())
    }

    /// What is done, in words.
    fn done(
        containers: &[Container],
        track: Track,
        placed: Option<&Versions>,
        change: impl FnOnce(&mut Wanted<'_>),
    ) -> (Vec<String>, Option<Instant>) {
        let name: WorkerName = "m-server-1".parse().unwrap();
        let owner = "d/inferencemodels/m".parse().unwrap();
        let mut wanted = Wanted {
            owner: &owner,
            uid: "uid",
            name: &name,
            spec: Some(spec("4")),
            watched: None,
            placed,
            restart: false,
        };
        change(&mut wanted);
        let facts = Facts {
            desired: &Desired::default(),
            is_complete: true,
            keep: &BTreeSet::new(),
            instance: &AgentInstance("ours".into()),
            site: &site(),
            observed: Ok((containers, 1)),
            models: &BTreeMap::new(),
            datasets: &BTreeMap::new(),
            tracks: &[(name.clone(), track)].into(),
            reloads: &BTreeMap::new(),
        };
        let mut made = Plan::default();
        plan(&mut made, &facts, &wanted, Instant::now());
        let word = |step: &Step| match step {
            Step::Start { remove, .. } => format!("start, remove {remove:?}"),
            Step::Remove { ids, .. } => format!("remove {ids:?}"),
            Step::Place { versions, .. } => format!("place {:?}", versions.keys()),
        };
        (made.steps.iter().map(word).collect(), made.wake_at)
    }

    fn steps(containers: &[Container], change: impl FnOnce(&mut Wanted<'_>)) -> Vec<String> {
        done(containers, Track::default(), None, change).0
    }

    #[test]
    fn the_old_container_goes_when_the_new_one_can_come_and_not_before() {
        let (old, right) = (shown("old", &spec("3"), "uid"), shown("right", &spec("4"), "uid"));
        let stranger = shown("stranger", &spec("3"), "of an object that is gone");
        let nothing: [&str; 0] = [];
        assert_eq!(steps(&[], |_| ()), ["start, remove []"]);
        assert_eq!(steps(std::slice::from_ref(&old), |_| ()), [r#"start, remove ["old"]"#]);
        assert_eq!(
            steps(std::slice::from_ref(&old), |wanted| wanted.spec = None),
            nothing,
            "its model is not here"
        );
        let without_model = steps(&[old.clone(), stranger], |wanted| wanted.spec = None);
        assert_eq!(without_model, [r#"remove ["stranger"]"#]);
        assert_eq!(steps(std::slice::from_ref(&right), |_| ()), nothing);
        assert_eq!(steps(&[right.clone(), old], |_| ()), [r#"remove ["old"]"#]);
        let hanging = steps(std::slice::from_ref(&right), |wanted| wanted.restart = true);
        assert_eq!(hanging, [r#"start, remove ["right"]"#]);
        let ending = Ending { exit_code: 1, out_of_memory: false, log_tail: String::new() };
        let ended = Container { state: ContainerState::Ended(ending), ..right.clone() };
        assert_eq!(steps(&[ended], |_| ()), [r#"start, remove ["right"]"#]);
        let leaving = Container { state: ContainerState::Removing, ..right };
        assert_eq!(steps(&[leaving], |_| ()), nothing, "Docker says when it is gone");
    }

    #[test]
    fn versions_are_placed_before_their_server_starts() {
        let watched = || {
            let model = Supplied { path: "/data/x".into(), file: None };
            Some(Watched { dir: "/d/1".into(), versions: [("4".to_owned(), model)].into() })
        };
        let placed = |dir: &str, names: &[&str]| Versions {
            dir: dir.into(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        let right = placed("/d/1", &["4"]);
        for other in [None, Some(placed("/d/1", &["3", "4"])), Some(placed("/d/2", &["4"]))] {
            let (steps, _) = done(&[], Track::default(), other.as_ref(), |w| w.watched = watched());
            assert_eq!(steps, [r#"place ["4"]"#]);
        }
        let (steps, _) = done(&[], Track::default(), Some(&right), |w| w.watched = watched());
        assert_eq!(steps, ["start, remove []"]);
    }

    #[test]
    fn nothing_is_done_twice_or_before_its_time() {
        let (mut busy, mut unseen) = (Track::default(), Track::default());
        busy.busy = true;
        unseen.fresh_from = 2;
        assert_eq!(done(&[], busy, None, |_| ()), (vec![], None));
        assert_eq!(done(&[], unseen, None, |_| ()), (vec![], None));
        let mut failed = Track::default();
        let problem =
            Problem { reason: neptune_wire::WorkerReason::ContainerRefused, message: "no".into() };
        let now = Instant::now();
        failed.done(Outcome::Failed(problem), None, 1, now, 0);
        let (steps, wake_at) = done(&[], failed, None, |_| ());
        assert!(
            steps.is_empty() && wake_at.is_some_and(|at| at > now + Duration::from_millis(500))
        );
    }
}
