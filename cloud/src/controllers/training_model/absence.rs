//! Workers that cannot take part, because their Dataset is missing or empty. Pure.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use neptune_api::Dataset;
use neptune_wire::aggregator::{RunWorker, WorkerProblem};

use super::frozen::{CurrentRun, FrozenRun};
use crate::{controllers::dataset::is_on, reason::Reason};

/// How long the first run waits for Datasets that do not exist: they may be created together with the
/// `TrainingModel`.
const START_DELAY: SignedDuration = SignedDuration::from_secs(60);

/// The workers of the run without data, with the cause. Nothing is known if no Dataset exists.
pub fn unavailable(
    current: &CurrentRun,
    datasets: &BTreeMap<String, Arc<Dataset>>,
) -> BTreeMap<String, WorkerProblem> {
    if datasets.is_empty() {
        return BTreeMap::new();
    }
    let workers = current.frozen.settings.workers.iter();
    let problems = workers.filter_map(|(name, worker)| {
        let (reason, message) = problem(worker, datasets)?;
        Some((name.clone(), WorkerProblem { reason: reason.to_string(), message }))
    });
    problems.collect()
}

fn problem(
    worker: &RunWorker,
    datasets: &BTreeMap<String, Arc<Dataset>>,
) -> Option<(Reason, String)> {
    let (name, node) = (&worker.dataset, &worker.node);
    let Some(dataset) = datasets.get(name.as_str()) else {
        let message =
            format!("Dataset {name} does not exist; create it to let the worker take part");
        return Some((Reason::DatasetNotFound, message));
    };
    if !is_on(dataset, node.as_str()) {
        let message = format!(
            "Dataset {name} is on node {}, not on node {node}; the next run trains there",
            dataset.spec.node_name
        );
        return Some((Reason::DatasetElsewhere, message));
    }
    let samples = dataset.status.as_ref()?.number_of_samples?;
    (samples == 0).then(|| {
        let message = format!("Dataset {name} has no sample; add data to let the worker take part");
        (Reason::DatasetEmpty, message)
    })
}

/// The Datasets of the next run's workers that do not exist.
pub fn missing(next: &FrozenRun, datasets: &BTreeMap<String, Arc<Dataset>>) -> Vec<String> {
    let names = next.settings.workers.values().map(|worker| worker.dataset.as_str());
    names.filter(|name| !datasets.contains_key(*name)).map(str::to_owned).collect()
}

/// When the first run starts without Datasets that do not exist.
pub fn start(created: Option<&Time>) -> Option<Timestamp> {
    created?.0.checked_add(START_DELAY).ok()
}
