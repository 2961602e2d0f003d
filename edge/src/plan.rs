//! Decides what to do next and how each worker fares, from what should be and what is. Doing it is
//! left to execute.rs, telling it to report.rs, model servers to server.rs.
//!
//! A worker, from the first line that fits:
//!
//! | Docker | operation | model and dataset | container | then |
//! |---|---|---|---|---|
//! | unknown | | | | wait: `DockerUnavailable` |
//! | | in flight, or seen before its end | | | wait |
//! | | | none usable | of this object, alive | leave it |
//! | | | none usable | other | remove it; wait: its reason |
//! | | | usable | alive with this spec | leave it; remove its doubles |
//! | | | usable | on its way out | wait: Docker says when it is gone |
//! | | | usable | other or none | when the back-off allows: replace by one with this spec |
//!
//! A container whose worker is not wanted is removed if this data directory made it, since what the
//! directory ever wanted is stored before it is acted on; one that an earlier directory of this node
//! made only once the node has all that its index lists, and not if the index says to keep it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::{Duration, Instant},
};

use neptune_wire::{AgentInstance, ObjectKey, WorkerName, WorkerReason, WorkerState};

use crate::{
    container::{ContainerSpec, Site, container},
    desired::{Desired, Wanted},
    edition::Supplied,
    observed::{Container, ContainerState, Identity},
    reload,
    supplies::{Availability, Lack, Supplies},
    track::{Problem, Track},
};

/// After so many failures in a row a worker counts as failed, not as on its way.
const FAILED_AFTER: u32 = 3;
/// A worker that failed so often is believed to run when it has for this long.
const SETTLED: Duration = Duration::from_secs(10);

/// All that the plan depends on.
pub struct Facts<'a> {
    pub desired: &'a Desired,
    /// The node was told all that its index lists.
    pub is_complete: bool,
    /// Objects that are to stay as they are, also those that this data directory was never told of.
    pub keep: &'a BTreeSet<ObjectKey>,
    pub instance: &'a AgentInstance,
    pub site: &'a Site,
    /// What Docker shows and which observation this is; or why it does not.
    pub observed: Result<(&'a [Container], u64), &'a str>,
    pub models: &'a BTreeMap<ObjectKey, Availability>,
    pub datasets: &'a BTreeMap<ObjectKey, Availability>,
    pub tracks: &'a BTreeMap<WorkerName, Track>,
    /// Of the workers that load other versions of their models while they run.
    pub reloads: &'a BTreeMap<WorkerName, reload::Decision>,
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
    Start { identity: Identity, spec: Box<ContainerSpec>, remove: Vec<String>, may_pull: bool },
    /// Stop and remove these containers.
    Remove { worker: WorkerName, ids: Vec<String> },
    /// Make these versions, and no others, be in the directory that a server watches.
    Place { worker: WorkerName, dir: PathBuf, versions: BTreeMap<String, Supplied> },
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
    for name in names.into_iter().filter(|name| !facts.desired.names(name)) {
        plan.unwanted(facts, name, now);
    }
    for (name, wanted) in &facts.desired.workers {
        plan.wanted(facts, name, wanted, now);
    }
    plan
}

impl Facts<'_> {
    /// What Docker shows of a worker or a model server.
    pub fn containers(&self, worker: &WorkerName) -> Vec<&Container> {
        let all = self.observed.map_or(&[][..], |(containers, _)| containers);
        all.iter().filter(|container| container.identity.worker == *worker).collect()
    }

    /// Whether a container whose worker is not wanted has to go.
    fn may_go(&self, identity: &Identity) -> bool {
        let is_known = self.is_complete && !self.keep.contains(&identity.owner);
        is_known || identity.instance == *self.instance
    }

    /// Whether what Docker shows of this worker can be acted on.
    pub fn is_settled(&self, track: &Track) -> bool {
        !track.busy && self.observed.is_ok_and(|(_, seq)| seq >= track.fresh_from)
    }
}

impl Plan {
    pub fn wake(&mut self, at: Instant) {
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
            .filter(|container| facts.may_go(&container.identity))
            .map(|container| container.id.clone())
            .collect();
        self.remove(worker, ids, track, now);
    }

    pub fn remove(&mut self, worker: &WorkerName, ids: Vec<String>, track: &Track, now: Instant) {
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
        let supplies = Supplies { models: facts.models, datasets: facts.datasets };
        let uses = match supplies.of(wanted, facts.desired) {
            Ok(uses) => uses,
            Err(lack) => return self.without(wanted, &containers, lack, track, now),
        };
        let reload = facts.reloads.get(name);
        let note = supplies.note(wanted, reload);
        let spec = container(wanted, uses, facts.site);
        let hash = spec.hash();
        let restart = reload.is_some_and(|reload| reload.restart);
        let right = containers
            .iter()
            .find(|container| container.is_alive() && container.has_spec(&hash) && !restart);
        if let Some(reload) = reload {
            reload.wake_at.into_iter().for_each(|at| self.wake(at));
            if let Some((dir, versions)) = &reload.place {
                let (worker, dir, versions) = (name.clone(), dir.clone(), versions.clone());
                match track.next_try.filter(|at| *at > now) {
                    Some(at) => self.wake(at),
                    None => self.steps.push(Step::Place { worker, dir, versions }),
                }
                let in_flight = || in_flight(track);
                return right.map_or_else(in_flight, |right| self.alive(right, track, note, now));
            }
        }
        let wrong = containers
            .iter()
            .filter(|container| right.is_none_or(|right| right.id != container.id));
        let remove: Vec<String> = wrong.map(|container| container.id.clone()).collect();
        if let Some(right) = right {
            self.remove(name, remove, track, now);
            return self.alive(right, track, note, now);
        }
        if containers.iter().any(|container| container.state == ContainerState::Removing) {
            // Docker says when it is gone.
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
        self.steps.push(Step::Start {
            identity,
            spec: Box::new(spec),
            remove,
            may_pull: track.may_pull(now),
        });
        in_flight(track)
    }

    fn without(
        &mut self,
        wanted: &Wanted,
        containers: &[&Container],
        Lack { problem, is_stuck }: Lack,
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
        if containers.iter().any(|container| is_own(container)) {
            let message = format!("runs as it was before: {}", problem.message);
            return Health { state: WorkerState::Running, reason: None, message, restarts: 0 };
        }
        let state = if is_stuck { WorkerState::Failed } else { WorkerState::Pending };
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{
        container::{
            Uses,
            tests::{file, site, wanted},
        },
        observed::Ending,
        track::Outcome,
    };

    const MODEL: &str = "/data/m.bin";

    /// A node that should run one worker, before anything happened.
    struct Node {
        desired: Desired,
        containers: Vec<Container>,
        docker: Result<u64, &'static str>,
        models: BTreeMap<ObjectKey, Availability>,
        datasets: BTreeMap<ObjectKey, Availability>,
        tracks: BTreeMap<WorkerName, Track>,
        is_complete: bool,
        keep: BTreeSet<ObjectKey>,
        reloads: BTreeMap<WorkerName, reload::Decision>,
    }

    fn node() -> Node {
        let wanted = wanted();
        let view = Availability { usable: Some(file(MODEL)), ..Availability::default() };
        Node {
            models: [(wanted.model.clone(), view)].into(),
            desired: Desired {
                workers: [(wanted.worker.name.clone(), wanted)].into(),
                ..Desired::default()
            },
            containers: Vec::new(),
            docker: Ok(1),
            datasets: BTreeMap::new(),
            tracks: BTreeMap::new(),
            is_complete: true,
            keep: BTreeSet::new(),
            reloads: BTreeMap::new(),
        }
    }

    fn name() -> WorkerName {
        wanted().worker.name
    }

    fn hash() -> neptune_wire::ContentHash {
        container(&wanted(), Uses { model: &file(MODEL), dataset: None }, &site()).hash()
    }

    fn shown(id: &str, state: ContainerState) -> Container {
        let identity = Identity {
            node: site().node,
            instance: AgentInstance("ours".into()),
            owner: wanted().owner,
            uid: wanted().uid,
            worker: name(),
            spec_hash: hash().to_string(),
            restarts: 0,
        };
        Container {
            id: id.into(),
            identity,
            state,
            started_at: String::new(),
            sources: Vec::new(),
            version: None,
        }
    }

    fn ended(exit_code: i64) -> ContainerState {
        ContainerState::Ended(Ending {
            exit_code,
            out_of_memory: false,
            log_tail: "last words".into(),
        })
    }

    impl Node {
        fn plan(&self, now: Instant) -> Plan {
            let facts = Facts {
                desired: &self.desired,
                is_complete: self.is_complete,
                keep: &self.keep,
                instance: &AgentInstance("ours".into()),
                site: &site(),
                observed: self.docker.map(|seq| (self.containers.as_slice(), seq)),
                models: &self.models,
                datasets: &self.datasets,
                tracks: &self.tracks,
                reloads: &self.reloads,
            };
            plan(&facts, now)
        }

        fn track(&mut self) -> &mut Track {
            self.tracks.entry(name()).or_default()
        }

        fn look(&mut self, containers: Vec<Container>, now: Instant) {
            self.containers = containers;
            let containers: Vec<Container> = self.containers.clone();
            self.track().observe(&containers.iter().collect::<Vec<_>>(), now, 0);
        }
    }

    fn said(plan: &Plan) -> (WorkerState, Option<WorkerReason>) {
        let health = &plan.health[&name()];
        (health.state, health.reason)
    }

    fn removed(plan: &Plan) -> Vec<&str> {
        let ids = plan.steps.iter().flat_map(|step| match step {
            Step::Start { remove: ids, .. } | Step::Remove { ids, .. } => {
                ids.iter().map(String::as_str)
            }
            Step::Place { .. } => [].iter().map(String::as_str),
        });
        ids.collect()
    }

    fn starts(plan: &Plan) -> bool {
        plan.steps.iter().any(|step| matches!(step, Step::Start { .. }))
    }

    #[test]
    fn a_missing_worker_is_started_once_and_a_running_one_left_alone() {
        let (mut node, now) = (node(), Instant::now());
        let plan = node.plan(now);
        assert!(matches!(&plan.steps[..], [Step::Start { identity, remove, may_pull: false, .. }]
            if identity.restarts == 0 && remove.is_empty()));
        assert_eq!(said(&plan), (WorkerState::Pending, Some(WorkerReason::Starting)));

        node.track().busy = true;
        assert_eq!(node.plan(now).steps, [], "an operation is in flight");
        node.track().done(
            Outcome::Started { id: "1".into() },
            Some((hash().to_string(), 0)),
            2,
            now,
            0,
        );
        assert_eq!(node.plan(now).steps, [], "what is shown is older than the start");
        node.docker = Ok(2);
        node.look(vec![shown("1", ContainerState::Running)], now);
        let plan = node.plan(now);
        assert_eq!((plan.steps.len(), plan.wake_at), (0, None), "converged");
        assert_eq!(said(&plan), (WorkerState::Running, None));
    }

    #[test]
    fn a_container_of_another_spec_or_in_no_state_to_run_is_replaced() {
        let other_spec = |state| {
            let mut container = shown("1", state);
            container.identity.spec_hash = "other".into();
            container
        };
        for container in [
            other_spec(ContainerState::Running),
            shown("1", ContainerState::Unusable),
            shown("1", ended(0)),
        ] {
            let mut node = node();
            node.look(vec![container], Instant::now());
            let plan = node.plan(Instant::now());
            assert!(starts(&plan));
            assert_eq!(removed(&plan), ["1"]);
        }
        let mut node = node();
        node.look(vec![shown("1", ContainerState::Removing)], Instant::now());
        assert_eq!(node.plan(Instant::now()).steps, [], "somebody else is at it");
    }

    #[test]
    fn a_double_is_removed_and_the_worker_kept() {
        let mut node = node();
        node.look(
            vec![shown("old", ended(1)), shown("good", ContainerState::Running)],
            Instant::now(),
        );
        let plan = node.plan(Instant::now());
        assert!(!starts(&plan));
        assert_eq!(removed(&plan), ["old"]);
        assert_eq!(said(&plan).0, WorkerState::Running);
    }

    #[test]
    fn a_container_that_an_earlier_data_directory_made_is_adopted() {
        let mut node = node();
        let mut container = shown("1", ContainerState::Running);
        container.identity.instance = AgentInstance("earlier".into());
        node.look(vec![container], Instant::now());
        assert_eq!(node.plan(Instant::now()).steps, []);
    }

    #[test]
    fn what_is_not_wanted_goes_but_an_earlier_directorys_only_when_all_is_known() {
        let (mut node, now) = (node(), Instant::now());
        node.desired = Desired::default();
        node.is_complete = false;
        let mut earlier = shown("earlier", ContainerState::Running);
        earlier.identity.instance = AgentInstance("earlier".into());
        node.look(vec![shown("ours", ended(0)), earlier], now);
        assert_eq!(removed(&node.plan(now)), ["ours"]);
        node.is_complete = true;
        assert_eq!(removed(&node.plan(now)), ["ours", "earlier"]);
        node.keep.insert(wanted().owner);
        assert_eq!(removed(&node.plan(now)), ["ours"]);
        node.track().busy = true;
        assert_eq!(node.plan(now).steps, []);
    }

    #[test]
    fn a_worker_that_keeps_ending_is_started_ever_more_slowly_and_says_why() {
        let (mut node, mut now) = (node(), Instant::now());
        node.track().aim(&hash());
        for failures in 1..=4 {
            let id = failures.to_string();
            let seq = node.docker.unwrap();
            node.track().done(
                Outcome::Started { id: id.clone() },
                Some((hash().to_string(), failures - 1)),
                seq,
                now,
                0,
            );
            node.look(vec![shown(&id, ended(3))], now);
            let plan = node.plan(now);
            assert!(!starts(&plan), "it waits");
            let state = if failures < 3 { WorkerState::Pending } else { WorkerState::Failed };
            assert_eq!(said(&plan), (state, Some(WorkerReason::CrashLoopBackOff)));
            let message = &plan.health[&name()].message;
            assert!(message.contains("exit code 3") && message.contains("last words"), "{message}");
            let wake_at = plan.wake_at.unwrap();
            assert!(wake_at >= now + Duration::from_millis(500) * 2u32.pow(failures - 1));
            now = wake_at;
            let plan = node.plan(now);
            assert!(
                matches!(&plan.steps[..], [Step::Start { identity, .. }] if identity.restarts == failures)
            );
        }
        let seq = node.docker.unwrap();
        node.track().done(
            Outcome::Started { id: "5".into() },
            Some((hash().to_string(), 5)),
            seq,
            now,
            0,
        );
        node.look(vec![shown("5", ContainerState::Running)], now);
        let plan = node.plan(now);
        assert_eq!(said(&plan).0, WorkerState::Failed, "not believed yet");
        assert_eq!(plan.wake_at, Some(now + SETTLED));
        assert_eq!(said(&node.plan(now + SETTLED)).0, WorkerState::Running);
    }

    #[test]
    fn a_changed_worker_does_not_wait_for_the_back_off_of_the_old_one() {
        let (mut node, now) = (node(), Instant::now());
        node.track().aim(&neptune_wire::ContentHash::of(&"old spec"));
        node.track().done(refused(), None, 1, now, 0);
        assert!(!starts(&node.plan(now)));
        node.track().aim(&hash());
        assert!(starts(&node.plan(now)));
    }

    #[test]
    fn an_absent_image_is_pulled_once_in_a_while_and_looked_for_often() {
        let (mut node, now) = (node(), Instant::now());
        let may_pull = |node: &Node, now| match node.plan(now).steps.first() {
            Some(Step::Start { may_pull, .. }) => Some(*may_pull),
            _ => None,
        };
        assert_eq!(may_pull(&node, now), Some(false), "perhaps it is there");
        node.track().done(Outcome::ImageAbsent, None, 1, now, 0);
        assert_eq!(may_pull(&node, now), Some(true));
        node.track().done(Outcome::PullFailed("no route".into()), None, 1, now, u64::MAX);
        assert_eq!(said(&node.plan(now)), (WorkerState::Failed, Some(WorkerReason::ImageMissing)));
        assert_eq!(
            may_pull(&node, now + Duration::from_secs(3)),
            Some(false),
            "perhaps somebody loaded it"
        );
        node.track().done(Outcome::ImageAbsent, None, 1, now + Duration::from_secs(3), 0);
        assert_eq!(
            said(&node.plan(now)),
            (WorkerState::Failed, Some(WorkerReason::ImageMissing)),
            "still"
        );
        assert_eq!(may_pull(&node, now + Duration::from_secs(20)), Some(true));
    }

    #[test]
    fn a_worker_that_reloads_runs_on_while_its_version_is_placed_and_is_restarted_only_late() {
        let (mut node, now) = (node(), Instant::now());
        let place = Some(("/d".into(), [("1".to_owned(), file(MODEL))].into()));
        let placing = reload::Decision { place, ..reload::Decision::default() };
        node.reloads = [(name(), placing)].into();
        let places = |plan: &Plan| matches!(&plan.steps[..], [Step::Place { .. }]);
        assert!(places(&node.plan(now)), "before it starts");
        node.look(vec![shown("1", ContainerState::Running)], now);
        let plan = node.plan(now);
        assert!(places(&plan));
        assert_eq!(said(&plan), (WorkerState::Running, None));
        let wake_at = Some(now + Duration::from_secs(60));
        let told = "is told".to_owned();
        let telling = reload::Decision { wake_at, note: told, ..reload::Decision::default() };
        node.reloads = [(name(), telling)].into();
        let plan = node.plan(now);
        assert_eq!((plan.steps.len(), plan.wake_at), (0, wake_at));
        assert_eq!(plan.health[&name()].message, "is told");
        let late = reload::Decision { restart: true, ..reload::Decision::default() };
        node.reloads = [(name(), late)].into();
        let plan = node.plan(now);
        assert!(starts(&plan));
        assert_eq!(removed(&plan), ["1"]);
    }

    fn refused() -> Outcome {
        Outcome::Failed(Problem { reason: WorkerReason::ContainerRefused, message: String::new() })
    }

    #[test]
    fn without_docker_nothing_is_done_and_everybody_knows_why() {
        let mut node = node();
        node.docker = Err("no socket");
        let plan = node.plan(Instant::now());
        assert_eq!(plan.steps, []);
        assert_eq!(said(&plan), (WorkerState::Pending, Some(WorkerReason::DockerUnavailable)));
        assert_eq!(plan.health[&name()].message, "no socket");
    }

    #[test]
    fn a_worker_waits_for_its_model_and_runs_on_the_previous_one_meanwhile() {
        use WorkerReason::{ModelDigestMismatch, ModelDownloading, ModelNotReceived};
        let (mut node, now) = (node(), Instant::now());
        let problem = |reason| Some(Problem { reason, message: "the model's trouble".into() });
        let view = |usable: Option<&str>, problem, is_stuck| Availability {
            usable: usable.map(file),
            problem,
            is_stuck,
        };
        for (model, expected) in [
            (None, (WorkerState::Pending, Some(ModelNotReceived))),
            (
                Some(view(None, problem(ModelDownloading), false)),
                (WorkerState::Pending, Some(ModelDownloading)),
            ),
            (
                Some(view(None, problem(ModelDigestMismatch), true)),
                (WorkerState::Failed, Some(ModelDigestMismatch)),
            ),
        ] {
            node.models = model.into_iter().map(|view| (wanted().model, view)).collect();
            node.containers.clear();
            let plan = node.plan(now);
            assert_eq!((said(&plan), plan.steps.len()), (expected, 0));

            node.containers = vec![shown("1", ContainerState::Running)];
            let plan = node.plan(now);
            assert_eq!(
                (said(&plan), plan.steps.len()),
                ((WorkerState::Running, None), 0),
                "what runs is left"
            );

            node.containers[0].identity.uid = "of an object that is gone".into();
            assert_eq!(removed(&node.plan(now)), ["1"]);
        }
        node.models =
            [(wanted().model, view(Some(MODEL), problem(ModelDigestMismatch), true))].into();
        node.containers.clear();
        assert!(starts(&node.plan(now)), "on the previous version");
        node.look(vec![shown("1", ContainerState::Running)], now);
        let plan = node.plan(now);
        assert_eq!((said(&plan), plan.steps.len()), ((WorkerState::Running, None), 0));
        assert!(plan.health[&name()].message.contains("the model's trouble"));
    }

    #[test]
    fn a_worker_waits_for_its_dataset_and_goes_on_without_it() {
        use WorkerReason::{DatasetNotReceived, DatasetUnavailable};
        let (mut node, now) = (node(), Instant::now());
        let key: ObjectKey = "default/datasets/d".parse().unwrap();
        node.desired.workers.get_mut(&name()).unwrap().dataset = Some(key.clone());
        let plan = node.plan(now);
        assert_eq!(said(&plan), (WorkerState::Pending, Some(DatasetNotReceived)));
        assert!(plan.health[&name()].message.contains("apply that Dataset"));

        let problem = Problem { reason: DatasetUnavailable, message: "not there".into() };
        let missing =
            Availability { problem: Some(problem), is_stuck: true, ..Availability::default() };
        node.datasets.insert(key.clone(), missing.clone());
        assert_eq!(said(&node.plan(now)), (WorkerState::Failed, Some(DatasetUnavailable)));

        let here = |path| Availability { usable: Some(file(path)), ..Availability::default() };
        node.datasets.insert(key.clone(), here("/code/data/a.csv"));
        let plan = node.plan(now);
        let [Step::Start { spec, identity, .. }] = &plan.steps[..] else { unreachable!() };
        assert_eq!(spec.dataset.as_ref().unwrap().target, "/datasets/d/a.csv");

        let mut running = shown("1", ContainerState::Running);
        running.identity.spec_hash.clone_from(&identity.spec_hash);
        node.look(vec![running], now);
        assert_eq!(node.plan(now).steps, [], "converged");
        node.datasets.insert(key.clone(), missing);
        let plan = node.plan(now);
        assert_eq!((said(&plan), plan.steps.len()), ((WorkerState::Running, None), 0));
        assert!(plan.health[&name()].message.contains("not there"));
        node.datasets.insert(key, here("/code/data/b.csv"));
        assert_eq!(removed(&node.plan(now)), ["1"], "other data is another container");
    }
}
