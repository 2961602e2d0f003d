//! Decides what is said of a model server: which version answers, and where the switch to the wanted
//! one is.

use neptune_wire::{LoadFailure, ModelServerReport, Transition, WorkerReason};

use super::{Facts, ImageSupply, Memory, Run, Supply};
use crate::edition::{Edition, version};

/// A server that ended so often in a row counts as failed, not as on its way. As workers.
const FAILED_AFTER: u32 = 3;

/// What is to be said.
pub fn status(memory: &Memory, target: &str, facts: &Facts<'_>) -> ModelServerReport {
    let (transition, message) = transition(memory, target, facts);
    let progress = match &facts.supply {
        Supply::Coming { progress, .. } => Some(*progress),
        Supply::Ready | Supply::Stuck { .. } => None,
    };
    let not_had = match (&facts.supply, &facts.image) {
        (Supply::Stuck { problem, time }, _) | (_, ImageSupply::Stuck { problem, time }) => {
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
        serving_version: serving(memory, facts).map(|edition| edition.version().to_owned()),
        target_version: Some(version(facts.target).to_owned()),
        transition,
        message,
        last_good_version: memory.good.as_ref().map(|good| good.version().to_owned()),
        last_failure: not_had.or_else(|| memory.last_failure.clone()),
        trouble: trouble(facts),
        progress,
    }
}

/// A full disk stays full until somebody looks; a server that is away for a moment does not.
fn trouble(facts: &Facts<'_>) -> Option<WorkerReason> {
    let Supply::Coming { trouble: Some(problem), .. } = &facts.supply else { return None };
    (problem.reason == WorkerReason::DiskFull).then_some(problem.reason)
}

/// What answers now. A server that has the current and the last good version answers with the higher
/// number what names no version, until the other is taken away, and unloaded.
fn serving<'a>(memory: &'a Memory, facts: &Facts<'_>) -> Option<&'a Edition> {
    let is_well = |run: Run<'_>| matches!(run, Run::Up(checks) if checks.is_well());
    let current = memory.current.as_ref().filter(|_| is_well(facts.current));
    let good = memory.good.as_ref().filter(|_| is_well(facts.good));
    let is_higher = |good: &Edition| {
        let numbers = good.number().zip(current.and_then(Edition::number));
        memory.versions().len() > 1 && numbers.is_some_and(|(good, current)| good > current)
    };
    memory.leaving.as_ref().or(good.filter(|good| is_higher(good))).or(current).or(good)
}

fn transition(memory: &Memory, target: &str, facts: &Facts<'_>) -> (Transition, String) {
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
        Some(current) if memory.is_good(current) => match &memory.leaving {
            Some(leaving) => {
                let (good, leaving) = (current.version(), leaving.version());
                let message = format!("{good} is good; {leaving} answers until it is unloaded");
                (Transition::InProgress, message)
            }
            None => settled(current, facts),
        },
        Some(_) => (Transition::InProgress, on_trial(wanted, facts)),
        None => match (&facts.supply, &facts.image) {
            (Supply::Stuck { problem, .. }, _) | (_, ImageSupply::Stuck { problem, .. }) => (
                Transition::BlockedByFailedLoad,
                format!("{wanted} cannot be fetched: {}{beside}", problem.message),
            ),
            (Supply::Coming { trouble: Some(trouble), .. }, _) => {
                let why = &trouble.message;
                (Transition::InProgress, format!("{wanted} is being fetched: {why}{beside}"))
            }
            (Supply::Coming { trouble: None, .. }, _) => {
                (Transition::InProgress, format!("{wanted} is being fetched{beside}"))
            }
            (Supply::Ready, ImageSupply::Coming(trouble)) => {
                let image = &facts.target.image;
                let why = trouble.as_ref().map_or_else(String::new, |p| format!(": {}", p.message));
                (Transition::InProgress, format!("image {image} is being fetched{why}{beside}"))
            }
            (Supply::Ready, ImageSupply::Ready) if memory.is_held(facts) => (
                Transition::InProgress,
                format!(
                    "{wanted} is on the node and held by edge.kubeedge.io/hold-upgrade{beside}"
                ),
            ),
            (Supply::Ready, ImageSupply::Ready) => {
                (Transition::InProgress, format!("{wanted} is about to be started{beside}"))
            }
        },
    }
}

fn settled(current: &Edition, facts: &Facts<'_>) -> (Transition, String) {
    if matches!(facts.current, Run::Up(checks) if checks.is_well()) {
        return (Transition::UpToDate, String::new());
    }
    let transition = if facts.failures >= FAILED_AFTER {
        Transition::BlockedByFailedLoad
    } else {
        Transition::InProgress
    };
    (transition, format!("{} was good, and does not answer now: {}", current.version(), why(facts)))
}

fn on_trial(wanted: &str, facts: &Facts<'_>) -> String {
    match facts.current {
        Run::Up(checks) if checks.well_since.is_some() => {
            format!("{wanted} answers, and is on probation")
        }
        _ => format!("{wanted} is being started: {}", why(facts)),
    }
}

fn blocked(memory: &Memory, wanted: &str, facts: &Facts<'_>) -> String {
    let failure = memory.last_failure.as_ref();
    let failed = failure.map_or_else(
        || format!("{wanted} failed"),
        |failure| format!("{wanted} failed ({}): {}", failure.reason, failure.message),
    );
    let Some(good) = &memory.good else {
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
fn why(facts: &Facts<'_>) -> String {
    match facts.current {
        Run::Absent(None) => "its container is being started".to_owned(),
        Run::Absent(Some(what)) => what.to_owned(),
        Run::Up(checks) if checks.last_bad.is_empty() => "its health is being asked for".to_owned(),
        Run::Up(checks) => checks.last_bad.clone(),
        Run::Down { reason, message } => format!("{message} ({reason})"),
    }
}
