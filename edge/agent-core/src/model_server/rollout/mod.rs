//! Decides which version of a model an object's server must run, and its report. The caller stores
//! the new state before it acts on it.
//!
//! | target | current | facts | then |
//! |---|---|---|---|
//! | any | none, or another | target and image on the node, neither failed nor held | current becomes the target: its trial begins |
//! | any | on trial | healthy for the probation | it becomes the last good version |
//! | any | on trial | not healthy in time, unhealthy again, exited, refused | it failed; current becomes the last good version |
//! | any | on trial | as before, without a last good version | it failed, and is retried indefinitely |
//! | failed | last good | | `BlockedByFailedLoad` until the target changes |
//! | other | any | model or image not on the node yet, or held | current keeps running |
//!
//! Values of Secrets and `ConfigMap`s are no part of a version: the versions that have the ID of the
//! target take over its values, without a trial, once they can be read. A target that failed is tried
//! again with others.
//!
//! The current and the last good version are always kept on the node. A new target replaces the
//! previous one in any state.

use crate::{
    domain::{
        artifact::{DownloadState, ImageState},
        problem::Problem,
        rollout::RolloutState,
        served_version::{
            ServedVersion, id, server_id, server_port, trial_id, watched_model, with_values_of,
        },
        server_part::{ServerPart, Slot},
    },
    model_server::probe::{FAILURE_THRESHOLD, ProbeHistory},
};

mod status;

use std::time::{Duration, Instant};

use neptune_wire::{ArtifactAddress, LoadFailure, ModelServer, ModelServerReport};

/// A version without another one to return to is restarted after so many times
/// `startWithinSeconds`, if it was never healthy.
const FIRST_START: u32 = 3;

/// The facts of the decision beside the stored state.
pub struct RolloutFacts<'a> {
    pub target: &'a ModelServer,
    /// Why the target cannot be served on any node.
    pub refusal: Option<&'a str>,
    pub download: DownloadState,
    /// The image of the target that is not on the node yet, if there is one.
    pub awaited_image: &'a str,
    pub image: ImageState,
    /// Why the values of the target's Secrets cannot be read.
    pub values: Option<&'a Problem>,
    /// The state of the instance that runs [`RolloutState::current`].
    pub current: InstanceState<'a>,
    /// The state of the instance that runs [`RolloutState::last_good`].
    pub last_good: InstanceState<'a>,
    /// The instance of [`RolloutState::draining`]. Its probes fail once it is unloaded.
    pub draining: InstanceState<'a>,
    /// Consecutive failures of the container.
    pub failures: u32,
    pub now: Instant,
    /// `now` as RFC 3339 text.
    pub wall: &'a str,
}

/// The state of the server of one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceState<'a> {
    /// It does not run; with what it waits for, if known.
    Absent(Option<&'a str>),
    Up(&'a ProbeHistory),
    /// It exited, or cannot be started.
    Down {
        reason: &'a str,
        message: &'a str,
    },
}

/// The next state of a rollout, and what the agent does now.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct RolloutDecision {
    /// The next state. If it differs from the previous one, the caller stores it and decides again.
    pub state: RolloutState,
    pub report: ModelServerReport,
    /// Which container to restart because its probes have failed for too long.
    pub restart: Option<ServerPart>,
    /// Time at which to decide again without another event.
    pub next_at: Option<Instant>,
}

impl RolloutDecision {
    /// Applies this to the texts that may quote what a container wrote.
    pub fn mask(&mut self, mask: impl Fn(String) -> String) {
        let failures = [&mut self.state.last_failure, &mut self.report.last_failure];
        let failures = failures.into_iter().flatten().map(|failure| &mut failure.message);
        for text in failures.chain([&mut self.report.message]) {
            *text = mask(std::mem::take(text));
        }
    }
}

/// Decides the next state, the report and which container to restart.
pub fn decide(state: &RolloutState, facts: &RolloutFacts<'_>) -> RolloutDecision {
    let mut next = state.clone();
    let target = id(facts.target);
    let trial = trial_id(facts.target);
    if facts.values.is_none() {
        next.take_values(facts.target, &target);
    }
    // A failed target may be tried again after another target was wanted.
    next.blocked = next.blocked.filter(|blocked| *blocked == trial);
    let is_unloaded = |probes: &ProbeHistory| probes.consecutive_failures > 0;
    if !matches!(facts.draining, InstanceState::Up(probes) if !is_unloaded(probes)) {
        next.draining = None;
    }
    let mut next_at = None;
    match next.trial_result(facts, &mut next_at) {
        TrialResult::Pending => {}
        TrialResult::Passed => next.pass_trial(),
        TrialResult::Failed { reason, message } => {
            next.fail_trial(&trial, reason, message, facts.wall);
        }
    }
    if next.may_switch(&target, facts) {
        next.start_trial(facts.target);
    }
    let is_same = next.current == state.current;
    let restart = if is_same { next.stuck(facts, &mut next_at) } else { None };
    let report = status::status(&next, &target, facts);
    RolloutDecision { state: next, report, restart, next_at }
}

enum TrialResult {
    Pending,
    Passed,
    Failed { reason: String, message: String },
}

impl RolloutState {
    /// Gives the values of a target with this ID to the versions that it is.
    fn take_values(&mut self, target: &ModelServer, id: &str) {
        let versions = [&mut self.current, &mut self.last_good, &mut self.draining];
        for version in versions.into_iter().flatten().filter(|version| version.id() == id) {
            version.take_values(&target.program);
        }
    }

    fn is_good(&self, version: &ServedVersion) -> bool {
        self.last_good.as_ref().is_some_and(|good| good.id() == version.id())
    }

    /// The result of the current version's trial so far.
    fn trial_result(&self, facts: &RolloutFacts<'_>, next_at: &mut Option<Instant>) -> TrialResult {
        let Some(current) = self.current.as_ref().filter(|current| !self.is_good(current)) else {
            return TrialResult::Pending;
        };
        let failed = |reason: &str, message: String| TrialResult::Failed {
            reason: reason.to_owned(),
            message,
        };
        let probes = match facts.current {
            InstanceState::Absent(_) => return TrialResult::Pending,
            InstanceState::Down { reason, message } => return failed(reason, message.to_owned()),
            InstanceState::Up(probes) => probes,
        };
        let health = &current.serving.health;
        let probation = Duration::from_millis(health.probation_ms);
        let start_within = Duration::from_millis(health.start_within_ms);
        if let Some(since) = probes.healthy_since {
            if facts.now >= since + probation {
                return TrialResult::Passed;
            }
            set_earliest(next_at, since + probation);
        }
        // Allows for one interruption of the probation.
        let (deadline, what) = if probes.last_healthy.is_none() {
            (probes.since + start_within, "was not healthy")
        } else {
            (probes.since + start_within + 3 * probation, "did not pass its probation")
        };
        if probes.last_healthy.is_some() && probes.consecutive_failures >= FAILURE_THRESHOLD {
            let message = format!(
                "was healthy, then {FAILURE_THRESHOLD} consecutive health checks failed: {}",
                probes.last_failure
            );
            return failed(probes.failure_reason(), message);
        }
        if facts.now >= deadline {
            let within = deadline.duration_since(probes.since).as_secs_f32();
            let hint = if probes.last_healthy.is_none() { start_hint(current, probes) } else { "" };
            return failed(
                probes.failure_reason(),
                format!("{what} within {within} s: {}{hint}", probes.last_failure),
            );
        }
        set_earliest(next_at, deadline);
        TrialResult::Pending
    }

    /// Marks the current version, which passed its trial, as the last good one.
    pub fn pass_trial(&mut self) {
        let trial = self.current.as_ref().map(|current| trial_id(&current.serving));
        self.draining = self.last_good.take().filter(|before| self.is_outranked_by(before));
        self.last_good.clone_from(&self.current);
        if self.blocked == trial {
            self.blocked = None;
        }
    }

    /// Records that the current version failed its trial. The last good version, if any, becomes
    /// current. `target`: the [`trial_id`] of the target.
    pub fn fail_trial(&mut self, target: &str, reason: String, message: String, wall: &str) {
        let Some(current) = &self.current else { return };
        let (trial, version) = (trial_id(&current.serving), current.version().to_owned());
        // Without a version to return to, it fails repeatedly: record that as one failure.
        if self.last_good.is_none() && self.blocked.as_ref() == Some(&trial) {
            return;
        }
        if trial == target {
            self.blocked = Some(trial);
        }
        self.last_failure = Some(LoadFailure { version, reason, message, time: wall.to_owned() });
        if self.last_good.is_some() {
            let failed = std::mem::replace(&mut self.current, self.last_good.clone());
            self.draining = failed.filter(|failed| self.is_outranked_by(failed));
        }
    }

    /// Whether the server answers with the other version while it has both, and probes can tell
    /// them apart.
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
            && facts.values.is_none()
            && self.blocked.is_none()
            && !self.is_held(facts)
    }

    /// Whether the annotation keeps the present version although another one is wanted. That needs
    /// a version that can keep running.
    fn is_held(&self, facts: &RolloutFacts<'_>) -> bool {
        let can_keep_running =
            self.last_good.is_some() || matches!(facts.current, InstanceState::Up(_));
        facts.target.hold && self.current.is_some() && can_keep_running
    }

    /// Makes the target current and starts its trial.
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
                && self.used_names.get(&version).is_none_or(|used| *used == server_id(target))
        });
        if !shares {
            self.directory_generation += 1;
            self.used_names.clear();
        }
        self.used_names.insert(version, server_id(target));
        let slot = self.slot_for(target);
        self.current = Some(ServedVersion::new(target, self.directory_generation).in_slot(slot));
    }

    /// The place of the target's transformer. Another transformer behind the same proxy starts
    /// beside the last good one.
    fn slot_for(&self, target: &ModelServer) -> Slot {
        let next = target.transformer.as_deref();
        let good = self.last_good.as_ref();
        let good = good.and_then(|good| Some((good.slot, good.serving.transformer.as_deref()?)));
        match (good, next) {
            (Some((slot, good)), Some(next)) if good == next => slot,
            (Some((slot, good)), Some(next))
                if next.proxy.is_some() && good.proxy == next.proxy =>
            {
                slot.other()
            }
            _ => Slot::First,
        }
    }

    /// The part of the current version that hangs, if no other version can replace it.
    fn stuck(&self, facts: &RolloutFacts<'_>, next_at: &mut Option<Instant>) -> Option<ServerPart> {
        let (Some(current), InstanceState::Up(probes)) = (&self.current, facts.current) else {
            return None;
        };
        if self.last_good.is_some() && !self.is_good(current) {
            return None;
        }
        let timeout = Duration::from_millis(current.serving.health.start_within_ms);
        let at = match probes.last_healthy {
            Some(healthy) => healthy + timeout,
            // No other version waits: one that starts slowly passes its trial late.
            None if self.last_good.is_none() => probes.since + FIRST_START * timeout,
            None => probes.since + timeout,
        };
        if probes.consecutive_failures >= FAILURE_THRESHOLD && at > facts.now {
            set_earliest(next_at, at);
        }
        let is_stuck = probes.consecutive_failures >= FAILURE_THRESHOLD && at <= facts.now;
        is_stuck.then_some(probes.failed_part)
    }

    /// The versions that must be in the current version's directory; empty if it watches none.
    pub fn watched_versions(&self) -> Vec<&ServedVersion> {
        let Some(current) = self.current.as_ref().filter(|current| current.watches()) else {
            return Vec::new();
        };
        let other = self.last_good.as_ref().filter(|good| {
            good.watches()
                && good.directory_generation == current.directory_generation
                && good.version() != current.version()
        });
        other.into_iter().chain([current]).collect()
    }

    /// The versions whose health is probed.
    pub fn probed_versions(&self) -> impl Iterator<Item = &ServedVersion> {
        self.kept_versions().chain(&self.draining)
    }

    /// The versions whose models must stay on the node.
    pub fn kept_versions(&self) -> impl Iterator<Item = &ServedVersion> {
        self.current.iter().chain(&self.last_good)
    }
}

/// What to look for if a version does not become healthy: its server may not find the model in its
/// directory, or it starts slowly.
fn start_hint(current: &ServedVersion, probes: &ProbeHistory) -> &'static str {
    let address = current.serving.model.as_ref().and_then(|model| model.url.parse().ok());
    let is_archive = address.is_some_and(|address: ArtifactAddress| address.is_archive());
    if is_archive && probes.failed_part == ServerPart::Server {
        "; the model's files must be at the top of the archive, not in a directory (tar -C MODEL -cf m.tar .)"
    } else {
        "; raise health.startWithinSeconds if it needs longer"
    }
}

/// Whether a server that runs `running` can switch to `next` without a restart: to another version,
/// or to another transformer before the same version.
pub fn can_follow(running: &ModelServer, next: &ModelServer) -> bool {
    let (Some(from), Some(to)) = (watched_model(running), watched_model(next)) else {
        return false;
    };
    let as_running = ModelServer {
        model: running.model.clone(),
        health: running.health.clone(),
        hold: running.hold,
        restarted_at: running.restarted_at.clone(),
        transformer: running.transformer.clone(),
        program: with_values_of(&next.program, &running.program),
        ..next.clone()
    };
    let is_transformer_changed = running.transformer != next.transformer;
    let is_loadable = from.version != to.version || (from == to && is_transformer_changed);
    is_loadable
        && from.directory == to.directory
        && server_port(running) == server_port(next)
        && as_running == *running
}

fn set_earliest(next_at: &mut Option<Instant>, at: Instant) {
    *next_at = Some(next_at.map_or(at, |earlier| earlier.min(at)));
}
