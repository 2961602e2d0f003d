//! The agent's one loop: an event changes the state, the state makes a plan, the plan is carried out
//! and reported. Decides nothing itself: that is plan.rs, report.rs, resync.rs, track.rs.

mod cloud;
mod event;
mod models;
mod node;
mod serving;
mod state;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use neptune_link::{Link, LinkEvent};
use neptune_wire::{ObjectKey, Replica, WorkerName, WorkerState};
use tokio::sync::mpsc;
use tracing::{error, info, warn};

pub use self::{event::Event, state::State};
use crate::{
    Error,
    config::Config,
    counts::Counts,
    datasets::Datasets,
    depot::Depot,
    dice::dice,
    execute::Executor,
    images::Images,
    model::Models,
    plan::{Facts, Health, plan},
    report::{Reporter, is_on_its_way},
    server,
    store::Store,
    supervisor::Supervisor,
    upstream::Upstream,
};

/// After counters could not be stored.
const STORE_AGAIN: Duration = Duration::from_secs(30);
/// Events that are taken before their counters are stored in one transaction.
const BATCH: usize = 256;

/// The state of the loop.
pub struct Agent {
    pub config: Config,
    pub store: Store,
    pub replica: Replica,
    pub counts: Counts,
    pub models: Models,
    pub depot: Depot,
    pub images: Images,
    pub datasets: Datasets,
    pub executor: Executor,
    pub upstream: Upstream,
    /// To the workers.
    pub local: Link,
    pub reporter: Reporter,
    pub farewells: BTreeSet<ObjectKey>,
    pub state: State,
}

impl Agent {
    /// Runs until `stop` resolves.
    ///
    /// # Errors
    /// The embedded broker ended.
    pub async fn run(
        mut self,
        mut events: mpsc::Receiver<Event>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let mut stop = std::pin::pin!(stop);
        let mut supervisor = Supervisor::of_environment();
        self.desired_changed();
        loop {
            let wake_at = self.turn(Instant::now());
            let feed_at = supervisor.turned(Instant::now(), || self.summary());
            let wake_at = feed_at.map_or(wake_at, |at| wake_at.min(at));
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
        Supervisor::stopping();
        self.keep_counts();
        self.datasets.keep(&mut self.store, true, Instant::now());
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
            Event::Cloud(LinkEvent::Message(message)) => self.downstream(&message),
            Event::Cloud(LinkEvent::Up) => {
                self.find_address();
                if self.upstream.bus.is_some() {
                    self.workers_broker_came();
                }
            }
            Event::Cloud(LinkEvent::Down { .. }) => self.cloud_lost(),
            Event::Local(LinkEvent::Message(message)) => self.worker_said(&message),
            Event::Local(LinkEvent::Up) => self.workers_broker_came(),
            // News of a dataset is taken note of before the plan.
            Event::Local(LinkEvent::Down { .. }) | Event::Dataset => {}
            Event::Docker(answer) => self.engine_said(answer, now),
            Event::ContainersChanged => drop(self.state.engine.changed(now)),
            Event::Observed { seq, result } => self.observed(seq, result, now),
            Event::Done { worker, outcome, spec } => self.done(&worker, outcome, spec, now),
            Event::Model { key, content_key, found } => {
                self.model_found(&key, &content_key, found);
            }
            Event::Supply { source, found } => self.depot.found(&source, found),
            Event::Image { image, found } => self.images.found(&image, found),
            Event::Checked { key, edition, run, answer } => {
                self.checked(&key, &edition, &run, answer, now);
            }
            Event::Address(address) => self.greet(address, now),
            Event::FarewellsSaid(keys) => self.farewells_said(&keys),
            Event::BrokerFailed(error) => return Err(error),
        }
        Ok(())
    }

    /// The broker may have forgotten what it kept.
    fn workers_broker_came(&mut self) {
        self.state.told.clear();
        self.state.is_stale = true;
    }

    /// Plans, carries out, stores, reports. Returns when to do so again at the latest.
    fn turn(&mut self, now: Instant) -> Instant {
        let wake_at = self.act(now);
        let batch_at = self.state.is_up.then(|| self.upstream.flush(now)).flatten();
        batch_at.map_or(wake_at, |at| at.min(wake_at))
    }

    fn act(&mut self, now: Instant) -> Instant {
        self.look_at_docker(now);
        if let Some(at) = self.state.engine.first_answer(now) {
            self.keep_counts();
            return at;
        }
        if self.state.is_stale || self.state.plan_at.is_some_and(|at| at <= now) {
            self.plan(now);
        }
        self.state.ask_at = self.ask(now);
        self.keep_counts();
        let keep_at = self.datasets.keep(&mut self.store, false, now);
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
            state.ask_at,
            keep_at,
            state.report_at,
            state.heartbeat_at,
            state.resync.wake_at(),
            state.engine.wake_at(),
        ];
        times.into_iter().flatten().min().unwrap_or(now + self.config.heartbeat)
    }

    fn plan(&mut self, now: Instant) {
        self.state.is_stale = false;
        self.refresh_models();
        self.datasets.refresh(&self.depot);
        self.aim();
        let reloads = self.reload(now);
        let decide_at = self.serve(now);
        self.aim_servers();
        let state = &self.state;
        let facts = Facts {
            desired: &state.desired,
            is_complete: self.replica.index().revision.0 > 0 && self.replica.is_complete(),
            keep: &self.replica.index().keep,
            instance: &self.upstream.speaker.identity.instance,
            site: &self.executor.site,
            observed: state.engine.shown(),
            models: self.models.views(),
            datasets: self.datasets.views(),
            tracks: &state.tracks,
            reloads: &reloads,
        };
        let mut plan = plan(&facts, now);
        for (key, wanted) in &state.desired.servers {
            // One whose name another object has taken touches nothing of that name.
            let has_name = state.desired.server_named(&wanted.serving.name) == Some(key);
            if let Some(server) = state.servers.get(key).filter(|_| has_name) {
                let wanted = server.wanted(key, wanted, &self.depot, facts.site);
                server::plan(&mut plan, &facts, &wanted, now);
            }
        }
        self.state.plan_at = plan.wake_at.into_iter().chain(decide_at).min();
        for step in plan.steps {
            self.state.tracks.entry(step.worker().clone()).or_default().busy = true;
            self.executor.begin(step);
        }
        log_changes(&self.state.health, &plan.health);
        self.state.health = plan.health;
    }

    /// The agent's state in one line, as `systemctl status` shows it.
    fn summary(&self) -> String {
        let state = &self.state;
        let running = state.health.values().filter(|health| health.state == WorkerState::Running);
        format!(
            "{}; {}; {} of {} workers run",
            if state.is_up { "connected" } else { "no connection to the cloud" },
            state.engine.version().unwrap_or("no engine"),
            running.count(),
            state.health.len(),
        )
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
}

fn log_changes(before: &BTreeMap<WorkerName, Health>, after: &BTreeMap<WorkerName, Health>) {
    for (worker, health) in
        after.iter().filter(|(worker, health)| before.get(worker) != Some(health))
    {
        let Health { state, reason, message, restarts } = health;
        match reason {
            None => info!(%worker, ?state, restarts, message, "worker"),
            Some(reason) if is_on_its_way(*reason) => {
                info!(%worker, ?state, ?reason, message, "worker");
            }
            Some(reason) => warn!(%worker, ?state, ?reason, restarts, message, "worker"),
        }
    }
}
