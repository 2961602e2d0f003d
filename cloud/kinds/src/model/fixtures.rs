//! Test fixtures of the pure steps of the Model controller.

use std::sync::Arc;

use neptune_api::{Model, ModelSpec};

use crate::kubernetes::{
    labels::EDGE_LABEL,
    node_view::{NodeView, node_view},
};

/// Returns the Model `default/small` with this spec.
pub fn model(spec: ModelSpec) -> Model {
    let mut model = Model::new("small", spec);
    model.metadata.namespace = Some("default".to_owned());
    model.metadata.uid = Some("uid-of-small".to_owned());
    model.metadata.generation = Some(1);
    model
}

/// A node with or without the label of edge nodes.
pub fn node(name: &str, is_edge: bool) -> Arc<NodeView> {
    let labels: &[_] = if is_edge { &[(EDGE_LABEL, "")] } else { &[] };
    Arc::new(node_view(name, labels))
}
