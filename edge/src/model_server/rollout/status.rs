//! Decides what is said of a model server: which version answers, and where the switch to the wanted
//! one is.

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
pub fn status(memory: &RolloutState, target: &str, facts: &RolloutFacts<'_>) -> ModelServerReport {
    let (transition, message) = transition(memory, target, facts);
    let progress = match &facts.download {
        DownloadState::Coming { progress, .. } => Some(*progress),
        DownloadState::Ready | DownloadState::Stuck { .. } => None,
    };
    let not_had = match (&facts.download, &facts.image) {
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
        serving_version: serving(memory, facts).map(|version| version.version().to_owned()),
        target_version: Some(version(facts.target).to_owned()),
        transition,
        message,
        last_good_version: memory.last_good.as_ref().map(|good| good.version().to_owned()),
        last_failure: not_had.or_else(|| memory.last_failure.clone()),
        trouble: trouble(facts),
        progress,
    }
}

/// A full disk stays full until somebody looks; a server that is away for a moment does not.
fn trouble(facts: &RolloutFacts<'_>) -> Option<WorkerReason> {
    let DownloadState::Coming { trouble: Some(problem), .. } = &facts.download else { return None };
    (problem.reason == WorkerReason::DiskFull).then_some(problem.reason)
}

/// What answers now. A server that has the current and the last good version answers with the higher
/// number what names no version, until the other is taken away, and unloaded.
fn serving<'a>(memory: &'a RolloutState, facts: &RolloutFacts<'_>) -> Option<&'a ServedVersion> {
    let is_well =
        |run: InstanceState<'_>| matches!(run, InstanceState::Up(probes) if probes.is_healthy());
    let current = memory.current.as_ref().filter(|_| is_well(facts.current));
    let good = memory.last_good.as_ref().filter(|_| is_well(facts.last_good));
    let is_higher = |good: &ServedVersion| {
        let numbers = good.number().zip(current.and_then(ServedVersion::number));
        memory.watched_versions().len() > 1 && numbers.is_some_and(|(good, current)| good > current)
    };
    memory.draining.as_ref().or(good.filter(|good| is_higher(good))).or(current).or(good)
}

fn transition(
    memory: &RolloutState,
    target: &str,
    facts: &RolloutFacts<'_>,
) -> (Transition, String) {
    let wanted = version(facts.target);
    let current = memory.current.as_ref();
    let beside =
        current.map_or_else(String::new, |current| format!("; {} goes on", current.version()));
    if let Some(why) = facts.refusal {
        return (Transition::InvalidSpec, format!("{why}{beside}"));
    }
    if memory.blocked.as_deref() == Some(target) {
        return (Transition::BlockedByFailedLoad, blocked(memory, wanted, facts));
    }
    match current.filter(|current| current.id() == target) {
        Some(current) if memory.is_good(current) => match &memory.draining {
            Some(draining) => {
                let (good, draining) = (current.version(), draining.version());
                let message = format!("{good} is good; {draining} answers until it is unloaded");
                (Transition::InProgress, message)
            }
            None => settled(current, facts),
        },
        Some(_) => (Transition::InProgress, on_trial(wanted, facts)),
        None => match (&facts.download, &facts.image) {
            (DownloadState::Stuck { problem, .. }, _) | (_, ImageState::Stuck { problem, .. }) => (
                Transition::BlockedByFailedLoad,
                format!("{wanted} cannot be fetched: {}{beside}", problem.message),
            ),
            (DownloadState::Coming { trouble: Some(trouble), .. }, _) => {
                let why = &trouble.message;
                (Transition::InProgress, format!("{wanted} is being fetched: {why}{beside}"))
            }
            (DownloadState::Coming { trouble: None, .. }, _) => {
                (Transition::InProgress, format!("{wanted} is being fetched{beside}"))
            }
            (DownloadState::Ready, ImageState::Coming(trouble)) => {
                let image = &facts.target.image;
                let why = trouble.as_ref().map_or_else(String::new, |p| format!(": {}", p.message));
                (Transition::InProgress, format!("image {image} is being fetched{why}{beside}"))
            }
            (DownloadState::Ready, ImageState::Ready) if memory.is_held(facts) => (
                Transition::InProgress,
                format!(
                    "{wanted} is on the node and held by edge.kubeedge.io/hold-upgrade{beside}"
                ),
            ),
            (DownloadState::Ready, ImageState::Ready) => {
                (Transition::InProgress, format!("{wanted} is about to be started{beside}"))
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

fn blocked(memory: &RolloutState, wanted: &str, facts: &RolloutFacts<'_>) -> String {
    let failure = memory.last_failure.as_ref();
    let failed = failure.map_or_else(
        || format!("{wanted} failed"),
        |failure| format!("{wanted} failed ({}): {}", failure.reason, failure.message),
    );
    let Some(good) = &memory.last_good else {
        return format!(
            "{failed}; there is no version to return to, and it is tried again: correct it, or want another"
        );
    };
    let good = good.version();
    if serving(memory, facts).is_some() {
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
