//! Workers that cannot take part, because their Dataset is missing or empty.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use neptune_api::Dataset;
use neptune_wire::aggregator::{RunWorker, WorkerProblem};

use super::frozen::{CurrentRun, FrozenRun};
use crate::{dataset::is_on, reason::Reason};

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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::training_model::{
        absence,
        fixtures::{self, current, dataset},
        resolved::TrainingFacts,
        validate::{check, validate},
    };

    #[test]
    fn workers_train_without_one_whose_dataset_is_missing() {
        let mut facts = fixtures::facts();
        let (name, counted) = dataset("digits-a", "edge0", &[]);
        let mut counted = Dataset::clone(&counted);
        counted.status = Some(serde_json::from_value(json!({"numberOfSamples": 429})).unwrap());
        facts.datasets.insert(name, Arc::new(counted));
        let known = check(&fixtures::model(), &facts).unwrap();
        assert_eq!(known.settings.workers["a"].samples, Some(429));
        facts.datasets.remove("digits-a");
        let next = check(&fixtures::model(), &facts).unwrap();
        assert_eq!((next.settings.workers.len(), next.settings.workers["a"].samples), (3, None));
        assert_eq!(absence::missing(&next, &facts.datasets), ["digits-a"]);
        let unavailable =
            |facts: &TrainingFacts| absence::unavailable(&current(&next), &facts.datasets);
        let problems = unavailable(&facts);
        assert_eq!(problems.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(problems["a"].reason, "DatasetNotFound");
        let (name, created) = dataset("digits-a", "edge0", &[]);
        facts.datasets.insert(name, created);
        assert_eq!(unavailable(&facts), BTreeMap::new(), "not counted yet");
        let (name, created) = dataset("digits-a", "edge0", &[]);
        let mut empty = Dataset::clone(&created);
        empty.status = Some(serde_json::from_value(json!({"numberOfSamples": 0})).unwrap());
        facts.datasets.insert(name, Arc::new(empty));
        assert_eq!(unavailable(&facts)["a"].reason, "DatasetEmpty");
        let (name, moved) = dataset("digits-a", "edge1", &[]);
        facts.datasets.insert(name, moved);
        assert_eq!(unavailable(&facts)["a"].reason, "DatasetElsewhere");
        facts.datasets.clear();
        assert_eq!(unavailable(&facts), BTreeMap::new(), "nothing is known");
        let mut facts = fixtures::facts();
        assert!(validate(&fixtures::model(), &facts).unwrap().missing.is_empty());
        facts.datasets.remove("digits-a");
        assert_eq!(validate(&fixtures::model(), &facts).unwrap().missing, ["digits-a"]);
    }
}
