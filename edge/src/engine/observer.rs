//! Decides when to observe the engine, and which observation is recent enough. Pure; `watch.rs`
//! observes.

use std::time::{Duration, Instant};

use neptune_wire::WorkerReason;

use crate::{
    backoff::ENGINE_OBSERVE,
    domain::{observed_container::ObservedContainer, problem::Problem},
};

/// Between two looks while Docker says that nothing changed.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(30);
/// At the start: until Docker has answered or this long, nothing is planned or reported, so that a
/// restart of the agent does not look like trouble with its workers.
const INITIAL_WAIT: Duration = Duration::from_secs(3);

/// What is known of Docker.
#[derive(Debug)]
pub struct EngineObserver {
    version: Option<String>,
    is_unavailable: bool,
    /// Numbers the looks: a look shows all that happened before its number was given.
    seq: u64,
    is_observing: bool,
    observe_at: Instant,
    failures: u32,
    latest: Result<(Vec<ObservedContainer>, u64), Problem>,
    /// Set until the first answer.
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
            initial_until: Some(now + INITIAL_WAIT),
        }
    }

    /// Something happened: a look that has begun already is not enough. Returns the number of the
    /// look that is.
    pub fn invalidate(&mut self, now: Instant) -> u64 {
        self.seq += 1;
        self.observe_at = now;
        self.seq
    }

    /// The engine came, with this version, or went. Returns whether that is news.
    pub fn on_engine_status(&mut self, version: Option<String>, now: Instant) -> bool {
        self.invalidate(now);
        let is_changed = version != self.version || version.is_none() != self.is_unavailable;
        self.is_unavailable = version.is_none();
        self.version = version;
        is_changed
    }

    /// Whether to look now, and under which number. Counts as looking.
    pub fn begin_observation(&mut self, now: Instant) -> Option<u64> {
        if self.is_observing || self.observe_at > now {
            return None;
        }
        self.is_observing = true;
        // Whatever changes from here on asks for another look.
        self.observe_at = now + OBSERVE_INTERVAL;
        Some(self.seq)
    }

    /// What the look of this number showed.
    pub fn on_observed(
        &mut self,
        seq: u64,
        result: Result<Vec<ObservedContainer>, Problem>,
        now: Instant,
        random: u64,
    ) {
        self.is_observing = false;
        self.initial_until = None;
        self.failures = if result.is_ok() { 0 } else { self.failures.saturating_add(1) };
        if result.is_err() {
            self.observe_at =
                self.observe_at.max(now + ENGINE_OBSERVE.after(self.failures, random));
        }
        self.latest = result.map(|containers| (containers, seq));
    }

    /// The containers and the number of the look that showed them; or why there are none.
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

    /// Until when the first answer is waited for.
    pub fn initial_wait(&self, now: Instant) -> Option<Instant> {
        self.initial_until.filter(|at| *at > now)
    }

    /// When to look again, if not now.
    pub fn wake_at(&self) -> Option<Instant> {
        (!self.is_observing).then_some(self.observe_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_during_an_observation_causes_another_one() {
        let now = Instant::now();
        let mut engine = EngineObserver::new(now);
        let first = engine.begin_observation(now);
        assert_eq!(first, Some(0));
        assert_eq!(engine.invalidate(now), 1);
        assert_eq!(engine.begin_observation(now), None, "one is under way");
        assert_eq!(engine.initial_wait(now), Some(now + INITIAL_WAIT));
        engine.on_observed(0, Ok(Vec::new()), now, 0);
        assert_eq!(engine.initial_wait(now), None);
        assert_eq!(
            engine.begin_observation(now),
            Some(1),
            "the change came after the first had begun"
        );
        engine.on_observed(1, Ok(Vec::new()), now, 0);
        assert_eq!(
            (engine.begin_observation(now), engine.wake_at()),
            (None, Some(now + OBSERVE_INTERVAL))
        );
    }

    #[test]
    fn unreachable_engine_is_observed_with_backoff() {
        let mut now = Instant::now();
        let mut engine = EngineObserver::new(now);
        let mut waits = Vec::new();
        let problem = Problem { reason: WorkerReason::DockerUnavailable, message: "no".into() };
        for _ in 0..8 {
            assert_eq!(engine.begin_observation(now), Some(0));
            // As if the look had been asked for again meanwhile.
            engine.observe_at = now;
            engine.on_observed(0, Err(problem.clone()), now, u64::MAX);
            let at = engine.wake_at().unwrap_or(now);
            waits.push(at.duration_since(now).as_secs());
            now = at;
        }
        assert!(waits.is_sorted() && waits.iter().all(|wait| *wait <= 5), "{waits:?}");
        assert_eq!(engine.latest(), Err("no"));
        assert!(engine.on_engine_status(None, now), "the first time it is news");
        assert!(!engine.on_engine_status(None, now));
        assert!(engine.on_engine_status(Some("docker 1".into()), now));
        assert_eq!(engine.begin_observation(now), Some(3), "at once when it says that it is there");
    }
}
