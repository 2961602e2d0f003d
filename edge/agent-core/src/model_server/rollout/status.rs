//! Decides the report of a model server: which version answers, and the state of the switch to the
//! target.

use neptune_wire::{LoadFailure, ModelServerReport, TRANSFORMER_FAILED, Transition, WorkerReason};

use crate::{
    domain::{
        artifact::{DownloadState, ImageState},
        rollout::RolloutState,
        served_version::{ServedVersion, version},
    },
    model_server::rollout::{InstanceState, RolloutFacts},
};

/// Consecutive failures after which a server is reported as failed, not as in progress. Same as for
/// workers.
const FAILED_AFTER: u32 = 3;

/// Returns the report of a model server for the state and the facts. `target` is the ID of the
/// target version.
pub fn status(state: &RolloutState, target: &str, facts: &RolloutFacts<'_>) -> ModelServerReport {
    let (transition, message) = transition(state, target, facts);
    let progress = match &facts.download {
        DownloadState::Downloading { progress, .. } => Some(*progress),
        DownloadState::Ready | DownloadState::Stuck { .. } => None,
    };
    let missing = match (&facts.download, &facts.image) {
        (DownloadState::Stuck { problem, time }, _) | (_, ImageState::Stuck { problem, time }) => {
            Some(LoadFailure {
                version: version(facts.target).to_owned(),
                reason: format!("{:?}", problem.reason),
                message: problem.message.clone(),
                time: time.clone(),
            })
        }
        _ => None,
    };
    ModelServerReport {
        serving_version: serving(state, facts).map(|version| version.version().to_owned()),
        target_version: Some(version(facts.target).to_owned()),
        transition,
        message,
        last_good_version: state.last_good.as_ref().map(|good| good.version().to_owned()),
        last_failure: missing.or_else(|| state.last_failure.clone()),
        trouble: reported_problem(facts),
        progress,
    }
}

/// The problem that a person has to solve, or the time that the download waits for. Other download
/// problems are transient.
fn reported_problem(facts: &RolloutFacts<'_>) -> Option<WorkerReason> {
    if let Some(problem) = facts.values {
        return Some(problem.reason);
    }
    let DownloadState::Downloading { problem: Some(problem), .. } = &facts.download else {
        return None;
    };
    matches!(problem.reason, WorkerReason::DiskFull | WorkerReason::DownloadWindow)
        .then_some(problem.reason)
}

/// The version that answers now. A server that has the current and the last good version answers
/// requests without a version with the higher number, until the other one is removed and unloaded.
fn serving<'a>(state: &'a RolloutState, facts: &RolloutFacts<'_>) -> Option<&'a ServedVersion> {
    let is_healthy =
        |run: InstanceState<'_>| matches!(run, InstanceState::Up(probes) if probes.is_healthy());
    let current = state.current.as_ref().filter(|_| is_healthy(facts.current));
    let good = state.last_good.as_ref().filter(|_| is_healthy(facts.last_good));
    let is_higher = |good: &ServedVersion| {
        let numbers = good.number().zip(current.and_then(ServedVersion::number));
        state.watched_versions().len() > 1 && numbers.is_some_and(|(good, current)| good > current)
    };
    state.draining.as_ref().or(good.filter(|good| is_higher(good))).or(current).or(good)
}

fn transition(
    state: &RolloutState,
    target: &str,
    facts: &RolloutFacts<'_>,
) -> (Transition, String) {
    let wanted = version(facts.target);
    let current = state.current.as_ref();
    let running = current
        .map_or_else(String::new, |current| format!("; {} keeps running", current.version()));
    if let Some(why) = facts.refusal {
        return (Transition::InvalidSpec, format!("{why}{running}"));
    }
    if let Some(problem) = facts.values {
        return (Transition::InProgress, format!("{}{running}", problem.message));
    }
    if state.blocked.is_some() {
        return (Transition::BlockedByFailedLoad, blocked(state, wanted, facts));
    }
    match current.filter(|current| current.id() == target) {
        Some(current) if state.is_good(current) => match &state.draining {
            Some(draining) => {
                let (good, draining) = (current.version(), draining.version());
                let message =
                    format!("{good} passed its probation; {draining} answers until it is unloaded");
                (Transition::InProgress, message)
            }
            None => settled(current, facts),
        },
        Some(_) => (Transition::InProgress, on_trial(wanted, facts)),
        None => match (&facts.download, &facts.image) {
            (DownloadState::Stuck { problem, .. }, _) | (_, ImageState::Stuck { problem, .. }) => (
                Transition::BlockedByFailedLoad,
                format!("{wanted} cannot be downloaded: {}{running}", problem.message),
            ),
            (DownloadState::Downloading { problem: Some(problem), .. }, _) => {
                let why = &problem.message;
                (Transition::InProgress, format!("downloading {wanted}: {why}{running}"))
            }
            (DownloadState::Downloading { problem: None, .. }, _) => {
                (Transition::InProgress, format!("downloading {wanted}{running}"))
            }
            (DownloadState::Ready, ImageState::Pulling(problem)) => {
                let image = facts.awaited_image;
                let why = problem.as_ref().map_or_else(String::new, |p| format!(": {}", p.message));
                (Transition::InProgress, format!("pulling image {image}{why}{running}"))
            }
            (DownloadState::Ready, ImageState::Ready) if state.is_held(facts) => (
                Transition::InProgress,
                format!(
                    "{wanted} is on the node; the switch is held by annotation edge.kubeedge.io/hold-upgrade{running}"
                ),
            ),
            (DownloadState::Ready, ImageState::Ready) => {
                (Transition::InProgress, format!("starting {wanted}{running}"))
            }
        },
    }
}

fn settled(current: &ServedVersion, facts: &RolloutFacts<'_>) -> (Transition, String) {
    if matches!(facts.current, InstanceState::Up(probes) if probes.is_healthy()) {
        return (Transition::UpToDate, String::new());
    }
    let transition = if facts.failures >= FAILED_AFTER {
        Transition::BlockedByFailedLoad
    } else {
        Transition::InProgress
    };
    (
        transition,
        format!("{} was healthy and does not answer now: {}", current.version(), why(facts)),
    )
}

fn on_trial(wanted: &str, facts: &RolloutFacts<'_>) -> String {
    match facts.current {
        InstanceState::Up(probes) if probes.healthy_since.is_some() => {
            format!("{wanted} is healthy and on probation")
        }
        _ => format!("starting {wanted}: {}", why(facts)),
    }
}

fn blocked(state: &RolloutState, wanted: &str, facts: &RolloutFacts<'_>) -> String {
    let failure = state.last_failure.as_ref();
    let failed = failure.map_or_else(
        || format!("{wanted} failed"),
        |failure| format!("{wanted} failed ({}): {}", failure.reason, failure.message),
    );
    let Some(good) = &state.last_good else {
        return format!(
            "{failed}; retrying, since there is no version to return to; correct {wanted} or set another version"
        );
    };
    let good = good.version();
    if failure.is_some_and(|failure| failure.reason == TRANSFORMER_FAILED) && good == wanted {
        let now = match serving(state, facts) {
            Some(_) => String::new(),
            None => format!(", which does not answer yet: {}", why(facts)),
        };
        return format!(
            "{failed}; returned to the previous transformer{now}; correct spec.transformer"
        );
    }
    if serving(state, facts).is_some() {
        format!("{failed}; returned to {good}; correct {wanted} or set another version")
    } else {
        format!("{failed}; returned to {good}, which does not answer yet: {}", why(facts))
    }
}

/// Why the current version does not answer.
fn why(facts: &RolloutFacts<'_>) -> String {
    match facts.current {
        InstanceState::Absent(None) => "the container is starting".to_owned(),
        InstanceState::Absent(Some(what)) => what.to_owned(),
        InstanceState::Up(probes) if probes.last_failure.is_empty() => {
            "waiting for the first health check".to_owned()
        }
        InstanceState::Up(probes) => probes.last_failure.clone(),
        InstanceState::Down { reason, message } => format!("{message} ({reason})"),
    }
}
