//! Decides which downloads do not wait for a window: those without which something cannot run.

use std::collections::{BTreeMap, BTreeSet};

use neptune_wire::ObjectKey;

use crate::{
    desired::{Desired, ModelSource, WantedWorker, dataset::DataSource},
    domain::{
        artifact::{ArtifactSource, Availability},
        rollout::RolloutState,
    },
};

/// What the node has and runs.
pub struct NodeInUse<'a> {
    pub models: &'a BTreeMap<ObjectKey, Availability>,
    pub datasets: &'a BTreeMap<ObjectKey, Availability>,
    /// The rollouts of the model servers.
    pub rollouts: BTreeMap<&'a ObjectKey, &'a RolloutState>,
    /// The workers that run, with whichever inputs they have.
    pub is_running: &'a dyn Fn(&WantedWorker) -> bool,
}

/// The sources without which a worker, a model server or a training task cannot run.
///
/// The others wait: updates of what runs with an earlier version, models that are only placed on
/// the node, and datasets that are only counted.
pub fn urgent_sources(desired: &Desired, node: &NodeInUse<'_>) -> BTreeSet<ArtifactSource> {
    let waiting = || desired.workers.values().filter(|worker| !(node.is_running)(worker));
    let models = waiting().filter_map(|worker| model(desired, node, worker.model.as_ref()?));
    let datasets = waiting().filter_map(|worker| worker.dataset.as_ref());
    let datasets = datasets.chain(desired.training.tasks.values().map(|task| &task.dataset));
    let datasets = datasets.filter_map(|key| dataset(desired, node, key));
    let servers = desired.servers.keys().flat_map(|key| server(desired, node, key));
    let scripts = desired.training.script_sources();
    models.chain(datasets).chain(servers).chain(scripts).collect()
}

fn model(desired: &Desired, node: &NodeInUse<'_>, key: &ObjectKey) -> Option<ArtifactSource> {
    let is_usable = node.models.get(key).is_some_and(|model| model.usable.is_some());
    match &desired.models.get(key)?.source {
        Ok(ModelSource::Remote(source)) if !is_usable => Some(source.clone()),
        Ok(ModelSource::Remote(_) | ModelSource::Local(_)) | Err(_) => None,
    }
}

fn dataset(desired: &Desired, node: &NodeInUse<'_>, key: &ObjectKey) -> Option<ArtifactSource> {
    let is_usable = node.datasets.get(key).is_some_and(|dataset| dataset.usable.is_some());
    match &desired.datasets.get(key)?.source {
        Ok(DataSource::Remote(source)) if !is_usable => Some(source.clone()),
        Ok(DataSource::Remote(_) | DataSource::Local(_) | DataSource::Replica(_)) | Err(_) => None,
    }
}

/// The versions that a server runs or returns to, and its target if no version has passed its
/// trial.
fn server(desired: &Desired, node: &NodeInUse<'_>, key: &ObjectKey) -> Vec<ArtifactSource> {
    let rollout = node.rollouts.get(key);
    let has_good = rollout.is_some_and(|rollout| rollout.last_good.is_some());
    let target = desired.servers.get(key).filter(|server| !has_good && server.refusal.is_none());
    let target = target.map(|server| &*server.serving);
    let kept = rollout.into_iter().flat_map(|rollout| rollout.kept_versions());
    let versions = kept.map(|version| &version.serving).chain(target);
    let models = versions.filter_map(|serving| serving.model.as_ref());
    models.map(|model| ArtifactSource::from_model(&key.namespace, model)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::{ContentHash, DatasetReason};

    use super::*;
    use crate::{
        desired::{WantedDataset, WantedModel, WantedServer, dataset::DatasetProblem},
        fixtures::{local_file, model_key, served_version, serving, wanted_worker},
    };

    fn source(url: &str) -> ArtifactSource {
        ArtifactSource { namespace: "default".parse().unwrap(), url: url.into(), sha256: None }
    }

    fn present() -> Availability {
        Availability { usable: Some(local_file("/m")), ..Availability::default() }
    }

    /// The URLs of the urgent sources. `with_model`: whether a version of the model is there.
    fn urgent(
        desired: &Desired,
        with_model: bool,
        is_running: bool,
        rollout: Option<(&ObjectKey, &RolloutState)>,
    ) -> Vec<String> {
        let models = with_model.then(|| (model_key(), present())).into_iter().collect();
        let node = NodeInUse {
            models: &models,
            datasets: &BTreeMap::new(),
            rollouts: rollout.into_iter().collect(),
            is_running: &|_| is_running,
        };
        urgent_sources(desired, &node).into_iter().map(|source| source.url).collect()
    }

    fn with_model() -> Desired {
        let model = WantedModel {
            source: Ok(ModelSource::Remote(source("http://h/m"))),
            shown_url: "http://h/m".into(),
            sha256: None,
            mirrors: Vec::new(),
            content_key: String::new(),
        };
        let mut desired = Desired::default();
        desired.models.insert(model_key(), model);
        desired
    }

    #[test]
    fn model_is_urgent_only_if_a_worker_cannot_start_without_it() {
        let placed = with_model();
        assert_eq!(urgent(&placed, false, false, None), Vec::<String>::new());
        let mut used = placed;
        let worker = wanted_worker();
        used.workers.insert(worker.worker.name.clone(), worker);
        for (with_model, is_running, expected) in [
            (false, false, &["http://h/m"][..]),
            (false, true, &[]),
            (true, false, &[]),
            (true, true, &[]),
        ] {
            let urls = urgent(&used, with_model, is_running, None);
            assert_eq!(urls, expected, "{with_model} {is_running}");
        }
    }

    #[test]
    fn dataset_is_urgent_only_if_a_worker_cannot_start_without_it() {
        let key: ObjectKey = "default/datasets/d".parse().unwrap();
        let problem = || DatasetProblem::new(DatasetReason::UnknownFormat, "");
        let dataset = WantedDataset {
            uid: "u".into(),
            content: ContentHash::compute(&"d"),
            format: String::new(),
            replicas: BTreeSet::new(),
            source: Ok(DataSource::Remote(source("http://h/d"))),
            counting: Err(problem()),
        };
        let mut desired = Desired::default();
        desired.datasets.insert(key.clone(), dataset);
        assert_eq!(urgent(&desired, false, false, None), Vec::<String>::new(), "only counted");
        let worker = WantedWorker { model: None, dataset: Some(key), ..wanted_worker() };
        desired.workers.insert(worker.worker.name.clone(), worker);
        assert_eq!(urgent(&desired, false, false, None), ["http://h/d"]);
        assert_eq!(urgent(&desired, false, true, None), Vec::<String>::new(), "it runs");
    }

    #[test]
    fn version_of_a_server_is_urgent_until_one_has_passed_its_trial() {
        let key: ObjectKey = "default/inferencemodels/i".parse().unwrap();
        let server = WantedServer {
            uid: "u".into(),
            serving: Box::new(serving("2", "watch")),
            refusal: None,
        };
        let mut desired = Desired::default();
        desired.servers.insert(key.clone(), server);
        let version = || Some(served_version("1", "watch"));
        let on_trial = RolloutState { current: version(), ..RolloutState::default() };
        let good = RolloutState { last_good: version(), ..on_trial.clone() };
        for (rollout, expected) in [
            (RolloutState::default(), &["http://h/2.tar"][..]),
            (on_trial, &["http://h/1.tar", "http://h/2.tar"]),
            (good, &["http://h/1.tar"]),
        ] {
            assert_eq!(urgent(&desired, false, false, Some((&key, &rollout))), expected);
        }
        assert_eq!(urgent(&desired, false, false, None), ["http://h/2.tar"]);
    }
}
