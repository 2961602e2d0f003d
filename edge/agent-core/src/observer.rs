//! Decides when to observe the containers, and which observation is recent enough. `watch.rs`
//! observes.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use neptune_wire::{WorkerName, WorkerReason};

use crate::{
    backoff::ENGINE_OBSERVE,
    domain::{
        observed_container::{Observation, ObservedContainer},
        problem::Problem,
    },
};

/// Interval between two observations while Docker reports no change.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(30);
/// At the start nothing is planned or reported until Docker has answered or this time has passed,
/// so that a restart of the agent is not reported as a problem of its workers.
const INITIAL_WAIT: Duration = Duration::from_secs(3);

/// The last observation of the engine and the time of the next one.
#[derive(Debug)]
pub struct EngineObserver {
    version: Option<String>,
    is_unavailable: bool,
    /// Number of the newest change. An observation includes all changes up to its own number.
    seq: u64,
    is_observing: bool,
    observe_at: Instant,
    failures: u32,
    latest: Result<(Vec<ObservedContainer>, u64), Problem>,
    /// The workers of containers that the latest observation did not describe, and why.
    undescribed: BTreeMap<WorkerName, String>,
    /// Set until the first observation ends.
    initial_until: Option<Instant>,
}

impl EngineObserver {
    pub fn new(now: Instant) -> Self {
        let problem = Problem {
            reason: WorkerReason::DockerUnavailable,
            message: "Docker has not answered yet".to_owned(),
        };
        Self {
            version: None,
            is_unavailable: false,
            seq: 0,
            is_observing: false,
            observe_at: now,
            failures: 0,
            latest: Err(problem),
            undescribed: BTreeMap::new(),
            initial_until: Some(now + INITIAL_WAIT),
        }
    }

    /// Records that containers changed: an observation in flight is outdated. Returns the number of
    /// the first observation that includes the change.
    pub fn invalidate(&mut self, now: Instant) -> u64 {
        self.seq += 1;
        self.observe_at = now;
        self.seq
    }

    /// Records that the engine answers with this version, or does not answer. Returns whether that
    /// changed.
    pub fn on_engine_status(&mut self, version: Option<String>, now: Instant) -> bool {
        self.invalidate(now);
        let is_changed = version != self.version || version.is_none() != self.is_unavailable;
        self.is_unavailable = version.is_none();
        self.version = version;
        is_changed
    }

    /// Starts an observation if one is due. Returns its number.
    pub fn begin_observation(&mut self, now: Instant) -> Option<u64> {
        if self.is_observing || self.observe_at > now {
            return None;
        }
        self.is_observing = true;
        // Each change from here on makes another observation due.
        self.observe_at = now + OBSERVE_INTERVAL;
        Some(self.seq)
    }

    /// Records the result of the observation of this number.
    pub fn on_observed(
        &mut self,
        seq: u64,
        result: Result<Vec<Observation>, Problem>,
        now: Instant,
        random: u64,
    ) {
        self.is_observing = false;
        self.initial_until = None;
        self.failures = if result.is_ok() { 0 } else { self.failures.saturating_add(1) };
        if result.is_err() {
            self.observe_at =
                self.observe_at.max(now + ENGINE_OBSERVE.delay(self.failures, random));
        }
        self.latest = result.map(|observed| (self.merged(observed), seq));
    }

    /// All containers of an observation. One that it did not describe is as last known.
    fn merged(&mut self, observed: Vec<Observation>) -> Vec<ObservedContainer> {
        self.undescribed.clear();
        let mut containers = Vec::with_capacity(observed.len());
        for one in observed {
            containers.push(one.unwrap_or_else(|undescribed| {
                let listed = undescribed.listed;
                let last = self.containers().iter().find(|known| known.id == listed.id).cloned();
                let name = listed.identity.worker.clone();
                self.undescribed.insert(name, undescribed.problem);
                last.unwrap_or(listed)
            }));
        }
        containers
    }

    /// The workers and model servers about which nothing can be decided, because the engine does
    /// not describe a container of theirs, and why.
    pub const fn undescribed(&self) -> &BTreeMap<WorkerName, String> {
        &self.undescribed
    }

    /// The containers and the number of their observation; or why the observation failed.
    pub fn latest(&self) -> Result<(&[ObservedContainer], u64), &str> {
        match &self.latest {
            Ok((containers, seq)) => Ok((containers, *seq)),
            Err(problem) => Err(&problem.message),
        }
    }

    /// The containers of the latest observation; none while the engine does not answer.
    pub fn containers(&self) -> &[ObservedContainer] {
        self.latest().map_or(&[], |(containers, _)| containers)
    }

    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Returns the time until which to wait for the first observation; `None` if it ended or took
    /// too long.
    pub fn initial_wait(&self, now: Instant) -> Option<Instant> {
        self.initial_until.filter(|at| *at > now)
    }

    /// When the next observation is due; `None` while one is in flight.
    pub fn next_at(&self) -> Option<Instant> {
        (!self.is_observing).then_some(self.observe_at)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::unwrap_used)]
    use super::*;
    use crate::{
        domain::observed_container::{ContainerState, UndescribedContainer},
        fixtures::observed_container,
    };

    #[test]
    fn version_is_that_of_the_last_answer() {
        let now = Instant::now();
        let mut engine = EngineObserver::new(now);
        assert!(engine.on_engine_status(Some("26.1.5".to_owned()), now));
        assert_eq!(engine.version(), Some("26.1.5"));
        assert!(!engine.on_engine_status(Some("26.1.5".to_owned()), now));
        assert!(engine.on_engine_status(None, now));
        assert_eq!(engine.version(), None);
    }

    #[test]
    fn change_during_observation_causes_another_one() {
        let now = Instant::now();
        let mut engine = EngineObserver::new(now);
        let first = engine.begin_observation(now);
        assert_eq!(first, Some(0));
        assert_eq!(engine.invalidate(now), 1);
        assert_eq!(engine.begin_observation(now), None, "one is in flight");
        assert_eq!(engine.initial_wait(now), Some(now + INITIAL_WAIT));
        engine.on_observed(0, Ok(Vec::new()), now, 0);
        assert_eq!(engine.initial_wait(now), None);
        assert_eq!(
            engine.begin_observation(now),
            Some(1),
            "the change happened after the first one began"
        );
        engine.on_observed(1, Ok(Vec::new()), now, 0);
        assert_eq!(
            (engine.begin_observation(now), engine.next_at()),
            (None, Some(now + OBSERVE_INTERVAL))
        );
    }

    #[test]
    fn undescribed_container_is_as_last_known_and_blocks_only_its_worker() {
        let now = Instant::now();
        let mut engine = EngineObserver::new(now);
        let undescribed = |id: &str| {
            let mut listed = observed_container(id);
            listed.identity.worker = id.parse().unwrap();
            listed.state = ContainerState::Unknown;
            Err(Box::new(UndescribedContainer { listed, problem: "no answer".to_owned() }))
        };
        // Also at the very start.
        engine.on_observed(0, Ok(vec![undescribed("bad"), Ok(observed_container("good"))]), now, 0);
        let states = |engine: &EngineObserver| -> Vec<ContainerState> {
            engine.containers().iter().map(|it| it.state.clone()).collect()
        };
        assert_eq!(states(&engine), [ContainerState::Unknown, ContainerState::Running]);
        assert!(engine.undescribed().keys().map(WorkerName::as_str).eq(["bad"]));
        let mut known = observed_container("bad");
        known.identity.worker = "bad".parse().unwrap();
        engine.on_observed(1, Ok(vec![Ok(known.clone())]), now, 0);
        assert!(engine.undescribed().is_empty());
        engine.on_observed(2, Ok(vec![undescribed("bad")]), now, 0);
        assert_eq!(engine.containers(), [known]);
        assert_eq!(engine.undescribed().len(), 1);
    }

    #[test]
    fn unavailable_engine_is_observed_with_backoff() {
        let mut now = Instant::now();
        let mut engine = EngineObserver::new(now);
        let mut waits = Vec::new();
        let problem = Problem { reason: WorkerReason::DockerUnavailable, message: "no".into() };
        for _ in 0..8 {
            assert_eq!(engine.begin_observation(now), Some(0));
            // As if a change had been reported meanwhile.
            engine.observe_at = now;
            engine.on_observed(0, Err(problem.clone()), now, u64::MAX);
            let at = engine.next_at().unwrap_or(now);
            waits.push(at.duration_since(now).as_secs());
            now = at;
        }
        assert!(waits.is_sorted() && waits.iter().all(|wait| *wait <= 5), "{waits:?}");
        assert_eq!(engine.latest(), Err("no"));
        assert!(engine.on_engine_status(None, now), "the first status is a change");
        assert!(!engine.on_engine_status(None, now));
        assert!(engine.on_engine_status(Some("docker 1".into()), now));
        assert_eq!(
            engine.begin_observation(now),
            Some(3),
            "immediately when the engine is available"
        );
    }
}
