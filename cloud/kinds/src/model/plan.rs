//! The plan of a model: the nodes of its placement get it, as the nodes of its users do.

use std::sync::Arc;

use neptune_api::{Model, ModelSpec};
use neptune_wire::{ModelContent, NodeName, ObjectContent, ObjectKey};

use super::{mirrors, validate::address_text};
use crate::{
    fleet::{Retained, encode_contents},
    kubernetes::identity::{self, key, shared_metadata},
    steps::ObjectPlan,
};

/// The plan of a model on the nodes of its placement.
pub fn plan(model: &Model, nodes: &[NodeName]) -> ObjectPlan {
    let Some(key) = key(model) else { return ObjectPlan::default() };
    if nodes.is_empty() {
        return ObjectPlan::default();
    }
    let contents = encode_contents([(key.clone(), content(model, &key))].into());
    let requirements = nodes.iter().map(|node| (node.clone(), Arc::clone(&contents))).collect();
    ObjectPlan { requirements, ..ObjectPlan::default() }
}

/// The content for a node. Each service that uses the model there plans the same content. The parts
/// of the spec that mean nothing to a node are left out, so that their changes do not reach it.
pub fn content(model: &Model, key: &ObjectKey) -> ObjectContent {
    let spec = ModelSpec { placement: None, metadata: None, ..model.spec.clone() };
    ObjectContent {
        model: Some(Box::new(ModelContent {
            url: address_text(&model.spec),
            format: model.spec.format.clone(),
            sha256: model.spec.sha256sum.as_deref().map(str::to_ascii_lowercase),
            mirrors: mirrors::addresses(&model.spec.mirrors, &model.spec.files),
        })),
        ..identity::content::<Model>(shared_metadata(model, key), &spec)
    }
}

/// The objects that the nodes of the placement retain while the model is invalid.
pub fn retained(key: &ObjectKey, nodes: &[NodeName]) -> Retained {
    let keys = Arc::new([key.clone()].into());
    nodes.iter().map(|node| (node.clone(), Arc::clone(&keys))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::ModelPlacement;
    use serde_json::json;

    use super::*;
    use crate::model::fixtures::model;

    #[test]
    fn nodes_get_the_model_without_its_placement_and_metadata() {
        let spec = ModelSpec {
            model_url: "http://h/small.json".to_owned(),
            format: "json".to_owned(),
            sha256sum: Some("aB".repeat(32)),
            placement: Some(Box::default()),
            metadata: Some(Box::default()),
            ..ModelSpec::default()
        };
        let placed = model(spec.clone());
        let nodes: Vec<NodeName> = ["edge0", "edge1"].map(|node| node.parse().unwrap()).into();
        let plan = plan(&placed, &nodes);
        assert_eq!(plan.requirements.keys().collect::<Vec<_>>(), nodes.iter().collect::<Vec<_>>());
        let key: ObjectKey = "default/models/small".parse().unwrap();
        let content = plan.requirements[&nodes[0]][&key].content();
        assert_eq!(
            serde_json::to_value(&content).unwrap(),
            json!({
                "apiVersion": "edgeai.io/v1alpha1", "kind": "Model",
                "metadata": {"namespace": "default", "name": "small", "uid": "uid-of-small"},
                "spec": {"modelUrl": "http://h/small.json", "format": "json", "sha256sum": "aB".repeat(32)},
                "model": {"url": "http://h/small.json", "format": "json", "sha256": "ab".repeat(32)},
            })
        );
        let elsewhere =
            ModelPlacement { node_names: vec!["a".into()], ..ModelPlacement::default() };
        let elsewhere = model(ModelSpec { placement: Some(Box::new(elsewhere)), ..spec });
        assert_eq!(super::content(&elsewhere, &key).hash(), content.hash());
        assert_eq!(super::plan(&placed, &[]), ObjectPlan::default());
        assert_eq!(
            retained(&key, &nodes[..1]),
            [(nodes[0].clone(), Arc::new([key].into()))].into()
        );
    }
}
