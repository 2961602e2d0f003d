//! Collects the Models that `edgeWorker.model.selector` selects, from the caches and the fleet, and
//! records the choice.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{Resource as _, ResourceExt as _};
use neptune_api::{
    EdgeModel, FailedModel, InferenceModel, JointInferenceService, Model, ModelSelector,
    SelectedModel,
};
use neptune_wire::{ModelPresenceReport, NodeName, PresenceState, Role};

use crate::{
    cache::Cached as _,
    controllers::{
        joint_inference_service::{
            place::placed_nodes,
            selection::{
                Candidate, Choice, Current, FAILED_FOR, SelectionRules, choose_model,
                selection_rules,
            },
            served_file::file_version,
            server::owned_name,
        },
        runtime::Context,
    },
    finding::Finding,
    kubernetes::{identity::key, node_selector::text},
    reason::Reason,
};

/// Failed models that a status lists.
const MAX_FAILED: usize = 16;

/// The choice of a service.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// The Model that the plan uses.
    pub model: Option<Arc<Model>>,
    /// The next status. It may name a better model that the plan uses once the status has it, so
    /// that another controller knows the choice and its time.
    pub status: Option<Box<SelectedModel>>,
    /// When to choose again although nothing changes.
    pub replan_after: Option<Duration>,
    /// Why there is no choice.
    pub finding: Option<Finding>,
}

/// Chooses among the Models that the service selects; `None` without a selector.
pub fn selection(service: &JointInferenceService, context: &Context) -> Option<Selection> {
    let spec = service.spec.edge_worker.model.as_ref()?;
    let selector = spec.selector.as_ref()?;
    Some(match selection_rules(spec) {
        Ok(rules) => chosen(service, spec, selector, &rules, context),
        Err(finding) => Selection { finding: Some(finding), ..Selection::default() },
    })
}

fn chosen(
    service: &JointInferenceService,
    spec: &EdgeModel,
    selector: &ModelSelector,
    rules: &SelectionRules,
    context: &Context,
) -> Selection {
    let (now, namespace) = (Context::wall_now(), service.namespace().unwrap_or_default());
    let mut models = Model::cache(context.caches()).with_labels(&namespace, &selector.match_labels);
    models.retain(|model| model.meta().deletion_timestamp.is_none());
    let previous = service.status.as_ref().and_then(|status| status.model.as_deref());
    let previous = previous.map(|previous| not_in_the_future(previous, now));
    let previous = previous.as_ref();
    let failed = failed(service, &models, previous, now, context);
    let nodes = nodes(service);
    let incumbent = previous.and_then(|previous| find(&models, &previous.name));
    let of = |model: &Arc<Model>| {
        let name = model.name_any();
        let is_current = previous.is_some_and(|previous| previous.name == name);
        let fits = incumbent.as_deref().is_none_or(|incumbent| fits(model, incumbent));
        Candidate {
            metric: metric(model, spec, is_current),
            updated: model.status.as_ref().and_then(|status| Some(status.update_time.as_ref()?.0)),
            data: model.status.as_ref().and_then(|it| it.reported_by.as_ref()?.dataset.clone()),
            is_present: is_present(model, &nodes, context),
            has_failed: failed.iter().any(|failed| failed.name == name),
            fits,
            name,
        }
    };
    let candidates: Vec<_> = models.iter().map(of).collect();
    let current = previous.map(|it| Current { name: &it.name, since: it.since.0 });
    let Some(choice) = choose_model(&candidates, current, rules, now) else {
        return Selection { finding: Some(nothing(&namespace, selector)), ..Selection::default() };
    };
    // A failed model is a candidate again after its time.
    let replan_at = failed.iter().map(|failed| failed.until.0).chain(choice.replan_at).min();
    let replan_after = replan_at.map(|at| {
        let wait = Duration::try_from(at.duration_since(now)).unwrap_or_default();
        wait.max(Duration::from_secs(1))
    });
    // The current model serves until the status has the next one.
    let model = incumbent.or_else(|| find(&models, &choice.name));
    let count = i32::try_from(candidates.len()).unwrap_or(i32::MAX);
    let not_compared = choice.not_compared.clone();
    let status = next_status(choice, previous, now)
        .map(|next| Box::new(SelectedModel { candidates: count, failed, not_compared, ..next }));
    Selection { model, status, replan_after, finding: None }
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
fn next_status(
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

fn find(models: &[Arc<Model>], name: &str) -> Option<Arc<Model>> {
    models.iter().find(|model| model.name_any() == name).cloned()
}

/// The value of the metric. That of an earlier file counts only for the model that serves.
fn metric(model: &Model, spec: &EdgeModel, is_current: bool) -> Option<f64> {
    let status = model.status.as_ref()?;
    let is_outdated = status
        .conditions
        .iter()
        .any(|condition| condition.type_ == "Evaluated" && condition.status == "False");
    let key = spec.best.as_deref()?;
    let found = status.metrics.iter().find(|metric| metric.key == key)?;
    let value: f64 = found.value.parse().ok()?;
    (value.is_finite() && (is_current || !is_outdated)).then_some(value)
}

/// Whether clients cannot tell the models apart by their inputs.
fn fits(model: &Model, current: &Model) -> bool {
    let inputs = |model: &Model| {
        model.spec.metadata.as_ref().map(|it| it.inputs.clone()).unwrap_or_default()
    };
    model.spec.format == current.spec.format && inputs(model) == inputs(current)
}

/// The nodes of the edge worker.
fn nodes(service: &JointInferenceService) -> Vec<NodeName> {
    let named = service.spec.edge_worker.node_name.as_deref();
    let nodes = named.into_iter().chain(placed_nodes(service));
    nodes.filter_map(|node| node.parse().ok()).collect()
}

/// Whether each of the nodes reports the model's file.
fn is_present(model: &Model, nodes: &[NodeName], context: &Context) -> bool {
    let (Some(key), uid) = (key(model), model.uid().unwrap_or_default()) else { return false };
    let fleet = context.fleet();
    let is_current = |presence: &ModelPresenceReport| {
        presence.state == PresenceState::Present
            && crate::controllers::model::is_reported_file(presence, model)
    };
    let has = |node: &NodeName| {
        let report = fleet.report(node, &key, &uid);
        report.and_then(|report| report.model.as_deref()).is_some_and(is_current)
    };
    nodes.iter().all(has)
}

/// The models that are no candidates because their file failed: those of the status, and the one
/// with which the model server failed last.
fn failed(
    service: &JointInferenceService,
    models: &[Arc<Model>],
    previous: Option<&SelectedModel>,
    now: Timestamp,
    context: &Context,
) -> Vec<FailedModel> {
    let known = previous.into_iter().flat_map(|previous| previous.failed.iter().cloned());
    let name = owned_name(service, Role::Edge);
    let namespace = service.namespace().unwrap_or_default();
    let owned = context.caches().get::<InferenceModel>(&namespace, &name);
    let failure = owned.as_deref().and_then(|owned| owned.status.as_ref()?.last_failure.clone());
    let new = failure.and_then(|failure| {
        let is_of = |model: &&Arc<Model>| file_version(model) == failure.version;
        let model = models.iter().find(is_of)?;
        let until = failure.time?.0.checked_add(FAILED_FOR).ok()?;
        Some(FailedModel { name: model.name_any(), version: failure.version, until: Time(until) })
    });
    let mut failed: Vec<FailedModel> = Vec::new();
    for entry in new.into_iter().chain(known) {
        let is_same = |other: &FailedModel| other.name == entry.name;
        let has_file = |model: &Arc<Model>| {
            model.name_any() == entry.name && file_version(model) == entry.version
        };
        if entry.until.0 > now && models.iter().any(has_file) && !failed.iter().any(is_same) {
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
