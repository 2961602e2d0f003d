//! Validates a `TrainingModel` against the cluster, and freezes what its next run depends on. An
//! invalid spec stops no run that has started.

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
    worker::{names::aggregator_name, needs::unmet_on, program_text},
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
    let current = model.status.as_ref().and_then(CurrentRun::from_status);
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
    let unmet = current.as_ref().map(|current| {
        let program = &current.frozen.container.program;
        unmet_on(program, current.frozen.nodes(), &facts.offers)
    });
    let datasets = current.iter().flat_map(|current| current.frozen.datasets());
    let datasets = datasets.filter_map(|name| {
        let name = name.as_str();
        Some((name.to_owned(), Arc::clone(facts.datasets.get(name)?)))
    });
    let missing = next.as_ref().map(|next| absence::missing(next, &facts.datasets));
    Ok(ValidTrainingModel {
        datasets: datasets.collect(),
        unmet: unmet.unwrap_or_default(),
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use neptune_api::TrainingModelStatus;
    use neptune_wire::aggregator::OnTooFewWorkers;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        kubernetes::node_view::node_view,
        reason::{Phase, ReasonGroup},
        training_model::fixtures::{self, at, dataset, frozen, node, with},
    };

    type Case = (&'static str, fn() -> Value, fn(&mut TrainingFacts), Reason, &'static str);

    fn no_facts(_: &mut TrainingFacts) {}

    const CASES: &[Case] = &[
        (
            "no node",
            || json!({}),
            |f| drop(f.nodes.remove("edge0")),
            Reason::NodeNotFound,
            "node \"edge0\" not found: there is neither a Node nor an EdgeNode of that name; correct spec.",
        ),
        (
            "no agent",
            || json!({}),
            |f| {
                f.nodes.insert("edge0".to_owned(), Arc::new(node_view("edge0", &[])));
            },
            Reason::NodeNotEdge,
            "label the node or use an edge node",
        ),
        (
            "no dataset",
            || json!({}),
            |f| f.datasets.retain(|name, _| name == "digits-test"),
            Reason::DatasetNotFound,
            "Dataset \"digits-a\" not found in namespace \"default\"; create it or correct spec.trainingWorkers[\"a\"].dataset.name",
        ),
        (
            "elsewhere",
            || json!({}),
            |f| {
                f.datasets.extend([dataset("digits-a", "edge1", &[])]);
            },
            Reason::DatasetElsewhere,
            "Dataset \"digits-a\" is on node \"edge1\", not on node edge0",
        ),
        (
            "no labels match",
            || json!({"trainingWorkers": [{"name": "a", "nodeSelector": {"site": "west"}, "dataset": {"matchLabels": {"app": "x"}}}], "aggregation": {"minWorkers": null}}),
            no_facts,
            Reason::DatasetNotFound,
            "no Dataset with the labels app=x is on an edge node with the labels site=west",
        ),
        (
            "twice",
            || json!({"trainingWorkers": [{"name": "a-west-1", "nodeName": "edge0", "dataset": {"name": "digits-a"}}, {"name": "a", "nodeName": "edge1", "dataset": {"matchLabels": {"app": "digits"}}}]}),
            no_facts,
            Reason::TrainingInvalid,
            "duplicate training worker \"a-west-1\"",
        ),
        (
            "too few",
            || json!({"aggregation": {"minWorkers": 4}}),
            no_facts,
            Reason::TrainingInvalid,
            "minWorkers 4 is above the number of training workers (3)",
        ),
        (
            "nothing to run",
            || json!({"script": null}),
            no_facts,
            Reason::TrainingInvalid,
            "there is nothing to run",
        ),
        (
            "no framework",
            || json!({"workerSpec": {"frameworkType": "caffe"}}),
            no_facts,
            Reason::FrameworkUnknown,
            "\"caffe\" is not one of",
        ),
        (
            "no image",
            || json!({"workerSpec": {"frameworkType": null}}),
            no_facts,
            Reason::ImageRequired,
            "spec.workerSpec.image is missing",
        ),
        (
            "reserved",
            || json!({"workerSpec": {"env": [{"name": "OUTPUT_DIR", "value": "/x"}]}}),
            no_facts,
            Reason::EnvInvalid,
            "is set by Neptune",
        ),
        (
            "NUL in a variable",
            || json!({"workerSpec": {"env": [{"name": "A", "value": "\0"}]}}),
            no_facts,
            Reason::TextInvalid,
            "spec.workerSpec.env[0].value contains a NUL character",
        ),
        (
            "code without a digest",
            || json!({"script": {"sha256sum": null}}),
            no_facts,
            Reason::TrainingInvalid,
            "code from a network is run only with a digest",
        ),
        (
            "script outside",
            || json!({"script": {"bootFile": "../train.py"}}),
            no_facts,
            Reason::ScriptBootFileInvalid,
            "spec.script.bootFile",
        ),
        (
            "trim",
            || json!({"aggregation": {"strategy": "TrimmedMean", "trim": "0.5"}}),
            no_facts,
            Reason::TrainingInvalid,
            "trim 0.5 leaves nothing: give less than 0.5",
        ),
        (
            "share",
            || json!({"aggregation": {"fraction": "2"}}),
            no_facts,
            Reason::TrainingInvalid,
            "spec.aggregation.fraction \"2\" must be a share",
        ),
        (
            "timeout",
            || json!({"aggregation": {"roundTimeout": "soon"}}),
            no_facts,
            Reason::TrainingInvalid,
            "spec.aggregation.roundTimeout \"soon\" must be a duration",
        ),
        (
            "growth",
            || json!({"schedule": {"type": "OnGrowth"}}),
            no_facts,
            Reason::TrainingInvalid,
            "OnGrowth needs schedule.dataset and newSamples",
        ),
        (
            "early stop",
            || json!({"evaluation": null, "earlyStop": {"patience": 1}}),
            no_facts,
            Reason::TrainingInvalid,
            "spec.earlyStop needs spec.evaluation",
        ),
        (
            "initial model",
            || json!({"initialWeights": {"model": {"name": "big"}}}),
            no_facts,
            Reason::ModelNotFound,
            "Model \"big\" not found",
        ),
        (
            "initial address",
            || json!({"initialWeights": {"url": "https://h/a.npz"}}),
            no_facts,
            Reason::InitialWeightsInvalid,
            "needs initialWeights.sha256sum",
        ),
        (
            "output",
            || json!({}),
            |f| {
                f.output_model = Some(Arc::new(serde_json::from_value(json!({"apiVersion": "edgeai.io/v1alpha1", "kind": "Model", "spec": {}, "metadata": {"name": "digits-small", "annotations": {"neptune.io/trainingmodel": "other"}}})).unwrap()));
            },
            Reason::OutputConflict,
            "Model \"digits-small\" belongs to TrainingModel \"other\"; name another output",
        ),
        (
            "too many",
            || json!({"aggregation": {"minWorkers": null}}),
            |f| {
                f.datasets.extend(
                    (0..300).map(|n| dataset(&format!("d{n}"), "edge1", &[("app", "digits")])),
                );
            },
            Reason::TooManyWorkers,
            "303 workers match, and a run supports 256",
        ),
    ];

    #[test]
    fn every_finding_has_its_reason_and_remedy() {
        for (case, change, of_facts, reason, text) in CASES {
            let mut facts = fixtures::facts();
            of_facts(&mut facts);
            let findings = validate(&with(&change()), &facts).map(|_| ()).unwrap_err();
            let finding = findings.iter().find(|finding| finding.reason == *reason);
            let message = &finding.unwrap_or_else(|| unreachable!("{case}: {findings:#?}")).message;
            assert!(message.contains(text), "{case}: {message}");
        }
    }

    #[test]
    fn every_obstacle_of_a_training_has_a_case() {
        let is_of_spec = |reason: &&Reason| {
            reason.group() == ReasonGroup::TrainingModel
                && reason.phase() == Phase::Obstacle
                // Of the API server.
                && **reason != Reason::AggregatorRefused
        };
        for reason in Reason::ALL.iter().filter(is_of_spec) {
            assert!(CASES.iter().any(|(.., of_case, _)| of_case == reason), "{reason}");
        }
    }

    #[test]
    fn labels_select_one_worker_per_dataset_on_a_matching_node() {
        let frozen = frozen();
        let workers: Vec<_> = frozen
            .settings
            .workers
            .iter()
            .map(|(name, worker)| format!("{name} {} {}", worker.node, worker.dataset))
            .collect();
        assert_eq!(workers, ["a edge0 digits-a", "b-west-1 edge1 west-1", "b-west-2 edge2 west-2"]);
        assert_eq!(frozen.settings.min_workers, Some(2));
        let evaluation = frozen.settings.evaluation.clone().unwrap();
        assert_eq!((evaluation.node.as_str(), evaluation.present), ("edge0", None));
        let nodes: Vec<_> = frozen.nodes().iter().map(ToString::to_string).collect();
        assert_eq!(nodes, ["edge0", "edge1", "edge2"]);
    }

    #[test]
    fn node_of_another_site_is_not_selected() {
        let mut facts = fixtures::facts();
        facts.nodes.extend([node("edge2", &[("site", "east")])]);
        let workers = check(&fixtures::model(), &facts).unwrap().settings.workers;
        assert_eq!(workers.keys().collect::<Vec<_>>(), ["a", "b-west-1"]);
    }

    #[test]
    fn settings_without_values_are_the_defaults() {
        let model = with(&json!({"aggregation": {"minWorkers": null}}));
        let settings = check(&model, &fixtures::facts()).unwrap().settings;
        assert_eq!((settings.min_workers, settings.grace_seconds), (None, None));
        assert_eq!((settings.max_deadlines, settings.round_timeout_seconds), (3, Some(3600)));
        assert_eq!(settings.on_too_few_workers, OnTooFewWorkers::Fail);
        assert_eq!((settings.rule.clip, settings.rule.refuse), (Some(2.0), None));
        let model = with(&json!({"aggregation": {"grace": "30s", "maxDeadlines": 0,
            "onTooFewWorkers": "Wait", "clip": {"refuseNormFactor": "5"}}}));
        let settings = check(&model, &fixtures::facts()).unwrap().settings;
        assert_eq!((settings.grace_seconds, settings.max_deadlines), (Some(30), 0));
        assert_eq!((settings.rule.clip, settings.rule.refuse), (Some(2.0), Some(5.0)));
    }

    #[test]
    fn invalid_spec_stops_no_run() {
        let mut model = with(&json!({"script": null}));
        let facts = fixtures::facts();
        assert!(validate(&model, &facts).is_err());
        let status = TrainingModelStatus {
            run: Some(1),
            run_settings: Some(frozen().to_text()),
            start_time: Some(Time(at(0))),
            ..TrainingModelStatus::default()
        };
        model.status = Some(status);
        let valid = validate(&model, &facts).unwrap();
        assert!(valid.next.is_err() && valid.current.is_some());
    }
}
