//! Turns the Models that labels select into candidates, and the choice into the next status.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube_core::ResourceExt as _;
use neptune_api::{
    EdgeModel, FailedModel, JointInferenceService, Model, ModelSelector, SelectedModel,
    SelectionCause, ServingFailure,
};

use crate::{
    finding::Finding,
    fleet::Presence,
    joint_inference_service::{
        facts::Selection,
        selection::{
            choice::{Candidate, Choice, Current, FAILED_FOR, choose_model},
            rules::{SelectionRules, selection_rules},
        },
        server::served_file::file_version,
    },
    kubernetes::node_selector::text,
    reason::Reason,
};

/// Failed models that a status lists.
const MAX_FAILED: usize = 16;

/// A Model that the labels select.
#[derive(Debug)]
pub struct LabelledModel {
    /// The Model object from the cache.
    pub model: Arc<Model>,
    /// Whether its file is on the nodes of the worker, see [`is_on_nodes`].
    pub is_present: bool,
}

/// Whether a file is on the nodes of a worker, each with whether it reported the file last. Nodes
/// that are offline may lack it, but not all nodes.
pub fn is_on_nodes(nodes: impl IntoIterator<Item = (Presence, bool)>) -> bool {
    let (has, lacks): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|(_, has)| *has);
    let is_offline = |presence| matches!(presence, Presence::Offline { .. });
    lacks.is_empty()
        || !has.is_empty() && lacks.into_iter().all(|(presence, _)| is_offline(presence))
}

/// Chooses among these Models. `failure` is that of the model server that the service owns. During a
/// rollout none replaces the current one because it is better.
pub fn select(
    service: &JointInferenceService,
    (spec, selector): (&EdgeModel, &ModelSelector),
    models: &[LabelledModel],
    (failure, is_rolling_out): (Option<ServingFailure>, bool),
    now: Timestamp,
) -> Selection {
    let rules = match selection_rules(spec) {
        Ok(rules) => rules,
        Err(finding) => return Selection { finding: Some(finding), ..Selection::default() },
    };
    let previous = service.status.as_ref().and_then(|status| status.model.as_deref());
    let previous = previous.map(|previous| not_in_the_future(previous, now));
    let previous = previous.as_ref();
    let failed = failed(models, previous, failure, now);
    let incumbent = previous.and_then(|previous| find(models, &previous.name));
    let candidates: Vec<_> = models
        .iter()
        .map(|labelled| {
            let (model, name) = (&labelled.model, labelled.model.name_any());
            let is_current = previous.is_some_and(|previous| previous.name == name);
            let status = model.status.as_ref();
            Candidate {
                metric: metric(model, &rules, is_current),
                updated: status.and_then(|status| Some(status.update_time.as_ref()?.0)),
                data: status.and_then(|status| status.reported_by.as_ref()?.dataset.clone()),
                is_present: labelled.is_present,
                has_failed: failed.iter().any(|failed| failed.name == name),
                fits: incumbent.as_deref().is_none_or(|incumbent| fits(model, incumbent)),
                name,
            }
        })
        .collect();
    let current = previous.map(|it| Current { name: &it.name, since: it.since.0 });
    let Some(choice) = choose_model(&candidates, current, &rules, now) else {
        let namespace = service.namespace().unwrap_or_default();
        return Selection { finding: Some(nothing(&namespace, selector)), ..Selection::default() };
    };
    let choice = if is_rolling_out { without_better(choice, previous) } else { choice };
    // A failed model is a candidate again after its time.
    let replan_at = failed.iter().map(|failed| failed.until.0).chain(choice.replan_at).min();
    let replan_after = replan_at.map(|at| {
        let wait = Duration::try_from(at.duration_since(now)).unwrap_or_default();
        wait.max(Duration::from_secs(1))
    });
    // The current model serves until the status has the next one.
    let model = incumbent.or_else(|| find(models, &choice.name));
    let count = i32::try_from(candidates.len()).unwrap_or(i32::MAX);
    let not_compared = choice.not_compared.clone();
    let status = chosen(choice, previous, now)
        .map(|next| Box::new(SelectedModel { candidates: count, failed, not_compared, ..next }));
    Selection { model, status, replan_after, finding: None }
}

/// The choice, or the current model in place of a better one.
fn without_better(mut choice: Choice, current: Option<&SelectedModel>) -> Choice {
    if let (Some((SelectionCause::Better, _)), Some(current)) = (&choice.switch, current) {
        choice.name.clone_from(&current.name);
        choice.switch = None;
    }
    choice
}

/// The finding of a selector without a Model.
fn nothing(namespace: &str, selector: &ModelSelector) -> Finding {
    let labels = text(&selector.match_labels);
    let message = format!(
        "spec.edgeWorker.model.selector: no Model in namespace {namespace:?} has the labels {labels}; label one, or correct the selector"
    );
    Finding::new(Reason::ModelNotFound, message)
}

/// The status after a choice. A status has whole seconds; the next one, so that no dwell time is
/// shorter.
fn chosen(
    choice: Choice,
    previous: Option<&SelectedModel>,
    now: Timestamp,
) -> Option<SelectedModel> {
    let Some((cause, reason)) = choice.switch else { return previous.cloned() };
    let since = next_second(now);
    Some(SelectedModel {
        name: choice.name,
        cause,
        reason,
        since: Time(since),
        candidates: 0,
        failed: Vec::new(),
        not_compared: Vec::new(),
    })
}

fn next_second(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second().saturating_add(1)).unwrap_or(now)
}

/// The status as if it was stored now, where a clock that was ahead stored it. Otherwise no better
/// model would be chosen until then.
fn not_in_the_future(previous: &SelectedModel, now: Timestamp) -> SelectedModel {
    let mut previous = previous.clone();
    previous.since.0 = previous.since.0.min(next_second(now));
    let longest = next_second(now).checked_add(FAILED_FOR).unwrap_or(Timestamp::MAX);
    for failed in &mut previous.failed {
        failed.until.0 = failed.until.0.min(longest);
    }
    previous
}

fn find(models: &[LabelledModel], name: &str) -> Option<Arc<Model>> {
    let mut models = models.iter().map(|labelled| &labelled.model);
    models.find(|model| model.name_any() == name).cloned()
}

/// The value of the metric. That of an earlier file counts only for the model that serves.
fn metric(model: &Model, rules: &SelectionRules, is_current: bool) -> Option<f64> {
    let status = model.status.as_ref()?;
    let is_outdated = status
        .conditions
        .iter()
        .any(|condition| condition.type_ == "Evaluated" && condition.status == "False");
    let reported = status.metrics.iter().find(|metric| metric.key == rules.best)?;
    let value: f64 = reported.value.parse().ok()?;
    (value.is_finite() && (is_current || !is_outdated)).then_some(value)
}

/// Whether clients cannot tell the models apart by their inputs.
fn fits(model: &Model, current: &Model) -> bool {
    let inputs = |model: &Model| {
        model.spec.metadata.as_ref().map(|it| it.inputs.clone()).unwrap_or_default()
    };
    model.spec.format == current.spec.format && inputs(model) == inputs(current)
}

/// The models that are no candidates because their file failed: those of the status, and the one
/// with which the model server failed last.
fn failed(
    models: &[LabelledModel],
    previous: Option<&SelectedModel>,
    failure: Option<ServingFailure>,
    now: Timestamp,
) -> Vec<FailedModel> {
    let models = || models.iter().map(|labelled| &labelled.model);
    let known = previous.into_iter().flat_map(|previous| previous.failed.iter().cloned());
    let new = failure.and_then(|failure| {
        let model = models().find(|model| file_version(model) == failure.version)?;
        let until = failure.time?.0.checked_add(FAILED_FOR).ok()?;
        Some(FailedModel { name: model.name_any(), version: failure.version, until: Time(until) })
    });
    let mut failed: Vec<FailedModel> = Vec::new();
    for entry in new.into_iter().chain(known) {
        let is_same = |other: &FailedModel| other.name == entry.name;
        let has_file = |model: &Arc<Model>| {
            model.name_any() == entry.name && file_version(model) == entry.version
        };
        if entry.until.0 > now && models().any(has_file) && !failed.iter().any(is_same) {
            failed.push(entry);
        }
    }
    failed.sort_by(|a, b| b.until.0.cmp(&a.until.0).then_with(|| a.name.cmp(&b.name)));
    failed.truncate(MAX_FAILED);
    failed
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn offline_nodes_may_lack_the_file_of_a_better_model() {
        let offline = Presence::Offline { since: Timestamp::UNIX_EPOCH };
        let online = Presence::Online;
        for (nodes, expected) in [
            (vec![], true),
            (vec![(online, true), (online, true)], true),
            (vec![(online, true), (online, false)], false),
            (vec![(online, true), (Presence::NeverSeen, false)], false),
            (vec![(online, true), (offline, false)], true),
            (vec![(offline, true), (offline, false)], true),
            (vec![(offline, false), (offline, false)], false),
            (vec![(offline, true), (online, false)], false),
        ] {
            assert_eq!(is_on_nodes(nodes.iter().copied()), expected, "{nodes:?}");
        }
    }

    #[test]
    fn better_model_waits_for_the_end_of_a_rollout_and_a_failed_one_does_not() {
        let current: SelectedModel = serde_json::from_value(serde_json::json!({
            "name": "m", "cause": "First", "reason": "", "since": Timestamp::UNIX_EPOCH,
            "candidates": 2,
        }))
        .unwrap();
        let switch = |cause| Choice {
            name: "n".to_owned(),
            switch: Some((cause, String::new())),
            replan_at: None,
            not_compared: Vec::new(),
        };
        let better = without_better(switch(SelectionCause::Better), Some(&current));
        assert_eq!((better.name.as_str(), better.switch), ("m", None));
        for cause in [SelectionCause::Failed, SelectionCause::Missing] {
            assert_eq!(without_better(switch(cause), Some(&current)), switch(cause));
        }
        let first = switch(SelectionCause::First);
        assert_eq!(without_better(first.clone(), None), first);
    }

    #[test]
    fn choice_of_the_future_counts_as_made_now() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let after = |second: i64| at(second).checked_add(FAILED_FOR).unwrap();
        let status = |since: i64, failed: i64| -> SelectedModel {
            serde_json::from_value(serde_json::json!({
                "name": "m", "cause": "Better", "reason": "", "since": at(since), "candidates": 1,
                "failed": [{"name": "f", "version": "1", "until": after(failed)}],
            }))
            .unwrap()
        };
        for (since, failed) in [(5, 5), (10, 9), (11, 11)] {
            let known = status(since, failed);
            assert_eq!(not_in_the_future(&known, at(10)), known, "{since}");
        }
        assert_eq!(not_in_the_future(&status(7200, 7200), at(10)), status(11, 11));
    }
}
