//! The Kubernetes Events of a status change: runs, published weights, and new problems.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use neptune_api::{TrainingModelStatus, TrainingWorkerState, TrainingWorkerStatus};

use neptune_wire::{aggregator::InitialWeights, redact};

use super::{conditions::DEGRADED, frozen::CurrentRun, observation::has_result};
use crate::{reason::Reason, steps::ObjectEvent};

/// The most Events about workers of one change.
const MAX_WORKERS: usize = 8;

/// The Events when `previous` becomes `next`.
pub fn events(previous: &TrainingModelStatus, next: &TrainingModelStatus) -> Vec<ObjectEvent> {
    let mut events = Vec::new();
    if previous.run != next.run {
        events.push(started(previous, next));
    }
    events.extend(key_changed(previous, next));
    let is_published = |status: &TrainingModelStatus| {
        let output = status.output.as_ref().filter(|output| output.published)?;
        Some((output.model.clone(), output.sha256sum.clone()?))
    };
    if let Some((model, sha256)) = is_published(next)
        && is_published(previous) != is_published(next)
    {
        let note = format!("Model {model} has the weights {sha256}");
        events.push(ObjectEvent::normal("ModelPublished", note));
    }
    if let Some(last) = next
        .last_run
        .as_ref()
        .filter(|last| previous.last_run.as_ref().is_none_or(|before| before.run != last.run))
    {
        let note = last.message.clone().unwrap_or_default();
        events.push(if last.result == Reason::Succeeded.to_string() {
            ObjectEvent::normal("RunSucceeded", note)
        } else if has_result(last) {
            ObjectEvent::normal(&last.result, note)
        } else {
            ObjectEvent::warning(&last.result, note)
        });
    }
    let workers = next.workers.iter().filter(|row| is_new(row, &previous.workers));
    events.extend(workers.take(MAX_WORKERS).filter_map(|row| {
        let note = format!(
            "round {}: worker {:?} on node {}: {}",
            row.round,
            row.name,
            row.node,
            row.message.as_deref().unwrap_or_default()
        );
        Some(ObjectEvent::warning(row.reason.as_deref()?, note))
    }));
    let (before, after) = (degraded(previous), degraded(next));
    let is_reported = events.iter().any(|event| Some(&event.reason) == after.map(|it| &it.reason));
    if let Some(after) = after
        && before.map(|it| &it.reason) != Some(&after.reason)
        && !is_reported
    {
        events.push(ObjectEvent::warning(&after.reason, &*after.message));
    }
    events
}

/// The Event if the aggregator at the same place has another key.
fn key_changed(previous: &TrainingModelStatus, next: &TrainingModelStatus) -> Option<ObjectEvent> {
    let (previous, next) = previous.aggregator.as_ref().zip(next.aggregator.as_ref())?;
    let (before, after) = previous.pin.as_ref().zip(next.pin.as_ref())?;
    (previous.node == next.node && before != after).then(|| {
        let note = format!(
            "the aggregator has the key {after} and had {before}: its volume was lost or replaced; the nodes get the new key"
        );
        ObjectEvent::warning("AggregatorKeyChanged", note)
    })
}

fn started(previous: &TrainingModelStatus, next: &TrainingModelStatus) -> ObjectEvent {
    let run = next.run.unwrap_or_default();
    let was_active = previous.run.is_some()
        && previous.last_run.as_ref().is_none_or(|last| Some(last.run) != previous.run);
    if was_active {
        let note = format!(
            "the aggregator lost the files of run {}; run {run} begins with {}",
            previous.run.unwrap_or_default(),
            repeated_with(previous, next)
        );
        return ObjectEvent::warning(&Reason::RoundRepeated.to_string(), note);
    }
    ObjectEvent::normal(
        "RunStarted",
        format!("run {run} of {} rounds", next.rounds.unwrap_or_default()),
    )
}

/// The weights that a repeated run begins with.
fn repeated_with(previous: &TrainingModelStatus, next: &TrainingModelStatus) -> String {
    let initial = |status| CurrentRun::from_status(status)?.frozen.settings.initial;
    let (first, now): (Option<InitialWeights>, _) = (initial(previous), initial(next));
    match now {
        Some(now) if first.is_none_or(|first| first.sha256 != now.sha256) => format!(
            "the weights of round {}, from {}",
            previous.round.unwrap_or(1).saturating_sub(1),
            now.url.as_deref().map(redact).unwrap_or_default()
        ),
        _ => "the first weights".to_owned(),
    }
}

/// Whether an update was refused, or a worker failed, in this change.
fn is_new(row: &TrainingWorkerStatus, before: &[TrainingWorkerStatus]) -> bool {
    let is_over = matches!(row.state, TrainingWorkerState::Refused | TrainingWorkerState::Failed);
    let same = |held: &&TrainingWorkerStatus| held.name == row.name;
    is_over
        && before
            .iter()
            .find(same)
            .is_none_or(|held| (held.round, &held.reason) != (row.round, &row.reason))
}

/// The condition, if it is True.
fn degraded(status: &TrainingModelStatus) -> Option<&Condition> {
    let condition = status.conditions.iter().find(|condition| condition.type_ == DEGRADED);
    condition.filter(|condition| condition.status == "True")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::AggregatorStatus;

    use super::*;

    fn status(pin: Option<&str>, node: Option<&str>) -> TrainingModelStatus {
        let aggregator = AggregatorStatus {
            pin: pin.map(str::to_owned),
            node: node.map(str::to_owned),
            ..AggregatorStatus::default()
        };
        TrainingModelStatus { aggregator: Some(aggregator), ..TrainingModelStatus::default() }
    }

    #[test]
    fn another_key_of_the_aggregator_is_an_event() {
        let event = events(&status(Some("a"), None), &status(Some("b"), None)).pop().unwrap();
        assert_eq!(event.reason, "AggregatorKeyChanged");
        for (before, after) in [
            (status(None, None), status(Some("b"), None)),
            (status(Some("a"), None), status(Some("a"), None)),
            // It is another aggregator.
            (status(Some("a"), None), status(Some("b"), Some("edge0"))),
        ] {
            assert_eq!(events(&before, &after).len(), 0);
        }
    }

    #[test]
    fn refused_update_and_failed_worker_are_an_event_once_per_round() {
        use TrainingWorkerState::{Accepted, Failed, Refused};
        let in_round = |round, state| {
            let row = TrainingWorkerStatus {
                name: "a".to_owned(),
                node: "edge0".to_owned(),
                round,
                state,
                reason: Some("UpdateRefused".to_owned()),
                message: Some("why".to_owned()),
                ..TrainingWorkerStatus::default()
            };
            TrainingModelStatus { workers: vec![row], ..TrainingModelStatus::default() }
        };
        let notes = |before: &TrainingModelStatus, after: &TrainingModelStatus| {
            let events = events(before, after).into_iter();
            events.map(|event| format!("{}: {}", event.reason, event.note)).collect::<Vec<_>>()
        };
        let none = TrainingModelStatus::default();
        let expected = ["UpdateRefused: round 2: worker \"a\" on node edge0: why"];
        assert_eq!(notes(&none, &in_round(2, Refused)), expected);
        assert_eq!(notes(&in_round(1, Failed), &in_round(2, Failed)), expected);
        assert_eq!(notes(&in_round(2, Refused), &in_round(2, Refused)), [""; 0]);
        assert_eq!(notes(&none, &in_round(2, Accepted)), [""; 0]);
    }
}
