//! The agent's one loop: an event changes the state, the state makes a plan, the plan is carried out
//! and reported. Decides nothing itself: that is plan.rs, report.rs, resync.rs, track.rs.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use neptune_link::{Event as LinkEvent, Message};
use neptune_wire::{
    ObjectKey, Replica, Resource, WorkerName, WorkerReason, WorkerState, replica::Change,
};
use tokio::sync::mpsc;
use tracing::{error, info, warn};

use crate::{
    Error,
    backoff::Backoff,
    config::Config,
    container::container,
    counts::Counts,
    desired::{Desired, desired},
    dice::dice,
    downstream::{Received, receive},
    execute::Executor,
    model::{Found, Models},
    observed::Container,
    plan::{Facts, Health, plan},
    rejected::Rejected,
    report::{Reporter, Subject},
    resync::Resync,
    store::Store,
    track::{Outcome, Problem, Track},
    upstream::{Upstream, own_address},
    watch, worker,
};

/// Between two birth messages while nothing changes.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// Between two looks at Docker while it says that nothing changed.
const LOOK_AT_DOCKER: Duration = Duration::from_secs(30);
/// Between looks at an engine that does not answer.
const LOOK_AGAIN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// At the start: until Docker has answered or this long, nothing is planned or reported, so that a
/// restart of the agent does not look like trouble with its workers.
const FIRST_ANSWER: Duration = Duration::from_secs(3);
/// Events that are taken before their counters are stored in one transaction.
const BATCH: usize = 256;

/// What happens to the agent.
#[derive(Debug)]
pub enum Event {
    /// On the link to the cloud.
    Cloud(LinkEvent),
    /// On the link to the local broker.
    Local(LinkEvent),
    /// The engine answers, with this version; or it does not.
    Docker(Result<String, Problem>),
    /// One of this node's containers changed.
    ContainersChanged,
    /// What the look of this number at the containers showed.
    Observed { seq: u64, result: Result<Vec<Container>, Problem> },
    /// An operation ended. `spec`: what was started, and how often before.
    Done { worker: WorkerName, outcome: Outcome, spec: Option<(String, u32)> },
    /// A model's task found something.
    Model { key: ObjectKey, content_key: String, found: Found },
    /// The address at which this node can be reached.
    Address(Option<String>),
    /// The broker took these back.
    FarewellsSaid(BTreeSet<ObjectKey>),
    /// The embedded broker ended.
    BrokerFailed(Error),
}

/// The state of the loop.
pub struct Agent {
    pub config: Config,
    pub store: Store,
    pub replica: Replica,
    pub counts: Counts,
    pub models: Models,
    pub executor: Executor,
    pub upstream: Upstream,
    pub reporter: Reporter,
    pub farewells: BTreeSet<ObjectKey>,
    pub state: State,
}

/// What is known beside what is stored.
pub struct State {
    desired: Desired,
    tracks: BTreeMap<WorkerName, Track>,
    health: BTreeMap<WorkerName, Health>,
    resync: Resync,
    rejected: Rejected,
    docker: Engine,
    is_up: bool,
    address: Option<String>,
    heartbeat_at: Option<Instant>,
    /// Something that the plan depends on changed.
    is_stale: bool,
    plan_at: Option<Instant>,
    report_at: Option<Instant>,
}

/// What is known of Docker.
struct Engine {
    version: Option<String>,
    /// Numbers the looks.
    seq: u64,
    is_looking: bool,
    look_at: Option<Instant>,
    failures: u32,
    shown: Result<(Vec<Container>, u64), Problem>,
    /// Set until the first answer.
    asked_until: Option<Instant>,
}

impl State {
    pub fn new(now: Instant) -> Self {
        let problem = Problem {
            reason: WorkerReason::DockerUnavailable,
            message: "Docker has not answered yet".to_owned(),
        };
        Self {
            desired: Desired::default(),
            tracks: BTreeMap::new(),
            health: BTreeMap::new(),
            resync: Resync::default(),
            rejected: Rejected::default(),
            docker: Engine {
                version: None,
                seq: 0,
                is_looking: false,
                look_at: Some(now),
                failures: 0,
                shown: Err(problem),
                asked_until: Some(now + FIRST_ANSWER),
            },
            is_up: false,
            address: None,
            heartbeat_at: None,
            is_stale: true,
            plan_at: None,
            report_at: None,
        }
    }
}

impl Engine {
    /// Something happened: a look that has begun already is not enough.
    fn look(&mut self, now: Instant) {
        self.seq += 1;
        self.look_at = Some(now);
    }
}

impl Agent {
    /// Runs until `stop` resolves.
    ///
    /// # Errors
    /// The embedded broker ended, or a first write to the database failed.
    pub async fn run(
        mut self,
        mut events: mpsc::Receiver<Event>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let mut stop = std::pin::pin!(stop);
        self.desired_changed()?;
        loop {
            let wake_at = self.turn(Instant::now());
            let event = tokio::select! {
                () = &mut stop => break,
                event = events.recv() => event.expect("the agent holds a sender itself"),
                () = tokio::time::sleep_until(wake_at.into()) => continue,
            };
            self.take(event)?;
            for _ in 1..BATCH {
                let Ok(event) = events.try_recv() else { break };
                self.take(event)?;
            }
        }
        self.stop().await;
        Ok(())
    }

    async fn stop(mut self) {
        info!("stopping; the workers go on");
        self.keep_counts();
        self.report(Instant::now());
        self.upstream.offline();
        self.state.rejected.sum_up();
        self.upstream.link.close(Duration::from_secs(2)).await;
    }

    fn take(&mut self, event: Event) -> Result<(), Error> {
        let now = Instant::now();
        if !matches!(event, Event::Local(_) | Event::Address(_) | Event::FarewellsSaid(_)) {
            self.state.is_stale = true;
        }
        match event {
            Event::Cloud(LinkEvent::Message(message)) => return self.downstream(&message),
            Event::Cloud(LinkEvent::Up) => self.find_address(),
            Event::Cloud(LinkEvent::Down { .. }) => self.cloud_lost(),
            Event::Local(LinkEvent::Message(message)) => self.worker_said(&message),
            Event::Local(LinkEvent::Up | LinkEvent::Down { .. }) => {}
            Event::Docker(answer) => self.engine_said(answer, now),
            Event::ContainersChanged => self.state.docker.look(now),
            Event::Observed { seq, result } => self.observed(seq, result, now),
            Event::Done { worker, outcome, spec } => self.done(&worker, outcome, spec, now),
            Event::Model { key, content_key, found } => {
                self.model_found(&key, &content_key, found);
            }
            Event::Address(address) => self.greet(address, now),
            Event::FarewellsSaid(keys) => self.farewells_said(&keys),
            Event::BrokerFailed(error) => return Err(error),
        }
        Ok(())
    }

    /// Plans, carries out, stores, reports. Returns when to do so again at the latest.
    fn turn(&mut self, now: Instant) -> Instant {
        self.look_at_docker(now);
        if let Some(at) = self.state.docker.asked_until.filter(|at| *at > now) {
            self.keep_counts();
            return at;
        }
        if self.state.is_stale || self.state.plan_at.is_some_and(|at| at <= now) {
            self.plan(now);
        }
        self.keep_counts();
        if self.state.is_up {
            self.heartbeat(now);
            self.report(now);
            if self.state.resync.is_due(self.replica.is_complete(), now, dice()) {
                self.upstream.sync(&self.replica);
            }
        }
        let state = &self.state;
        let times = [
            state.plan_at,
            state.report_at,
            state.heartbeat_at,
            state.resync.wake_at(),
            state.docker.look_at,
        ];
        times.into_iter().flatten().min().unwrap_or(now + LOOK_AT_DOCKER)
    }

    fn plan(&mut self, now: Instant) {
        self.state.is_stale = false;
        self.aim();
        let state = &self.state;
        let observed = match &state.docker.shown {
            Ok((containers, seq)) => Ok((containers.as_slice(), *seq)),
            Err(problem) => Err(problem.message.as_str()),
        };
        let plan = plan(
            &Facts {
                desired: &state.desired,
                is_complete: self.replica.index().revision.0 > 0 && self.replica.is_complete(),
                instance: &self.upstream.speaker.identity.instance,
                site: &self.executor.site,
                observed,
                models: self.models.views(),
                tracks: &state.tracks,
            },
            now,
        );
        self.state.plan_at = plan.wake_at;
        for step in plan.steps {
            self.state.tracks.entry(step.worker().clone()).or_default().busy = true;
            self.executor.begin(step);
        }
        log_changes(&self.state.health, &plan.health);
        self.state.health = plan.health;
    }

    /// Tells each track what its worker should be, so that a changed worker is tried at once.
    fn aim(&mut self) {
        for (name, wanted) in &self.state.desired.workers {
            let track = self.state.tracks.entry(name.clone()).or_default();
            if let Some(path) =
                self.models.views().get(&wanted.model).and_then(|view| view.usable.as_ref())
            {
                track.aim(&container(wanted, path, &self.executor.site).hash());
            }
        }
    }

    fn downstream(&mut self, message: &Message) -> Result<(), Error> {
        let (node, prefix) = (&self.config.node, &self.config.prefix);
        match receive(message, node, prefix, &mut self.replica, &mut self.store) {
            Ok(Received::Changed(changes)) => return self.replica_changed(&changes),
            Ok(Received::Known) => {}
            Ok(Received::OlderIndex) => self.state.resync.nudge(),
            Ok(Received::Rejected(why)) => self.state.rejected.from_cloud(&message.topic, &why),
            // The object is still missing, so that a sync asks for it again.
            Err(error) => {
                error!(%error, topic = message.topic, "desired state cannot be stored; it is asked for again")
            }
        }
        Ok(())
    }

    fn replica_changed(&mut self, changes: &[Change]) -> Result<(), Error> {
        let mut gone = BTreeSet::new();
        for change in changes {
            match change {
                Change::Set(key) => {
                    info!(object = %key, revision = %self.replica.objects()[key].revision, "object received");
                    self.farewells.remove(key);
                    self.counts
                        .forget(key, Some(&self.replica.objects()[key].content.metadata.uid));
                }
                Change::Removed(key) => {
                    info!(object = %key, "object removed");
                    self.counts.forget(key, None);
                    if key.resource == Resource::JointInferenceServices {
                        gone.insert(key.clone());
                    }
                }
                Change::Renewed(_) | Change::Index => {}
            }
        }
        if !gone.is_empty() {
            self.farewells.append(&mut gone);
            self.say_farewells();
        }
        self.desired_changed()
    }

    fn desired_changed(&mut self) -> Result<(), Error> {
        self.state.desired = desired(&self.replica);
        self.models.set(&self.state.desired.models, &mut self.store)
    }

    fn worker_said(&mut self, message: &Message) {
        let containers =
            self.state.docker.shown.as_ref().map_or(&[][..], |(containers, _)| containers);
        match worker::read(message, &self.config.prefix, &self.state.desired, containers) {
            Ok(said) => {
                let counts = said.counts.as_ref().map(|(run, counters)| (run.as_str(), *counters));
                self.counts.observe(
                    &said.wanted.owner,
                    &said.wanted.uid,
                    &said.worker,
                    &said.info,
                    counts,
                );
            }
            Err(why) => self.state.rejected.from_worker(&message.topic, &why),
        }
    }

    fn keep_counts(&mut self) {
        if self.counts.is_saved() {
            return;
        }
        match self.store.keep_counts(self.counts.unsaved()) {
            Ok(()) => self.counts.saved(),
            // They are in memory still, and the next turn tries again.
            Err(error) => error!(%error, "counters cannot be stored"),
        }
    }

    fn report(&mut self, now: Instant) {
        let subjects = subjects(&self.replica, &self.state, &self.counts);
        let due = self.reporter.due(&subjects, now, Timestamp::now());
        self.state.report_at = due.wake_at;
        if due.reports.is_empty() {
            return;
        }
        // What the cloud sees never goes back: first the disk, then the broker.
        if let Err(error) = self.store.sync() {
            error!(%error, "counters cannot be stored; nothing is reported");
            self.reporter.forget();
            self.state.report_at = Some(now + HEARTBEAT);
            return;
        }
        for (key, report) in &due.reports {
            self.upstream.status(key, report);
        }
    }

    fn model_found(&mut self, key: &ObjectKey, content_key: &str, found: Found) {
        if let Err(error) = self.models.found(key, content_key, found, &mut self.store) {
            // It is there all the same, and is fetched again after the next start.
            error!(%error, model = %key, "model cannot be recorded");
        }
    }

    fn find_address(&mut self) {
        let (events, url, advertise) = (
            self.executor.events.clone(),
            self.config.mqtt_url.clone(),
            self.config.advertise.clone(),
        );
        tokio::spawn(async move {
            let address = match advertise {
                Some(address) => Some(address),
                None => own_address(&url).await.map(|address| address.to_string()),
            };
            let _ = events.send(Event::Address(address)).await;
        });
    }

    /// The link to the cloud came up: everything is said anew, since nobody knows what was lost.
    fn greet(&mut self, address: Option<String>, now: Instant) {
        self.state.is_up = self.upstream.link.is_up();
        self.state.address = address;
        if !self.state.is_up {
            return;
        }
        self.state.heartbeat_at = Some(now);
        self.heartbeat(now);
        self.upstream.sync(&self.replica);
        self.state.resync.sent_on_connecting(now, dice());
        self.reporter.forget();
        self.say_farewells();
    }

    fn cloud_lost(&mut self) {
        self.state.is_up = false;
        self.state.heartbeat_at = None;
        self.state.report_at = None;
        self.state.resync.down();
    }

    fn heartbeat(&mut self, now: Instant) {
        if self.state.heartbeat_at.is_some_and(|at| at <= now) {
            self.upstream.online(self.state.address.clone(), self.state.docker.version.clone());
            self.state.heartbeat_at = Some(now + HEARTBEAT);
        }
    }

    fn say_farewells(&self) {
        if self.farewells.is_empty() {
            return;
        }
        self.upstream.farewells(&self.farewells);
        let (events, link, keys) =
            (self.executor.events.clone(), self.upstream.link.clone(), self.farewells.clone());
        tokio::spawn(async move {
            link.flushed().await;
            let _ = events.send(Event::FarewellsSaid(keys)).await;
        });
    }

    fn farewells_said(&mut self, keys: &BTreeSet<ObjectKey>) {
        let said: BTreeSet<_> = keys.intersection(&self.farewells).cloned().collect();
        self.farewells.retain(|key| !said.contains(key));
        if let Err(error) = self.store.farewells_said(&said) {
            // They are said once more after the next start.
            warn!(%error, "farewells stay stored");
        }
    }

    fn engine_said(&mut self, answer: Result<String, Problem>, now: Instant) {
        let engine = &mut self.state.docker;
        let version = match answer {
            Ok(version) => {
                engine.failures = 0;
                Some(version)
            }
            Err(problem) => {
                if engine.version.is_some() || engine.failures == 0 {
                    warn!(problem = problem.message, "Docker is not there");
                }
                None
            }
        };
        engine.look(now);
        if version != engine.version {
            engine.version = version;
            self.state.heartbeat_at = self.state.heartbeat_at.map(|_| now);
        }
    }

    fn look_at_docker(&mut self, now: Instant) {
        let engine = &mut self.state.docker;
        if engine.is_looking || engine.look_at.is_none_or(|at| at > now) {
            return;
        }
        engine.is_looking = true;
        engine.look_at = None;
        let Executor { docker, events, .. } = &self.executor;
        watch::observe(Arc::clone(docker), self.config.node.clone(), engine.seq, events.clone());
    }

    fn observed(&mut self, seq: u64, result: Result<Vec<Container>, Problem>, now: Instant) {
        let engine = &mut self.state.docker;
        engine.is_looking = false;
        engine.asked_until = None;
        let next = match &result {
            Ok(_) => {
                engine.failures = 0;
                now + LOOK_AT_DOCKER
            }
            Err(_) => {
                engine.failures = engine.failures.saturating_add(1);
                now + LOOK_AGAIN.after(engine.failures, dice())
            }
        };
        // Something that happened meanwhile may already have asked for another look.
        engine.look_at = Some(engine.look_at.map_or(next, |at| at.min(next)));
        engine.shown = result.map(|containers| (containers, seq));
        let Ok((containers, _)) = &engine.shown else { return };
        for (name, track) in &mut self.state.tracks {
            if !track.busy && seq >= track.fresh_from {
                let own: Vec<_> = containers
                    .iter()
                    .filter(|container| container.identity.worker == *name)
                    .collect();
                track.observe(&own, now, dice());
            }
        }
        self.tidy(seq);
    }

    /// Forgets what nothing refers to any more, when nothing is being done.
    fn tidy(&mut self, seq: u64) {
        let Ok((containers, _)) = &self.state.docker.shown else { return };
        let desired = &self.state.desired;
        self.state.tracks.retain(|name, track| {
            track.busy
                || desired.workers.contains_key(name)
                || containers.iter().any(|container| container.identity.worker == *name)
        });
        if self.state.tracks.values().any(|track| track.busy || track.fresh_from > seq) {
            return;
        }
        let sources = containers
            .iter()
            .flat_map(|container| &container.sources)
            .map(String::as_str)
            .collect();
        if let Err(error) = self.models.collect(&sources, &mut self.store) {
            warn!(%error, "unused models stay");
        }
    }

    fn done(
        &mut self,
        worker: &WorkerName,
        outcome: Outcome,
        spec: Option<(String, u32)>,
        now: Instant,
    ) {
        self.state.docker.look(now);
        let seq = self.state.docker.seq;
        let lost_model = matches!(&outcome, Outcome::Failed(problem) if problem.reason == WorkerReason::ModelUnavailable);
        self.state.tracks.entry(worker.clone()).or_default().done(outcome, spec, seq, now, dice());
        if let Some(wanted) = self.state.desired.workers.get(worker).filter(|_| lost_model)
            && let Err(error) = self.models.look_again(&wanted.model, &mut self.store)
        {
            warn!(%error, model = %wanted.model, "model cannot be looked up");
        }
    }
}

fn subjects<'a>(replica: &'a Replica, state: &State, counts: &Counts) -> Vec<Subject<'a>> {
    let objects = replica.objects().iter().filter(|(key, held)| {
        key.resource == Resource::JointInferenceServices && !held.content.workers.is_empty()
    });
    let subject = |(key, held): (&'a ObjectKey, &'a neptune_wire::replica::Held)| {
        let uid = &held.content.metadata.uid;
        let workers = held.content.workers.iter().map(|worker| {
            let clash = state
                .desired
                .clashes
                .iter()
                .find(|(owner, clashing, _)| owner == key && clashing.name == worker.name);
            let health = match clash {
                Some((_, _, other)) => clashes(&worker.name, other),
                None => state.health.get(&worker.name).cloned().unwrap_or_else(unknown),
            };
            (health, counts.status(uid, &worker.name).to_owned())
        });
        Subject { key, held, workers: workers.collect(), total: counts.total(uid) }
    };
    objects.map(subject).collect()
}

fn clashes(worker: &WorkerName, other: &ObjectKey) -> Health {
    Health {
        state: WorkerState::Failed,
        reason: Some(WorkerReason::ContainerRefused),
        message: format!(
            "{other} has a worker named {worker} on this node already; delete or rename one of the two objects"
        ),
        restarts: 0,
    }
}

fn unknown() -> Health {
    Health {
        state: WorkerState::Pending,
        reason: Some(WorkerReason::Starting),
        message: String::new(),
        restarts: 0,
    }
}

fn log_changes(before: &BTreeMap<WorkerName, Health>, after: &BTreeMap<WorkerName, Health>) {
    for (worker, health) in
        after.iter().filter(|(worker, health)| before.get(worker) != Some(health))
    {
        let Health { state, reason, message, restarts } = health;
        match reason {
            None => info!(%worker, ?state, restarts, message, "worker"),
            Some(
                WorkerReason::Starting
                | WorkerReason::ModelDownloading
                | WorkerReason::ModelNotReceived,
            ) => {
                info!(%worker, ?state, ?reason, message, "worker");
            }
            Some(reason) => warn!(%worker, ?state, ?reason, restarts, message, "worker"),
        }
    }
}
