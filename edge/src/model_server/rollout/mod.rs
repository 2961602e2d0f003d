//! Decides which version of its model a model server must run, and its status. Pure: downloads,
//! containers and probes are facts, and the caller stores the state before it acts on it.
//!
//! | target | current | what is seen | then |
//! |---|---|---|---|
//! | any | none, or another | target and image fetched, neither failed nor held | current becomes the target: its trial begins |
//! | any | on trial | well for the probation | it is the last good one |
//! | any | on trial | never well in time, unwell again, ended, refused | it failed; current becomes the last good one |
//! | any | on trial | as before, and there is no last good one | it failed, and is tried again and again |
//! | failed | last good | | `BlockedByFailedLoad` until the target changes |
//! | other | any | model or image still being fetched, or held | current goes on |
//!
//! The current and the last good version are always kept on the node. A target that comes in the
//! middle of any of this takes the place of the one before it.

use crate::{
    domain::{
        artifact::{DownloadState, ImageState},
        rollout::RolloutState,
        served_version::{ServedVersion, id, watched_model},
    },
    model_server::probe::{FAILURE_THRESHOLD, ProbeHistory},
};

mod status;

use std::time::{Duration, Instant};

use neptune_wire::{LoadFailure, ModelServer, ModelServerReport};

/// All that the decision depends on beside what is remembered.
pub struct RolloutFacts<'a> {
    pub target: &'a ModelServer,
    /// Why the target can be served on no node.
    pub refusal: Option<&'a str>,
    pub download: DownloadState,
    pub image: ImageState,
    /// How [`RolloutState::current`] fares, and [`RolloutState::last_good`].
    pub current: InstanceState<'a>,
    pub last_good: InstanceState<'a>,
    /// The same of [`RolloutState::draining`], of which no check is good once it is gone.
    pub draining: InstanceState<'a>,
    /// Endings in a row of what runs.
    pub failures: u32,
    pub now: Instant,
    /// The same as a text.
    pub wall: &'a str,
}

/// How an edition's server fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceState<'a> {
    /// It is not there; what is waited for, if anything is.
    Absent(Option<&'a str>),
    Up(&'a ProbeHistory),
    /// It ended, or cannot be started.
    Down {
        reason: &'a str,
        message: &'a str,
    },
}

/// What follows.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct RolloutDecision {
    /// To be stored, and decided upon again, if it is another than before.
    pub state: RolloutState,
    pub report: ModelServerReport,
    /// The container of what is current is there and has not answered for long.
    pub restart: bool,
    pub wake_at: Option<Instant>,
}

/// Decides.
pub fn decide(state: &RolloutState, facts: &RolloutFacts<'_>) -> RolloutDecision {
    let mut next = state.clone();
    let target = id(facts.target);
    // What failed may be tried again once something else was wanted.
    next.blocked = next.blocked.filter(|blocked| *blocked == target);
    let is_left = |probes: &ProbeHistory| probes.consecutive_failures > 0;
    if !matches!(facts.draining, InstanceState::Up(probes) if !is_left(probes)) {
        next.draining = None;
    }
    let mut wake_at = None;
    match next.verdict(facts, &mut wake_at) {
        Verdict::Open => {}
        Verdict::Passed => next.pass_trial(),
        Verdict::Failed { reason, message } => {
            next.fail_trial(&target, reason, message, facts.wall);
        }
    }
    if next.may_switch(&target, facts) {
        next.start_trial(facts.target);
    }
    let restart = next.current == state.current && next.is_hanging(facts, &mut wake_at);
    let report = status::status(&next, &target, facts);
    RolloutDecision { state: next, report, restart, wake_at }
}

enum Verdict {
    Open,
    Passed,
    Failed { reason: String, message: String },
}

impl RolloutState {
    fn is_good(&self, version: &ServedVersion) -> bool {
        self.last_good.as_ref().is_some_and(|good| good.id() == version.id())
    }

    /// What the trial of the current edition has shown.
    fn verdict(&self, facts: &RolloutFacts<'_>, wake_at: &mut Option<Instant>) -> Verdict {
        let Some(current) = self.current.as_ref().filter(|current| !self.is_good(current)) else {
            return Verdict::Open;
        };
        let failed =
            |reason: &str, message: String| Verdict::Failed { reason: reason.to_owned(), message };
        let probes = match facts.current {
            InstanceState::Absent(_) => return Verdict::Open,
            InstanceState::Down { reason, message } => return failed(reason, message.to_owned()),
            InstanceState::Up(probes) => probes,
        };
        let health = &current.serving.health;
        let probation = Duration::from_millis(health.probation_ms);
        let start_within = Duration::from_millis(health.start_within_ms);
        if let Some(since) = probes.healthy_since {
            if facts.now >= since + probation {
                return Verdict::Passed;
            }
            wake(wake_at, since + probation);
        }
        // Time for one hiccup.
        let (deadline, what) = if probes.last_healthy.is_none() {
            (probes.since + start_within, "was not well")
        } else {
            (probes.since + start_within + 3 * probation, "was not well for long enough")
        };
        if probes.last_healthy.is_some() && probes.consecutive_failures >= FAILURE_THRESHOLD {
            let message = format!(
                "was well, and then {FAILURE_THRESHOLD} checks failed: {}",
                probes.last_failure
            );
            return failed(HEALTH_CHECK_FAILED, message);
        }
        if facts.now >= deadline {
            let within = deadline.duration_since(probes.since).as_secs_f32();
            return failed(
                HEALTH_CHECK_FAILED,
                format!("{what} within {within} s: {}", probes.last_failure),
            );
        }
        wake(wake_at, deadline);
        Verdict::Open
    }

    /// The current version passed its trial: it is the last good one.
    pub fn pass_trial(&mut self) {
        let id = self.current.as_ref().map(ServedVersion::id);
        self.draining = self.last_good.take().filter(|before| self.is_outranked_by(before));
        self.last_good.clone_from(&self.current);
        if self.blocked.as_deref() == id {
            self.blocked = None;
        }
    }

    /// The current version failed its trial: the last good one becomes current, if there is one.
    pub fn fail_trial(&mut self, target: &str, reason: String, message: String, wall: &str) {
        let Some(current) = &self.current else { return };
        let (id, version) = (current.id().to_owned(), current.version().to_owned());
        // Without anything to return to it goes on failing: that is one failure.
        if self.last_good.is_none() && self.blocked.as_ref() == Some(&id) {
            return;
        }
        if id == target {
            self.blocked = Some(id);
        }
        self.last_failure = Some(LoadFailure { version, reason, message, time: wall.to_owned() });
        if self.last_good.is_some() {
            let failed = std::mem::replace(&mut self.current, self.last_good.clone());
            self.draining = failed.filter(|failed| self.is_outranked_by(failed));
        }
    }

    /// Whether the server answers with the other version as long as it has both, and can be asked
    /// for it.
    fn is_outranked_by(&self, other: &ServedVersion) -> bool {
        self.current.as_ref().is_some_and(|current| {
            let numbers = other.number().zip(current.number());
            let is_shared = current.watches()
                && other.watches()
                && current.directory_generation == other.directory_generation;
            is_shared
                && other.has_own_health_path()
                && numbers.is_some_and(|(other, current)| other > current)
        })
    }

    fn may_switch(&self, target: &str, facts: &RolloutFacts<'_>) -> bool {
        let is_another = self.current.as_ref().is_none_or(|current| current.id() != target);
        is_another
            && facts.refusal.is_none()
            && facts.download == DownloadState::Ready
            && facts.image == ImageState::Ready
            && self.blocked.is_none()
            && !self.is_held(facts)
    }

    /// Whether the switch is held. With nothing that could go on there is nothing to hold on to.
    fn is_held(&self, facts: &RolloutFacts<'_>) -> bool {
        let can_continue =
            self.last_good.is_some() || matches!(facts.current, InstanceState::Up(_));
        facts.target.hold && self.current.is_some() && can_continue
    }

    /// Makes the target current: its trial begins.
    pub fn start_trial(&mut self, target: &ModelServer) {
        let id = id(target);
        self.draining = None;
        if let Some(good) = self.last_good.as_ref().filter(|good| good.id() == id) {
            self.current = Some(good.clone());
            return;
        }
        let version = target.model.as_ref().map_or(String::new(), |model| model.version.clone());
        let shares = self.current.as_ref().is_some_and(|current| {
            current.directory_generation == self.directory_generation
                && can_follow(&current.serving, target)
                && self.used_names.get(&version).is_none_or(|used| *used == id)
        });
        if !shares {
            self.directory_generation += 1;
            self.used_names.clear();
        }
        self.used_names.insert(version, id);
        self.current = Some(ServedVersion::new(target, self.directory_generation));
    }

    /// Whether what has no one to return to, or is the last good one itself, hangs.
    fn is_hanging(&self, facts: &RolloutFacts<'_>, wake_at: &mut Option<Instant>) -> bool {
        let (Some(current), InstanceState::Up(probes)) = (&self.current, facts.current) else {
            return false;
        };
        if self.last_good.is_some() && !self.is_good(current) {
            return false;
        }
        let patience = Duration::from_millis(current.serving.health.start_within_ms);
        let at = probes.last_healthy.unwrap_or(probes.since) + patience;
        if probes.consecutive_failures >= FAILURE_THRESHOLD && at > facts.now {
            wake(wake_at, at);
        }
        probes.consecutive_failures >= FAILURE_THRESHOLD && at <= facts.now
    }

    /// The versions that have to be in the directory of the current edition.
    pub fn watched_versions(&self) -> Vec<&ServedVersion> {
        let Some(current) = self.current.as_ref().filter(|current| current.watches()) else {
            return Vec::new();
        };
        let last_good = self.last_good.as_ref().filter(|good| {
            good.watches()
                && good.directory_generation == current.directory_generation
                && good.id() != current.id()
        });
        last_good.into_iter().chain([current]).collect()
    }

    /// Everything whose health is asked for.
    pub fn probed_versions(&self) -> impl Iterator<Item = &ServedVersion> {
        self.kept_versions().chain(&self.draining)
    }

    /// Everything whose model must not go.
    pub fn kept_versions(&self) -> impl Iterator<Item = &ServedVersion> {
        self.current.iter().chain(&self.last_good)
    }
}

/// Whether a server that runs the one takes the other while it runs.
pub fn can_follow(running: &ModelServer, next: &ModelServer) -> bool {
    let (Some(from), Some(to)) = (watched_model(running), watched_model(next)) else {
        return false;
    };
    let as_running = ModelServer {
        model: running.model.clone(),
        health: running.health.clone(),
        hold: running.hold,
        ..next.clone()
    };
    from.version != to.version && from.directory == to.directory && as_running == *running
}

const HEALTH_CHECK_FAILED: &str = "HealthCheckFailed";

fn wake(wake_at: &mut Option<Instant>, at: Instant) {
    *wake_at = Some(wake_at.map_or(at, |earlier| earlier.min(at)));
}
