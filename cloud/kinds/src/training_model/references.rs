//! The objects and nodes that a `TrainingModel` refers to, as index keys.

use std::collections::BTreeSet;

use neptune_api::TrainingModel;
use neptune_wire::{NodeName, ObjectName, Resource};

use super::{frozen::CurrentRun, on_node};
use crate::{
    index_key::{IndexKey, Indexed, selector_keys},
    kubernetes::labels::Labels,
};

impl Indexed for TrainingModel {
    fn index_keys(&self) -> Vec<IndexKey> {
        let namespace = self.metadata.namespace.clone().unwrap_or_default();
        let spec = &self.spec;
        let uses =
            |resource, name: &str| IndexKey::Uses(resource, namespace.clone(), name.to_owned());
        let initial = spec.initial_weights.iter().filter_map(|it| it.model.as_ref());
        let output = spec.output.iter().map(|output| &output.model);
        let models = initial.chain(output).map(|model| uses(Resource::Models, &model.name));
        let current = self.status.as_ref().and_then(CurrentRun::from_status);
        let of_run = current.iter().flat_map(|current| current.frozen.datasets());
        let datasets: BTreeSet<&str> =
            used_datasets(self).chain(of_run.map(ObjectName::as_str)).collect();
        let datasets = datasets.into_iter().map(|name| uses(Resource::Datasets, name));
        // A change of the node of a Dataset enqueues the trainings of the Dataset.
        let of_run = current.iter().flat_map(|current| {
            current.frozen.nodes().into_iter().chain(&current.frozen.aggregator_node)
        });
        let named = spec.training_workers.iter().filter_map(|it| it.node_name.as_deref());
        let named = named.chain(spec.evaluation.iter().filter_map(|it| it.node_name.as_deref()));
        let nodes = of_run.map(NodeName::as_str).chain(on_node::spec_node(self)).chain(named);
        let nodes: BTreeSet<&str> = nodes.collect();
        let nodes = nodes.into_iter().map(|node| IndexKey::Node(node.to_owned()));
        let any = is_external(self).then_some(IndexKey::CloudNodes);
        any.into_iter().chain(nodes).chain(models).chain(datasets).collect()
    }
    fn selector_keys(&self) -> Vec<Vec<IndexKey>> {
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        let key =
            |name, value| IndexKey::Selects(Resource::Datasets, namespace.to_owned(), name, value);
        selectors(self).map(|labels| selector_keys(labels, key)).collect()
    }
}

/// The names of the Datasets that the spec uses.
pub fn used_datasets(model: &TrainingModel) -> impl Iterator<Item = &str> {
    let spec = &model.spec;
    let workers = spec.training_workers.iter().filter_map(|worker| worker.dataset.name.as_deref());
    let evaluation = spec.evaluation.iter().map(|it| it.dataset.name.as_str());
    let scheduled = spec.schedule.iter().filter_map(|it| it.dataset.as_ref());
    workers.chain(evaluation).chain(scheduled.map(|dataset| dataset.name.as_str()))
}

/// The labels by which workers select Datasets.
pub fn selectors(model: &TrainingModel) -> impl Iterator<Item = &Labels> {
    model.spec.training_workers.iter().filter_map(|worker| worker.dataset.match_labels.as_ref())
}

/// Whether the Service has an address outside the cluster, which may be that of any node.
pub fn is_external(model: &TrainingModel) -> bool {
    let service = model.spec.aggregation.as_ref().and_then(|it| it.service.as_ref());
    let given = service.and_then(|service| service.address.as_ref());
    let type_ = service.and_then(|service| service.type_).unwrap_or_default();
    given.is_none() && type_ != neptune_api::AggregatorServiceType::ClusterIP
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::training_model::fixtures::with;

    #[test]
    fn training_is_found_by_the_datasets_that_it_names_and_selects() {
        let model = with(&json!({"schedule": {"dataset": {"name": "new-digits"}}}));
        let keys = model.index_keys();
        let datasets = ["digits-a", "digits-test", "new-digits"];
        assert_eq!(used_datasets(&model).collect::<BTreeSet<_>>(), datasets.into());
        for name in datasets {
            let key = IndexKey::Uses(Resource::Datasets, "default".to_owned(), name.to_owned());
            assert!(keys.contains(&key), "{name}: {keys:?}");
        }
        let [namespace, label, value] = ["default", "app", "digits"].map(str::to_owned);
        let selected = IndexKey::Selects(Resource::Datasets, namespace, label, value);
        assert_eq!(model.selector_keys(), [[selected]]);
    }
}
