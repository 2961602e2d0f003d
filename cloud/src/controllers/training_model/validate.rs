//! Validates a `TrainingModel` against the cluster, and freezes what its next run depends on. An
//! invalid spec stops no run that has started. Pure.

use std::sync::Arc;

use neptune_api::{TrainingModel, TrainingScheduleType};
use neptune_wire::aggregator::RunSettings;

use super::{
    absence, aggregator,
    evaluation_data::data_on,
    frozen::{CurrentRun, FrozenRun, spec_hash},
    numbers, program,
    resolved::{TrainingFacts, ValidTrainingModel},
    session, settings,
    workers::{dataset, workers},
};
use crate::{
    finding::Finding,
    kubernetes::identity::identity,
    reason::Reason,
    worker::{names::aggregator_name, program_text},
};

/// Checks a `TrainingModel` against the facts.
///
/// # Errors
/// All findings, if no run has started.
pub fn validate(
    model: &TrainingModel,
    facts: &TrainingFacts,
) -> Result<ValidTrainingModel, Vec<Finding>> {
    let mut findings = Vec::new();
    let Some((key, metadata)) = identity(model, &mut findings) else { return Err(findings) };
    let current = model.status.as_ref().and_then(CurrentRun::of);
    let next = check(model, facts);
    let next = match next {
        Err(findings) if current.is_none() => return Err(findings),
        next => next,
    };
    let service = model.spec.aggregation.as_ref().and_then(|it| it.service.as_ref());
    let name = aggregator_name(key.namespace.as_str(), key.name.as_str());
    let keep = settings::keep(model, &mut Vec::new());
    let frozen = current.as_ref().map(|current| &current.frozen).or(next.as_ref().ok());
    let volume_bytes = frozen.map_or(0, |frozen| {
        let state = frozen.session.as_ref().map(|session| session.state_bytes);
        aggregator::volume_bytes(&frozen.settings, keep, state)
    });
    let session = frozen.and_then(|frozen| frozen.session.clone());
    let datasets = current.iter().flat_map(|current| current.frozen.datasets());
    let datasets = datasets.filter_map(|name| {
        let name = name.as_str();
        Some((name.to_owned(), Arc::clone(facts.datasets.get(name)?)))
    });
    let missing = next.as_ref().map(|next| absence::missing(next, &facts.datasets));
    Ok(ValidTrainingModel {
        datasets: datasets.collect(),
        missing: missing.unwrap_or_default(),
        key,
        metadata,
        name,
        aggregator: facts.aggregator.clone(),
        service_type: service.and_then(|service| service.type_).unwrap_or_default(),
        session,
        volume_bytes,
        keep,
        samples: scheduled_samples(model, facts),
        next,
        current,
    })
}

/// What the next run would be started with.
///
/// # Errors
/// All findings of the spec, not only the first.
pub fn check(model: &TrainingModel, facts: &TrainingFacts) -> Result<FrozenRun, Vec<Finding>> {
    let mut findings = Vec::new();
    let findings = &mut findings;
    program_text::check(&model.spec, findings);
    let limits = settings::limits(model, findings);
    let container = program::container(model, facts, &limits, findings);
    let session = session::session(model, facts, container.as_ref(), findings);
    if model.spec.training_workers.is_empty() {
        let message = "spec.trainingWorkers is empty; give at least one worker";
        findings.push(Finding::new(Reason::TrainingInvalid, message));
    }
    let before = findings.len();
    let workers = workers(model, facts, findings);
    // Without all workers their number is unknown.
    let mut ignored = Vec::new();
    let of_rounds = if findings.len() == before { &mut *findings } else { &mut ignored };
    let rounds = settings::rounds(model, &workers, of_rounds);
    let rule = settings::rule(model, findings);
    let initial = settings::initial(model, facts, findings);
    let present = present(model);
    let evaluation = settings::evaluation(model, facts, present, findings);
    let early_stop = settings::early_stop(model, findings);
    let output = settings::output(model, facts, findings);
    let aggregator_node = settings::aggregator_node(model, facts, findings);
    settings::keep(model, findings);
    schedule(model, facts, findings);
    let deadline = model.spec.active_deadline.as_deref();
    let deadline_seconds =
        deadline.and_then(|text| numbers::duration("spec.activeDeadline", text, findings));
    let Some(container) = container.filter(|_| findings.is_empty()) else {
        return Err(std::mem::take(findings));
    };
    let settings = RunSettings {
        workers,
        workload: program::workload(&container),
        rounds: rounds.count,
        min_workers: rounds.min_workers,
        round_timeout_seconds: limits.round_timeout_seconds,
        grace_seconds: rounds.grace_seconds,
        max_deadlines: rounds.max_deadlines,
        on_too_few_workers: rounds.on_too_few_workers,
        fraction: rounds.fraction,
        rule,
        seed: rounds.seed,
        max_update_bytes: limits.max_update_bytes,
        initial,
        evaluation,
        early_stop,
        session: session.as_ref().map(|it| it.settings(limits.backoff_limit)),
    };
    let evaluation_data = settings.evaluation.as_ref().and_then(|evaluation| {
        let dataset = facts.datasets.get(evaluation.dataset.as_str())?;
        data_on(dataset, evaluation.node.as_str())
    });
    Ok(FrozenRun {
        spec: spec_hash(&model.spec),
        settings,
        container,
        session,
        aggregator_node,
        deadline_seconds,
        output,
        samples: scheduled_samples(model, facts),
        evaluation_data,
    })
}

/// The digest of the weights that the output Model has now, if the aggregator made them.
fn present(model: &TrainingModel) -> Option<String> {
    let output = model.status.as_ref()?.output.as_ref()?;
    let named = &model.spec.output.as_ref()?.model.name;
    output.sha256sum.clone().filter(|_| output.published && output.model == *named)
}

fn schedule(model: &TrainingModel, facts: &TrainingFacts, findings: &mut Vec<Finding>) {
    let Some(schedule) = &model.spec.schedule else { return };
    if let Some(text) = &schedule.min_interval {
        numbers::duration("spec.schedule.minInterval", text, findings);
    }
    if schedule.max_runs.is_some_and(|runs| runs < 0) {
        let message = "spec.schedule.maxRuns must be 0 or above";
        findings.push(Finding::new(Reason::TrainingInvalid, message));
    }
    let grows = schedule.type_ == Some(TrainingScheduleType::OnGrowth);
    if grows && (schedule.dataset.is_none() || schedule.new_samples.is_none_or(|it| it < 1)) {
        let message = "OnGrowth needs schedule.dataset and newSamples";
        findings.push(Finding::new(Reason::TrainingInvalid, message));
    }
    if let Some(reference) = &schedule.dataset {
        dataset(model, &reference.name, "spec.schedule.dataset.name", facts, findings);
    }
}

fn scheduled_samples(model: &TrainingModel, facts: &TrainingFacts) -> Option<i64> {
    let reference = model.spec.schedule.as_ref()?.dataset.as_ref()?;
    facts.datasets.get(&reference.name)?.status.as_ref()?.number_of_samples
}
