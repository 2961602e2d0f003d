//! Decides which version of a model an object's server is to run, and how it fares. Fetching, running
//! and asking are left to others; what is remembered is stored by the caller before it is acted on.
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
//! The current and the last good version are always kept on the node. A target that comes in the middle
//! of any of this takes the place of the one before it.

mod status;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use neptune_wire::{DownloadProgress, LoadFailure, ModelServer, ModelServerReport};
use serde::{Deserialize, Serialize};

use crate::{
    checks::{BAD_IN_A_ROW, Checks},
    edition::{Edition, can_follow, id},
    track::Problem,
};

/// What is remembered of an object's server, also over restarts of the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// What is to run now.
    pub current: Option<Edition>,
    /// What is returned to.
    pub good: Option<Edition>,
    /// The target that failed.
    pub blocked: Option<String>,
    pub last_failure: Option<LoadFailure>,
    /// What was taken out of the server's directory and answers until it is unloaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<Edition>,
    /// The newest directory of versions, and which edition each version in it was.
    lineage: u64,
    used: BTreeMap<String, String>,
}

/// All that the decision depends on beside what is remembered.
pub struct Facts<'a> {
    pub target: &'a ModelServer,
    /// Why the target can be served on no node.
    pub refusal: Option<&'a str>,
    pub supply: Supply,
    pub image: ImageSupply,
    /// How [`Memory::current`] fares, and [`Memory::good`].
    pub current: Run<'a>,
    pub good: Run<'a>,
    /// The same of [`Memory::leaving`], of which no check is good once it is gone.
    pub leaving: Run<'a>,
    /// Endings in a row of what runs.
    pub failures: u32,
    pub now: Instant,
    /// The same as a text.
    pub wall: &'a str,
}

/// How the target's model comes to the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Supply {
    /// It is here, or none is needed.
    Ready,
    Coming {
        progress: DownloadProgress,
        trouble: Option<Problem>,
    },
    /// Somebody has to change something.
    Stuck {
        problem: Problem,
        time: String,
    },
}

/// How the image of the target's server comes to the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageSupply {
    /// It is here, or what runs uses it.
    Ready,
    Coming(Option<Problem>),
    /// The registry does not give it.
    Stuck {
        problem: Problem,
        time: String,
    },
}

/// How an edition's server fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run<'a> {
    /// It is not there; what is waited for, if anything is.
    Absent(Option<&'a str>),
    Up(&'a Checks),
    /// It ended, or cannot be started.
    Down {
        reason: &'a str,
        message: &'a str,
    },
}

/// What follows.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Decision {
    /// To be stored, and decided upon again, if it is another than before.
    pub memory: Memory,
    pub status: ModelServerReport,
    /// The container of what is current is there and has not answered for long.
    pub restart: bool,
    pub wake_at: Option<Instant>,
}

/// Decides.
pub fn decide(memory: &Memory, facts: &Facts<'_>) -> Decision {
    let mut next = memory.clone();
    let target = id(facts.target);
    // What failed may be tried again once something else was wanted.
    next.blocked = next.blocked.filter(|blocked| *blocked == target);
    let is_left = |checks: &Checks| checks.bad_in_a_row > 0;
    if !matches!(facts.leaving, Run::Up(checks) if !is_left(checks)) {
        next.leaving = None;
    }
    let mut wake_at = None;
    match next.verdict(facts, &mut wake_at) {
        Verdict::Open => {}
        Verdict::Passed => next.passed(),
        Verdict::Failed { reason, message } => next.failed(&target, reason, message, facts.wall),
    }
    if next.may_switch(&target, facts) {
        next.switch(facts.target);
    }
    let restart = next.current == memory.current && next.is_stuck(facts, &mut wake_at);
    let status = status::status(&next, &target, facts);
    Decision { memory: next, status, restart, wake_at }
}

enum Verdict {
    Open,
    Passed,
    Failed { reason: String, message: String },
}

impl Memory {
    fn is_good(&self, edition: &Edition) -> bool {
        self.good.as_ref().is_some_and(|good| good.id() == edition.id())
    }

    /// What the trial of the current edition has shown.
    fn verdict(&self, facts: &Facts<'_>, wake_at: &mut Option<Instant>) -> Verdict {
        let Some(current) = self.current.as_ref().filter(|current| !self.is_good(current)) else {
            return Verdict::Open;
        };
        let failed =
            |reason: &str, message: String| Verdict::Failed { reason: reason.to_owned(), message };
        let checks = match facts.current {
            Run::Absent(_) => return Verdict::Open,
            Run::Down { reason, message } => return failed(reason, message.to_owned()),
            Run::Up(checks) => checks,
        };
        let health = &current.serving.health;
        let probation = Duration::from_millis(health.probation_ms);
        let start_within = Duration::from_millis(health.start_within_ms);
        if let Some(since) = checks.well_since {
            if facts.now >= since + probation {
                return Verdict::Passed;
            }
            wake(wake_at, since + probation);
        }
        // Time for one hiccup.
        let (deadline, what) = if checks.last_well.is_none() {
            (checks.since + start_within, "was not well")
        } else {
            (checks.since + start_within + 3 * probation, "was not well for long enough")
        };
        if checks.last_well.is_some() && checks.bad_in_a_row >= BAD_IN_A_ROW {
            let message =
                format!("was well, and then {BAD_IN_A_ROW} checks failed: {}", checks.last_bad);
            return failed(HEALTH_CHECK_FAILED, message);
        }
        if facts.now >= deadline {
            let within = deadline.duration_since(checks.since).as_secs_f32();
            return failed(
                HEALTH_CHECK_FAILED,
                format!("{what} within {within} s: {}", checks.last_bad),
            );
        }
        wake(wake_at, deadline);
        Verdict::Open
    }

    fn passed(&mut self) {
        let id = self.current.as_ref().map(Edition::id);
        self.leaving = self.good.take().filter(|before| self.is_outranked_by(before));
        self.good.clone_from(&self.current);
        if self.blocked.as_deref() == id {
            self.blocked = None;
        }
    }

    fn failed(&mut self, target: &str, reason: String, message: String, wall: &str) {
        let Some(current) = &self.current else { return };
        let (id, version) = (current.id().to_owned(), current.version().to_owned());
        // Without anything to return to it goes on failing: that is one failure.
        if self.good.is_none() && self.blocked.as_ref() == Some(&id) {
            return;
        }
        if id == target {
            self.blocked = Some(id);
        }
        self.last_failure = Some(LoadFailure { version, reason, message, time: wall.to_owned() });
        if self.good.is_some() {
            let failed = std::mem::replace(&mut self.current, self.good.clone());
            self.leaving = failed.filter(|failed| self.is_outranked_by(failed));
        }
    }

    /// Whether the server answers with the other version as long as it has both, and can be asked for it.
    fn is_outranked_by(&self, other: &Edition) -> bool {
        self.current.as_ref().is_some_and(|current| {
            let numbers = other.number().zip(current.number());
            let is_shared =
                current.watches() && other.watches() && current.lineage == other.lineage;
            is_shared
                && other.is_told_apart()
                && numbers.is_some_and(|(other, current)| other > current)
        })
    }

    fn may_switch(&self, target: &str, facts: &Facts<'_>) -> bool {
        let is_another = self.current.as_ref().is_none_or(|current| current.id() != target);
        is_another
            && facts.refusal.is_none()
            && facts.supply == Supply::Ready
            && facts.image == ImageSupply::Ready
            && self.blocked.is_none()
            && !self.is_held(facts)
    }

    /// Whether the switch is held. With nothing that could go on there is nothing to hold on to.
    fn is_held(&self, facts: &Facts<'_>) -> bool {
        let goes_on = self.good.is_some() || matches!(facts.current, Run::Up(_));
        facts.target.hold && self.current.is_some() && goes_on
    }

    fn switch(&mut self, target: &ModelServer) {
        let id = id(target);
        self.leaving = None;
        if let Some(good) = self.good.as_ref().filter(|good| good.id() == id) {
            self.current = Some(good.clone());
            return;
        }
        let version = target.model.as_ref().map_or(String::new(), |model| model.version.clone());
        let shares = self.current.as_ref().is_some_and(|current| {
            current.lineage == self.lineage
                && can_follow(&current.serving, target)
                && self.used.get(&version).is_none_or(|used| *used == id)
        });
        if !shares {
            self.lineage += 1;
            self.used.clear();
        }
        self.used.insert(version, id);
        self.current = Some(Edition::new(target, self.lineage));
    }

    /// Whether what has no one to return to, or is the last good one itself, hangs.
    fn is_stuck(&self, facts: &Facts<'_>, wake_at: &mut Option<Instant>) -> bool {
        let (Some(current), Run::Up(checks)) = (&self.current, facts.current) else { return false };
        if self.good.is_some() && !self.is_good(current) {
            return false;
        }
        let patience = Duration::from_millis(current.serving.health.start_within_ms);
        let at = checks.last_well.unwrap_or(checks.since) + patience;
        if checks.bad_in_a_row >= BAD_IN_A_ROW && at > facts.now {
            wake(wake_at, at);
        }
        checks.bad_in_a_row >= BAD_IN_A_ROW && at <= facts.now
    }

    /// The versions that have to be in the directory of the current edition.
    pub fn versions(&self) -> Vec<&Edition> {
        let Some(current) = self.current.as_ref().filter(|current| current.watches()) else {
            return Vec::new();
        };
        let beside = self.good.as_ref().filter(|good| {
            good.watches() && good.lineage == current.lineage && good.id() != current.id()
        });
        beside.into_iter().chain([current]).collect()
    }

    /// Everything whose health is asked for.
    pub fn asked(&self) -> impl Iterator<Item = &Edition> {
        self.editions().chain(&self.leaving)
    }

    /// Everything whose model must not go.
    pub fn editions(&self) -> impl Iterator<Item = &Edition> {
        self.current.iter().chain(&self.good)
    }
}

const HEALTH_CHECK_FAILED: &str = "HealthCheckFailed";

fn wake(wake_at: &mut Option<Instant>, at: Instant) {
    *wake_at = Some(wake_at.map_or(at, |earlier| earlier.min(at)));
}
