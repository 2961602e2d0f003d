//! Test fixtures of the pure steps of the Model controller.

use std::sync::Arc;

use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use neptune_api::{Model, ModelSpec};

use crate::kubernetes::labels::EDGE_LABEL;

/// Returns the Model `default/small` with this spec.
pub fn model(spec: ModelSpec) -> Model {
    let mut model = Model::new("small", spec);
    model.metadata.namespace = Some("default".to_owned());
    model.metadata.uid = Some("uid-of-small".to_owned());
    model.metadata.generation = Some(1);
    model
}

/// A node with or without the label of edge nodes.
pub fn node(name: &str, is_edge: bool) -> Arc<Node> {
    let labels = is_edge.then(|| [(EDGE_LABEL.to_owned(), String::new())].into());
    let name = Some(name.to_owned());
    Arc::new(Node {
        metadata: ObjectMeta { name, labels, ..ObjectMeta::default() },
        ..Node::default()
    })
}
