//! Which objects use which models, on which nodes.

use neptune_api::{JointInferenceService, Model};
use neptune_wire::Resource;

use crate::{index_key::IndexKey, kubernetes::labels::has_labels};

/// The key of the objects that use a model.
pub fn used(namespace: &str, model: &str) -> IndexKey {
    IndexKey::Uses(Resource::Models, namespace.to_owned(), model.to_owned())
}

/// The name of the edge worker's model: that of the spec, or the choice in the status.
pub fn used_edge_model(service: &JointInferenceService) -> Option<&str> {
    let model = service.spec.edge_worker.model.as_ref()?;
    let chosen = || service.status.as_ref()?.model.as_deref().map(|chosen| chosen.name.as_str());
    match &model.selector {
        Some(_) => chosen(),
        None => model.name.as_deref(),
    }
}

/// Whether labels select the edge worker's model.
pub fn is_selected(service: &JointInferenceService) -> bool {
    service.spec.edge_worker.model.as_ref().is_some_and(|model| model.selector.is_some())
}

/// Whether the labels of the edge worker's model select this one.
pub fn selects(service: &JointInferenceService, model: &Model) -> bool {
    let selector = service.spec.edge_worker.model.as_ref().and_then(|it| it.selector.as_ref());
    selector.is_some_and(|selector| has_labels(&model.metadata, &selector.match_labels))
}

/// Whether a service that chooses among models reads something else of this one than before. It
/// reads the presence of files from the reports.
pub fn choices_differ(before: &Model, now: &Model) -> bool {
    let evaluated = |model: &Model| {
        let status = model.status.clone().unwrap_or_default();
        let mut conditions = status.conditions.into_iter();
        let evaluated = conditions.find(|condition| condition.type_ == "Evaluated");
        (status.metrics, status.update_time, status.reported_by, evaluated.map(|it| it.status))
    };
    let metadata = |model: &Model| {
        let metadata = &model.metadata;
        (metadata.labels.clone(), metadata.uid.clone(), metadata.deletion_timestamp.is_some())
    };
    metadata(before) != metadata(now)
        || before.spec != now.spec
        || evaluated(before) != evaluated(now)
}

/// The models of both workers.
pub fn models(service: &JointInferenceService) -> impl Iterator<Item = &str> {
    let big = service.spec.cloud_worker.model.as_ref().map(|model| model.name.as_str());
    used_edge_model(service).into_iter().chain(big)
}

/// Whether the edge worker of the service needs the model. A model server gets its model as a version
/// of its `InferenceModel`.
pub fn is_of_edge_worker(service: &JointInferenceService, model: &str) -> bool {
    service.spec.edge_worker.worker_spec.is_some() && used_edge_model(service) == Some(model)
}

/// The nodes that need the model for this service, but for those that only slices list. `is_agent`:
/// whether a node has an agent.
pub fn nodes<'a>(
    service: &'a JointInferenceService,
    model: &str,
    is_agent: impl Fn(&str) -> bool + 'a,
) -> impl Iterator<Item = &'a str> {
    let (edge, cloud) = (&service.spec.edge_worker, &service.spec.cloud_worker);
    let by_edge = is_of_edge_worker(service, model);
    let by_cloud =
        cloud.worker_spec.is_some() && cloud.model.as_ref().is_some_and(|it| it.name == model);
    let status = service.status.iter().filter(|status| status.slices.is_none());
    let selected = status.flat_map(|status| &status.edge_workers);
    let of_edge = edge.node_name.as_deref().into_iter();
    let of_edge = of_edge.chain(selected.map(|worker| worker.node.as_str()));
    let of_cloud = cloud.node_name.as_deref().filter(|_| by_cloud).into_iter();
    of_edge.filter(move |_| by_edge).chain(of_cloud.filter(move |name| is_agent(name)))
}

/// Whether one of the models counts this service differently than before.
pub fn uses_differ(before: Option<&JointInferenceService>, now: &JointInferenceService) -> bool {
    let uses = |service: &JointInferenceService| -> Vec<(String, Vec<String>)> {
        let nodes = |model| nodes(service, model, |_| true).map(str::to_owned).collect();
        models(service).map(|model| (model.to_owned(), nodes(model))).collect()
    };
    before.map(uses) != Some(uses(now))
}

/// The entry of an object in `status.usedBy`.
pub fn entry(kind: Resource, name: &str) -> String {
    format!("{kind}/{name}")
}

#[cfg(test)]
mod tests {
    use kube_core::{Resource as _, ResourceExt as _};
    use neptune_api::{KeyValue, ModelSpec};

    use super::*;

    #[test]
    fn numbers_of_users_and_nodes_change_no_choice() {
        let before = Model::new("m", ModelSpec::default());
        let differs = |change: fn(&mut Model)| {
            let mut now = before.clone();
            change(&mut now);
            choices_differ(&before, &now)
        };
        assert!(!differs(|model| {
            let status = model.status.get_or_insert_default();
            (status.users, status.present_on) = (Some(10_000), Some("1/2".to_owned()));
            model.meta_mut().resource_version = Some("2".to_owned());
        }));
        assert!(differs(|model| model.labels_mut().extend([("app".to_owned(), "a".to_owned())])));
        assert!(differs(|model| "/m.bin".clone_into(&mut model.spec.model_url)));
        assert!(differs(|model| {
            let metric = KeyValue { key: "accuracy".to_owned(), value: "0.9".to_owned() };
            model.status.get_or_insert_default().metrics = vec![metric];
        }));
    }
}
