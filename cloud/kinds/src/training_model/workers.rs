//! Resolves the training workers of a spec to nodes and Datasets. A part of `validate`.

use std::{collections::BTreeMap, sync::Arc};

use kube_core::ResourceExt as _;
use neptune_api::{Dataset, TrainingModel, TrainingWorker};
use neptune_wire::{NodeName, ObjectName, Resource, aggregator::RunWorker};

use super::resolved::TrainingFacts;
use crate::{
    dataset::is_on,
    finding::Finding,
    kubernetes::{
        labels::{EDGE_LABEL, RUNTIME_LABEL, contains},
        node_selector::text,
    },
    reason::Reason,
};

/// The most workers of a run.
pub const MAX_WORKERS: usize = 256;

/// The workers by name. Adds a finding for each invalid entry, and for those without data if no worker
/// has any.
pub fn workers(
    model: &TrainingModel,
    facts: &TrainingFacts,
    findings: &mut Vec<Finding>,
) -> BTreeMap<String, RunWorker> {
    let (mut workers, mut missing) = (BTreeMap::new(), Vec::new());
    for entry in &model.spec.training_workers {
        for (name, worker) in of_entry(model, entry, facts, (findings, &mut missing)) {
            if workers.insert(name.clone(), worker).is_some() {
                let message = format!("duplicate training worker {name:?}; rename one");
                findings.push(Finding::new(Reason::TrainingInvalid, message));
            }
        }
    }
    // The others train without those whose Dataset does not exist yet.
    if workers.values().all(|it| !facts.datasets.contains_key(it.dataset.as_str())) {
        findings.append(&mut missing);
    }
    if workers.len() > MAX_WORKERS {
        let message = format!(
            "spec.trainingWorkers: {} workers match, and a run supports {MAX_WORKERS}; use narrower labels",
            workers.len()
        );
        findings.push(Finding::new(Reason::TooManyWorkers, message));
    }
    workers
}

fn of_entry(
    model: &TrainingModel,
    entry: &TrainingWorker,
    facts: &TrainingFacts,
    (findings, missing): (&mut Vec<Finding>, &mut Vec<Finding>),
) -> Vec<(String, RunWorker)> {
    let field = format!("spec.trainingWorkers[{:?}]", entry.name);
    if entry.node_name.is_some() == entry.node_selector.is_some() {
        let message = format!(
            "{field}: give exactly one of nodeName and nodeSelector for each training worker"
        );
        findings.push(Finding::new(Reason::TrainingInvalid, message));
        return Vec::new();
    }
    if let Some(node) = entry.node_name.as_deref()
        && !check_node(node, &format!("{field}.nodeName"), facts, findings)
    {
        return Vec::new();
    }
    match (&entry.dataset.name, &entry.dataset.match_labels) {
        (Some(name), None) => {
            let field = format!("{field}.dataset.name");
            let Some(dataset) = dataset(model, name, &field, facts, missing) else {
                return absent(entry, name).into_iter().collect();
            };
            if !is_placed(entry, dataset, facts) {
                findings.push(elsewhere(&field, entry, dataset));
                return Vec::new();
            }
            worker(entry, dataset).map(|worker| (entry.name.clone(), worker)).into_iter().collect()
        }
        (None, Some(labels)) if !labels.is_empty() => {
            let selected: Vec<_> = facts
                .datasets
                .values()
                .filter(|dataset| {
                    labels.iter().all(|(name, value)| dataset.labels().get(name) == Some(value))
                })
                .filter(|dataset| is_placed(entry, dataset, facts))
                .filter_map(|dataset| {
                    Some((
                        format!("{}-{}", entry.name, dataset.name_any()),
                        worker(entry, dataset)?,
                    ))
                })
                .collect();
            if selected.is_empty() {
                let message = format!(
                    "{field}: no Dataset with the labels {} is on {}; label a Dataset, or correct dataset.matchLabels",
                    text(labels),
                    place(entry)
                );
                missing.push(Finding::new(Reason::DatasetNotFound, message));
            }
            selected
        }
        _ => {
            let message =
                format!("{field}: give exactly one of dataset.name and dataset.matchLabels");
            findings.push(Finding::new(Reason::TrainingInvalid, message));
            Vec::new()
        }
    }
}

/// The Dataset that `field` names.
pub fn dataset<'a>(
    model: &TrainingModel,
    name: &str,
    field: &str,
    facts: &'a TrainingFacts,
    findings: &mut Vec<Finding>,
) -> Option<&'a Arc<Dataset>> {
    let dataset = facts.datasets.get(name);
    if dataset.is_none() {
        let namespace = model.metadata.namespace.as_deref().unwrap_or_default();
        findings.push(Finding::missing_object(
            Reason::DatasetNotFound,
            Resource::Datasets,
            namespace,
            name,
            field,
        ));
    }
    dataset
}

/// Whether a node that `field` names exists and has an agent.
pub fn check_node(
    name: &str,
    field: &str,
    facts: &TrainingFacts,
    findings: &mut Vec<Finding>,
) -> bool {
    if let Err(error) = name.parse::<NodeName>() {
        findings.push(Finding::new(Reason::NameInvalid, format!("{field}: {error}")));
        return false;
    }
    let Some(node) = facts.nodes.get(name) else {
        findings.push(Finding::missing_node(name, field));
        return false;
    };
    if !node.is_edge {
        let message = format!(
            "{field}: node {name} has neither the label {EDGE_LABEL} nor {}={}; label the node or use an edge node",
            RUNTIME_LABEL.0, RUNTIME_LABEL.1
        );
        findings.push(Finding::new(Reason::NodeNotEdge, message));
        return false;
    }
    true
}

/// Whether a Dataset is on a node of the entry.
fn is_placed(entry: &TrainingWorker, dataset: &Dataset, facts: &TrainingFacts) -> bool {
    let node = &dataset.spec.node_name;
    match (&entry.node_name, &entry.node_selector) {
        (Some(name), _) => is_on(dataset, name),
        (None, Some(labels)) => facts.nodes.get(node).is_some_and(|node| {
            node.is_edge && !labels.is_empty() && contains(&node.labels, labels)
        }),
        (None, None) => false,
    }
}

fn elsewhere(field: &str, entry: &TrainingWorker, dataset: &Dataset) -> Finding {
    let message = format!(
        "{field}: Dataset {:?} is on node {:?}, not on {}; name a Dataset of that node, or correct the node",
        dataset.name_any(),
        dataset.spec.node_name,
        place(entry)
    );
    Finding::new(Reason::DatasetElsewhere, message)
}

fn place(entry: &TrainingWorker) -> String {
    match (&entry.node_name, &entry.node_selector) {
        (Some(name), _) => format!("node {name}"),
        (None, labels) => {
            format!("an edge node with the labels {}", text(&labels.clone().unwrap_or_default()))
        }
    }
}

/// The worker of an entry: on its node, which may have a copy of the data, or where the data is.
fn worker(entry: &TrainingWorker, dataset: &Dataset) -> Option<RunWorker> {
    let name: ObjectName = dataset.name_any().parse().ok()?;
    let node = entry.node_name.as_ref().unwrap_or(&dataset.spec.node_name);
    let samples = dataset.status.as_ref().and_then(|status| status.number_of_samples);
    let samples = samples.and_then(|samples| u64::try_from(samples).ok());
    Some(RunWorker { node: node.parse().ok()?, dataset: name, samples })
}

/// The worker of an entry whose Dataset does not exist yet, if its node is known.
fn absent(entry: &TrainingWorker, dataset: &str) -> Option<(String, RunWorker)> {
    let node = entry.node_name.as_ref()?.parse().ok()?;
    let worker = RunWorker { node, dataset: dataset.parse().ok()?, samples: None };
    Some((entry.name.clone(), worker))
}
