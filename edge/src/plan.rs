//! Decides what to do next and how each worker fares, from what should be and what is. Doing it is
//! left to execute.rs, telling it to report.rs.
//!
//! A worker, from the first line that fits:
//!
//! | Docker | operation | model | container | then |
//! |---|---|---|---|---|
//! | unknown | | | | wait: `DockerUnavailable` |
//! | | in flight, or seen before its end | | | wait |
//! | | | none usable | of this object, alive | leave it |
//! | | | none usable | other | remove it; wait: the model's reason |
//! | | | usable | alive with this spec | leave it; remove its doubles |
//! | | | usable | on its way out | look again |
//! | | | usable | other or none | when the back-off allows: replace by one with this spec |
//!
//! A container whose worker is not wanted is removed if this data directory made it, since what the
//! directory ever wanted is stored before it is acted on; one that an earlier directory of this node
//! made only once the node has all that its index lists.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::{Duration, Instant},
};

use neptune_wire::{Instance, ObjectKey, WorkerName, WorkerReason, WorkerState};

use crate::{
    container::{ContainerSpec, Site, container},
    desired::{Desired, Wanted},
    observed::{Container, ContainerState, Identity},
    track::{Problem, Track},
};

/// After so many failures in a row a worker counts as failed, not as on its way.
const FAILED_AFTER: u32 = 3;
/// A worker that failed so often is believed to run when it has for this long.
const SETTLED: Duration = Duration::from_secs(10);
/// Until a container that somebody else is removing is looked at again.
const REMOVAL: Duration = Duration::from_secs(1);

/// All that the plan depends on.
pub struct Facts<'a> {
    pub desired: &'a Desired,
    /// The node was told all that its index lists.
    pub is_complete: bool,
    pub instance: &'a Instance,
    pub site: &'a Site,
    /// What Docker shows and which observation this is; or why it does not.
    pub observed: Result<(&'a [Container], u64), &'a str>,
    pub models: &'a BTreeMap<ObjectKey, ModelView>,
    pub tracks: &'a BTreeMap<WorkerName, Track>,
}

/// How a model fares on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelView {
    /// The newest version that is there, verified.
    pub usable: Option<PathBuf>,
    /// Why that is not the version that is wanted.
    pub problem: Option<Problem>,
    /// Whether the problem needs somebody's help.
    pub is_stuck: bool,
}

/// What to do now, how each worker fares, and when to look again. No steps: converged.
#[derive(Debug, Default, PartialEq)]
#[must_use]
pub struct Plan {
    pub steps: Vec<Step>,
    pub health: BTreeMap<WorkerName, Health>,
    pub wake_at: Option<Instant>,
}

/// An operation on one worker's containers. At most one is in flight for each worker.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// Remove these containers, then make and start one.
    Start { identity: Identity, spec: ContainerSpec, remove: Vec<String>, may_pull: bool },
    /// Stop and remove these containers.
    Remove { worker: WorkerName, ids: Vec<String> },
}

/// How a worker fares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    pub state: WorkerState,
    pub reason: Option<WorkerReason>,
    pub message: String,
    pub restarts: u32,
}

/// Decides.
pub fn plan(facts: &Facts<'_>, now: Instant) -> Plan {
    let mut plan = Plan::default();
    let names: BTreeSet<&WorkerName> = match facts.observed {
        Ok((containers, _)) => {
            containers.iter().map(|container| &container.identity.worker).collect()
        }
        Err(_) => BTreeSet::new(),
    };
    for name in names.into_iter().filter(|name| !facts.desired.workers.contains_key(name)) {
        plan.unwanted(facts, name, now);
    }
    for (name, wanted) in &facts.desired.workers {
        plan.wanted(facts, name, wanted, now);
    }
    plan
}

impl Facts<'_> {
    fn containers(&self, worker: &WorkerName) -> Vec<&Container> {
        let all = self.observed.map_or(&[][..], |(containers, _)| containers);
        all.iter().filter(|container| container.identity.worker == *worker).collect()
    }

    /// Whether what Docker shows of this worker can be acted on.
    fn is_settled(&self, track: &Track) -> bool {
        !track.busy && self.observed.is_ok_and(|(_, seq)| seq >= track.fresh_from)
    }
}

impl Plan {
    fn wake(&mut self, at: Instant) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }

    fn unwanted(&mut self, facts: &Facts<'_>, worker: &WorkerName, now: Instant) {
        let idle = Track::default();
        let track = facts.tracks.get(worker).unwrap_or(&idle);
        if !facts.is_settled(track) {
            return;
        }
        let containers = facts.containers(worker);
        let ids = containers
            .iter()
            .filter(|container| facts.is_complete || container.identity.instance == *facts.instance)
            .map(|container| container.id.clone())
            .collect();
        self.remove(worker, ids, track, now);
    }

    fn remove(&mut self, worker: &WorkerName, ids: Vec<String>, track: &Track, now: Instant) {
        if ids.is_empty() {
            return;
        }
        match track.next_try {
            Some(at) if at > now => self.wake(at),
            _ => self.steps.push(Step::Remove { worker: worker.clone(), ids }),
        }
    }

    fn wanted(&mut self, facts: &Facts<'_>, name: &WorkerName, wanted: &Wanted, now: Instant) {
        let idle = Track::default();
        let track = facts.tracks.get(name).unwrap_or(&idle);
        let health = match facts.observed {
            Err(why) => waiting(WorkerReason::DockerUnavailable, why),
            Ok(_) if !facts.is_settled(track) => in_flight(track),
            Ok(_) => self.settled(facts, name, wanted, track, now),
        };
        let restarts = track.started.as_ref().map_or(0, |(_, restarts)| *restarts);
        self.health.insert(name.clone(), Health { restarts, ..health });
    }

    fn settled(
        &mut self,
        facts: &Facts<'_>,
        name: &WorkerName,
        wanted: &Wanted,
        track: &Track,
        now: Instant,
    ) -> Health {
        let containers = facts.containers(name);
        let view = facts.models.get(&wanted.model);
        let Some(model) = view.and_then(|view| view.usable.as_ref()) else {
            return self.without_model(wanted, &containers, view, track, now);
        };
        let note =
            view.and_then(|view| view.problem.as_ref()).map_or_else(String::new, |problem| {
                format!("runs on the model's previous version: {}", problem.message)
            });
        let spec = container(wanted, model, facts.site);
        let hash = spec.hash();
        let right =
            containers.iter().find(|container| container.is_alive() && container.has_spec(&hash));
        let wrong = containers
            .iter()
            .filter(|container| right.is_none_or(|right| right.id != container.id));
        let remove: Vec<String> = wrong.map(|container| container.id.clone()).collect();
        if let Some(right) = right {
            self.remove(name, remove, track, now);
            return self.alive(right, track, note, now);
        }
        if containers.iter().any(|container| container.state == ContainerState::Removing) {
            self.wake(now + REMOVAL);
            return in_flight(track);
        }
        if let Some(at) = track.next_try.filter(|at| *at > now) {
            self.wake(at);
            return stopped(track);
        }
        let identity = Identity {
            node: facts.site.node.clone(),
            instance: facts.instance.clone(),
            owner: wanted.owner.clone(),
            uid: wanted.uid.clone(),
            worker: name.clone(),
            restarts: track.restarts_of(&hash),
            spec_hash: hash.to_string(),
        };
        self.steps.push(Step::Start { identity, spec, remove, may_pull: track.may_pull(now) });
        in_flight(track)
    }

    fn without_model(
        &mut self,
        wanted: &Wanted,
        containers: &[&Container],
        view: Option<&ModelView>,
        track: &Track,
        now: Instant,
    ) -> Health {
        let is_own =
            |container: &Container| container.is_alive() && container.identity.uid == wanted.uid;
        let others = containers.iter().filter(|container| !is_own(container));
        self.remove(
            &wanted.worker.name,
            others.map(|container| container.id.clone()).collect(),
            track,
            now,
        );
        let not_received = || Problem {
            reason: WorkerReason::ModelNotReceived,
            message: format!(
                "the node was not told of {} yet; apply that Model if it does not exist",
                wanted.model
            ),
        };
        let problem = view.map_or_else(not_received, |view| {
            view.problem.clone().unwrap_or_else(|| Problem {
                reason: WorkerReason::ModelDownloading,
                message: format!("{} is on its way", wanted.model),
            })
        });
        if containers.iter().any(|container| is_own(container)) {
            let message = format!("runs as it was before: {}", problem.message);
            return Health { state: WorkerState::Running, reason: None, message, restarts: 0 };
        }
        let state = if view.is_some_and(|view| view.is_stuck) {
            WorkerState::Failed
        } else {
            WorkerState::Pending
        };
        Health { state, reason: Some(problem.reason), message: problem.message, restarts: 0 }
    }

    fn alive(
        &mut self,
        container: &Container,
        track: &Track,
        note: String,
        now: Instant,
    ) -> Health {
        if container.state == ContainerState::Paused {
            return waiting(
                WorkerReason::ContainerRefused,
                &format!("the container was paused from outside; docker unpause {}", &container.id),
            );
        }
        if track.failures >= FAILED_AFTER && !track.has_run_for(SETTLED, now) {
            if let Some(since) = track.alive_since() {
                self.wake(since + SETTLED);
            }
            return stopped(track);
        }
        Health { state: WorkerState::Running, reason: None, message: note, restarts: 0 }
    }
}

fn waiting(reason: WorkerReason, message: &str) -> Health {
    Health {
        state: WorkerState::Pending,
        reason: Some(reason),
        message: message.to_owned(),
        restarts: 0,
    }
}

/// What to say of a worker to which something is being done.
fn in_flight(track: &Track) -> Health {
    if track.problem.is_some() {
        stopped(track)
    } else {
        waiting(WorkerReason::Starting, "the container is being started")
    }
}

/// What to say of a worker that waits for its next try.
fn stopped(track: &Track) -> Health {
    let Some(Problem { reason, message }) = &track.problem else {
        return waiting(WorkerReason::Starting, "the container is being started");
    };
    let needs_help = match reason {
        WorkerReason::ScriptMissing
        | WorkerReason::ImageMissing
        | WorkerReason::ContainerRefused => true,
        WorkerReason::CrashLoopBackOff | WorkerReason::OutOfMemory => {
            track.failures >= FAILED_AFTER
        }
        _ => false,
    };
    let state = if needs_help { WorkerState::Failed } else { WorkerState::Pending };
    Health { state, reason: Some(*reason), message: message.clone(), restarts: 0 }
}
