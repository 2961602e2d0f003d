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
