//! Decides what is reported of a model server: which version answers, and the progress of the
//! rollout. Pure.

use neptune_wire::{LoadFailure, ModelServerReport, Transition, WorkerReason};

use crate::{
    domain::{
        artifact::{DownloadState, ImageState},
        rollout::RolloutState,
        served_version::{ServedVersion, version},
    },
    model_server::rollout::{InstanceState, RolloutFacts},
};

/// A server that ended so often in a row counts as failed, not as on its way. As workers.
const FAILED_AFTER: u32 = 3;

/// What is to be said.
pub fn status(state: &RolloutState, target: &str, facts: &RolloutFacts<'_>) -> ModelServerReport {
    let (transition, message) = transition(state, target, facts);
    let progress = match &facts.download {
        DownloadState::InProgress { progress, .. } => Some(*progress),
        DownloadState::Ready | DownloadState::Failed { .. } => None,
    };
    let unavailable = match (&facts.download, &facts.image) {
        (DownloadState::Failed { problem, time }, _)
        | (_, ImageState::Failed { problem, time }) => Some(LoadFailure {
            version: version(facts.target).to_owned(),
            reason: format!("{:?}", problem.reason),
            message: problem.message.clone(),
            time: time.clone(),
        }),
        _ => None,
    };
    ModelServerReport {
        serving_version: serving(state, facts).map(|version| version.version().to_owned()),
        target_version: Some(version(facts.target).to_owned()),
        transition,
        message,
        last_good_version: state.last_good.as_ref().map(|good| good.version().to_owned()),
        last_failure: unavailable.or_else(|| state.last_failure.clone()),
        trouble: trouble(facts),
        progress,
    }
}

/// A full disk stays full until somebody looks; a server that is away for a moment does not.
fn trouble(facts: &RolloutFacts<'_>) -> Option<WorkerReason> {
    let DownloadState::InProgress { problem: Some(problem), .. } = &facts.download else {
        return None;
    };
    (problem.reason == WorkerReason::DiskFull).then_some(problem.reason)
}

/// What answers now. A server that has the current and the last good version answers with the
/// higher number what names no version, until the other is taken away, and unloaded.
fn serving<'a>(state: &'a RolloutState, facts: &RolloutFacts<'_>) -> Option<&'a ServedVersion> {
    let is_well =
        |run: InstanceState<'_>| matches!(run, InstanceState::Up(probes) if probes.is_healthy());
    let current = state.current.as_ref().filter(|_| is_well(facts.current));
    let good = state.last_good.as_ref().filter(|_| is_well(facts.last_good));
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
    let suffix =
        current.map_or_else(String::new, |current| format!("; {} goes on", current.version()));
    if let Some(why) = facts.refusal {
        return (Transition::InvalidSpec, format!("{why}{suffix}"));
    }
    if state.blocked.as_deref() == Some(target) {
        return (Transition::BlockedByFailedLoad, blocked(state, wanted, facts));
    }
    match current.filter(|current| current.id() == target) {
        Some(current) if state.is_good(current) => match &state.draining {
            Some(draining) => {
                let (good, draining) = (current.version(), draining.version());
                let message = format!("{good} is good; {draining} answers until it is unloaded");
                (Transition::InProgress, message)
            }
            None => settled(current, facts),
        },
        Some(_) => (Transition::InProgress, on_trial(wanted, facts)),
        None => match (&facts.download, &facts.image) {
            (DownloadState::Failed { problem, .. }, _)
            | (_, ImageState::Failed { problem, .. }) => (
                Transition::BlockedByFailedLoad,
                format!("{wanted} cannot be fetched: {}{suffix}", problem.message),
            ),
            (DownloadState::InProgress { problem: Some(problem), .. }, _) => {
                let why = &problem.message;
                (Transition::InProgress, format!("{wanted} is being fetched: {why}{suffix}"))
            }
            (DownloadState::InProgress { problem: None, .. }, _) => {
                (Transition::InProgress, format!("{wanted} is being fetched{suffix}"))
            }
            (DownloadState::Ready, ImageState::Pulling(problem)) => {
                let image = &facts.target.image;
                let why = problem.as_ref().map_or_else(String::new, |p| format!(": {}", p.message));
                (Transition::InProgress, format!("image {image} is being fetched{why}{suffix}"))
            }
            (DownloadState::Ready, ImageState::Ready) if state.is_held(facts) => (
                Transition::InProgress,
                format!(
                    "{wanted} is on the node and held by edge.kubeedge.io/hold-upgrade{suffix}"
                ),
            ),
            (DownloadState::Ready, ImageState::Ready) => {
                (Transition::InProgress, format!("{wanted} is about to be started{suffix}"))
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
    (transition, format!("{} was good, and does not answer now: {}", current.version(), why(facts)))
}

fn on_trial(wanted: &str, facts: &RolloutFacts<'_>) -> String {
    match facts.current {
        InstanceState::Up(probes) if probes.healthy_since.is_some() => {
            format!("{wanted} answers, and is on probation")
        }
        _ => format!("{wanted} is being started: {}", why(facts)),
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
            "{failed}; there is no version to return to, and it is tried again: correct it, or want another"
        );
    };
    let good = good.version();
    if serving(state, facts).is_some() {
        format!("{failed}; returned to {good}: correct {wanted}, or want another version")
    } else {
        format!("{failed}; returned to {good}, which does not answer yet: {}", why(facts))
    }
}

/// Why what is current does not answer.
fn why(facts: &RolloutFacts<'_>) -> String {
    match facts.current {
        InstanceState::Absent(None) => "its container is being started".to_owned(),
        InstanceState::Absent(Some(what)) => what.to_owned(),
        InstanceState::Up(probes) if probes.last_failure.is_empty() => {
            "its health is being asked for".to_owned()
        }
        InstanceState::Up(probes) => probes.last_failure.clone(),
        InstanceState::Down { reason, message } => format!("{message} ({reason})"),
    }
}
