//! The settings of a run, from the spec: numbers, defaults, evaluation and output. A part of
//! `validate`.

use std::collections::BTreeMap;

use kube_core::ResourceExt as _;
use neptune_api::{
    Aggregation, AggregationStrategy, MetricMode, TooFewWorkers, TrainingModel, UpdateWeights,
};
use neptune_wire::{
    NodeName,
    aggregator::{
        AggregationRule, EarlyStop, InitialWeights, OnTooFewWorkers, RunEvaluation, RunWorker,
    },
};

use super::{
    frozen::FrozenOutput,
    numbers::{decimal, duration, invalid, is_digest, share, whole},
    on_node, output,
    resolved::TrainingFacts,
    session,
    workers::{check_node, dataset},
};
use crate::{dataset::is_on, finding::Finding, kubernetes::quantities, reason::Reason};

const DEFAULT_ROUNDS: u32 = 10;
const DEFAULT_ROUND_SECONDS: u64 = 3600;
const DEFAULT_UPDATE_BYTES: u64 = 2 << 30;
const DEFAULT_BACKOFF_LIMIT: u32 = 3;
const DEFAULT_MAX_DEADLINES: u32 = 3;
const DEFAULT_NORM_FACTOR: f64 = 2.0;
const DEFAULT_KEEP: u32 = 3;

/// The limits of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Seconds until the deadline of a round and of a container; `None` to wait indefinitely.
    pub round_timeout_seconds: Option<u64>,
    /// Largest file of weights, in bytes.
    pub max_update_bytes: u64,
    /// How often a container may fail in a round.
    pub backoff_limit: u32,
}

/// The limits of a task.
pub fn limits(model: &TrainingModel, findings: &mut Vec<Finding>) -> Limits {
    let aggregation = aggregation(model);
    let round_timeout_seconds = match aggregation.round_timeout.as_deref() {
        // An engine has deadlines of its own, and its workers run as long as it does.
        _ if session::is_session(model) => None,
        None => Some(DEFAULT_ROUND_SECONDS),
        Some("none") => None,
        Some(text) => duration("spec.aggregation.roundTimeout", text, findings),
    };
    let field = "spec.aggregation.maxUpdateBytes";
    let max_update_bytes =
        aggregation.max_update_bytes.map_or(Some(DEFAULT_UPDATE_BYTES), |text| {
            let bytes = quantities::parse(&text, 1).filter(|bytes| *bytes > 0);
            if bytes.is_none() {
                let why = "must be a Kubernetes quantity above 0, such as \"512Mi\"";
                invalid(field, &text, why, findings);
            }
            bytes
        });
    let range = (0, 100, DEFAULT_BACKOFF_LIMIT);
    Limits {
        round_timeout_seconds,
        max_update_bytes: max_update_bytes.unwrap_or_default(),
        backoff_limit: whole("spec.backoffLimit", model.spec.backoff_limit, range, findings),
    }
}

/// How many rounds a run has, and with how many workers.
#[derive(Debug, Clone, PartialEq)]
pub struct Rounds {
    /// Number of rounds of the run.
    pub count: u32,
    /// Fewest updates; `None` for the default of the aggregator.
    pub min_workers: Option<u32>,
    /// Seconds that a round with enough updates waits for others; `None` for the default.
    pub grace_seconds: Option<u64>,
    /// How often the deadline of a round with fewer begins again.
    pub max_deadlines: u32,
    /// What happens to a round with fewer updates than `min_workers`.
    pub on_too_few_workers: OnTooFewWorkers,
    /// The share of the workers that take part.
    pub fraction: f64,
    /// The seed of the run.
    pub seed: u64,
}

/// The rounds of a run with these workers.
pub fn rounds(
    model: &TrainingModel,
    workers: &BTreeMap<String, RunWorker>,
    findings: &mut Vec<Finding>,
) -> Rounds {
    let aggregation = aggregation(model);
    let count = u32::try_from(workers.len()).unwrap_or(u32::MAX);
    let given = aggregation.min_workers;
    let min_workers =
        given.map(|_| whole("spec.aggregation.minWorkers", given, (1, 256, 1), findings));
    if let Some(min) = min_workers.filter(|min| count > 0 && *min > count) {
        let message = format!("minWorkers {min} is above the number of training workers ({count})");
        findings.push(Finding::new(Reason::TrainingInvalid, message));
    }
    let grace = aggregation.grace.as_deref();
    let grace_seconds = grace.and_then(|text| duration("spec.aggregation.grace", text, findings));
    let field = "spec.aggregation.maxDeadlines";
    let max_deadlines =
        whole(field, aggregation.max_deadlines, (0, 100, DEFAULT_MAX_DEADLINES), findings);
    let fraction = share("spec.aggregation.fraction", aggregation.fraction, 1.0, findings);
    if fraction <= 0.0 {
        invalid("spec.aggregation.fraction", "0", "must be above 0", findings);
    }
    let seed = aggregation.seed.unwrap_or(1);
    let seed = u64::try_from(seed).unwrap_or_else(|_| {
        invalid("spec.aggregation.seed", &seed.to_string(), "must be 0 or above", findings);
        0
    });
    let range = (1, 10_000, DEFAULT_ROUNDS);
    Rounds {
        count: whole("spec.aggregation.rounds", aggregation.rounds, range, findings),
        min_workers,
        grace_seconds,
        max_deadlines,
        on_too_few_workers: match aggregation.on_too_few_workers.unwrap_or_default() {
            TooFewWorkers::Wait => OnTooFewWorkers::Wait,
            TooFewWorkers::Fail => OnTooFewWorkers::Fail,
        },
        fraction,
        seed,
    }
}

/// Resolves how updates become new weights. What is wrong with it becomes a finding.
pub fn rule(model: &TrainingModel, findings: &mut Vec<Finding>) -> AggregationRule {
    let aggregation = aggregation(model);
    let clip = aggregation.clip.unwrap_or_default();
    let trim = share("spec.aggregation.trim", aggregation.trim, 0.2, findings);
    let is_trimmed = aggregation.strategy == Some(AggregationStrategy::TrimmedMean);
    if is_trimmed && trim >= 0.5 {
        let message = format!("trim {trim} leaves nothing: give less than 0.5");
        findings.push(Finding::new(Reason::TrainingInvalid, message));
    }
    let momentum =
        share("spec.aggregation.serverMomentum", aggregation.server_momentum, 0.0, findings);
    if momentum >= 1.0 {
        invalid("spec.aggregation.serverMomentum", "1", "must be below 1", findings);
    }
    let field = "spec.aggregation.maxWeight";
    let max_weight = share(field, aggregation.max_weight, 0.5, findings);
    if max_weight <= 0.0 {
        invalid(field, "0", "must be above 0", findings);
    }
    let mut above_zero = |field: &str, text: Option<String>, default: f64| {
        let number = decimal(field, text, default, findings);
        if number <= 0.0 {
            invalid(field, "0", "must be above 0", findings);
        }
        number
    };
    AggregationRule {
        trim: is_trimmed.then_some(trim),
        equal_weights: aggregation.weights == Some(UpdateWeights::Equal),
        max_weight,
        clip: Some(above_zero(
            "spec.aggregation.clip.maxNormFactor",
            clip.max_norm_factor,
            DEFAULT_NORM_FACTOR,
        )),
        // Workers with other data must not be left out unless a user asks for it.
        refuse: clip.refuse_norm_factor.map(|text| {
            above_zero("spec.aggregation.clip.refuseNormFactor", Some(text), DEFAULT_NORM_FACTOR)
        }),
        server_learning_rate: above_zero(
            "spec.aggregation.serverLearningRate",
            aggregation.server_learning_rate,
            1.0,
        ),
        server_momentum: momentum,
    }
}

/// Resolves `spec.initialWeights`. What is wrong with it becomes a finding.
pub fn initial(
    model: &TrainingModel,
    facts: &TrainingFacts,
    findings: &mut Vec<Finding>,
) -> Option<InitialWeights> {
    let weights = model.spec.initial_weights.as_ref()?;
    let (url, sha256) = match (&weights.url, &weights.model) {
        (Some(url), None) => (url.clone(), weights.sha256sum.clone()),
        (None, Some(reference)) => {
            let Some(initial) = &facts.initial_model else {
                let output = model.spec.output.as_ref().map(|output| &output.model.name);
                // The first run makes the weights that later runs go on from.
                if output == Some(&reference.name) {
                    return None;
                }
                findings.push(Finding::missing_object(
                    Reason::ModelNotFound,
                    neptune_wire::Resource::Models,
                    model.metadata.namespace.as_deref().unwrap_or_default(),
                    &reference.name,
                    "spec.initialWeights.model.name",
                ));
                return None;
            };
            (initial.spec.model_url.clone(), initial.spec.sha256sum.clone())
        }
        (Some(_), Some(_)) => {
            let message = "give initialWeights.url or initialWeights.model, not both";
            findings.push(Finding::new(Reason::TrainingInvalid, message));
            return None;
        }
        (None, None) => {
            let message =
                "give initialWeights.url with initialWeights.sha256sum, or initialWeights.model";
            findings.push(Finding::new(Reason::TrainingInvalid, message));
            return None;
        }
    };
    let is_web = ["http://", "https://"].iter().any(|scheme| {
        url.strip_prefix(scheme)
            .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['/', '?', '#']))
    });
    match sha256.filter(|sha256| is_digest(sha256)) {
        Some(sha256) if is_web => {
            Some(InitialWeights { url: Some(url), sha256: sha256.to_ascii_lowercase() })
        }
        _ => {
            let message = match &weights.model {
                Some(reference) => format!(
                    "spec.initialWeights.model: Model {:?} must have an http(s) modelUrl and a sha256sum",
                    reference.name
                ),
                None => "spec.initialWeights: url must be http://... or https://..., and needs initialWeights.sha256sum".to_owned(),
            };
            findings.push(Finding::new(Reason::InitialWeightsInvalid, message));
            None
        }
    }
}

/// Resolves how weights are measured. `present` is the digest of the weights that are in use now.
pub fn evaluation(
    model: &TrainingModel,
    facts: &TrainingFacts,
    present: Option<String>,
    findings: &mut Vec<Finding>,
) -> Option<RunEvaluation> {
    let Some(evaluation) = &model.spec.evaluation else {
        if model.spec.early_stop.is_some() {
            let message = "spec.earlyStop needs spec.evaluation: nothing is measured without it";
            findings.push(Finding::new(Reason::TrainingInvalid, message));
        }
        return None;
    };
    let every = whole("spec.evaluation.every", evaluation.every, (1, 10_000, 1), findings);
    if evaluation.metric.is_empty() {
        invalid("spec.evaluation.metric", "", "must be the name of a metric", findings);
    }
    let field = "spec.evaluation.dataset.name";
    let dataset = dataset(model, &evaluation.dataset.name, field, facts, findings)?;
    let node = evaluation.node_name.as_ref().unwrap_or(&dataset.spec.node_name);
    if !check_node(node, "spec.evaluation.nodeName", facts, findings) {
        return None;
    }
    if !is_on(dataset, node) {
        let message = format!(
            "{field}: Dataset {:?} is on node {:?}, not on node {node}; correct spec.evaluation.nodeName",
            dataset.name_any(),
            dataset.spec.node_name
        );
        findings.push(Finding::new(Reason::DatasetElsewhere, message));
        return None;
    }
    Some(RunEvaluation {
        node: node.parse().ok()?,
        dataset: dataset.name_any().parse().ok()?,
        metric: evaluation.metric.clone(),
        minimize: evaluation.mode == Some(MetricMode::Min),
        every,
        present,
    })
}

/// Resolves when a run ends before its last round. What is wrong with it becomes a finding.
pub fn early_stop(model: &TrainingModel, findings: &mut Vec<Finding>) -> Option<EarlyStop> {
    let stop = model.spec.early_stop.as_ref()?;
    let target = stop.target.as_ref().map(|text| {
        let (is_negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text.as_str()),
        };
        let number = decimal("spec.earlyStop.target", Some(digits.to_owned()), 0.0, findings);
        if is_negative { -number } else { number }
    });
    Some(EarlyStop {
        patience: whole("spec.earlyStop.patience", stop.patience, (0, 10_000, 0), findings),
        min_delta: decimal("spec.earlyStop.minDelta", stop.min_delta.clone(), 0.0, findings),
        target,
    })
}

/// Resolves `spec.output`. What is wrong with it becomes a finding.
pub fn output(
    model: &TrainingModel,
    facts: &TrainingFacts,
    findings: &mut Vec<Finding>,
) -> Option<FrozenOutput> {
    let output = model.spec.output.as_ref()?;
    let field = "spec.output.minImprovement";
    let min_improvement = decimal(field, output.min_improvement.clone(), 0.0, findings);
    let owner = model.metadata.name.as_deref().unwrap_or_default();
    findings.extend(facts.output_model.iter().filter_map(|it| output::conflict(it, owner)));
    Some(FrozenOutput { model: output.model.name.clone(), min_improvement })
}

/// The node that runs the aggregator; `None` for a Deployment.
pub fn aggregator_node(
    model: &TrainingModel,
    facts: &TrainingFacts,
    findings: &mut Vec<Finding>,
) -> Option<NodeName> {
    let name = on_node::spec_node(model)?;
    check_node(name, "spec.aggregation.nodeName", facts, findings)
        .then(|| name.parse().ok())
        .flatten()
}

/// How many published weights the aggregator keeps.
pub fn keep(model: &TrainingModel, findings: &mut Vec<Finding>) -> u32 {
    let keep = model.spec.output.as_ref().and_then(|output| output.keep);
    whole("spec.output.keep", keep, (1, 100, DEFAULT_KEEP), findings)
}

fn aggregation(model: &TrainingModel) -> Aggregation {
    model.spec.aggregation.clone().unwrap_or_default()
}
