//! The target of an `InferenceModel`, and the facts that `validate` reads. Values only.

use std::{collections::BTreeMap, sync::Arc};

use neptune_api::{InferenceModel, InferenceModelStatus, Model};
use neptune_wire::{NodeName, ServedModel, is_label_value};

use crate::{
    kubernetes::{
        container_inputs::ContainerInputs, node_selector::SelectedNodes, node_view::NodeView,
        pod_policy::PodPolicy,
    },
    nodes::sealing::SealKeyState,
    rollout::planned::GrantedNodes,
    worker::{
        config::objects::ConfigObjects, frameworks::Frameworks, needs::NodeOffers, ports::NodePort,
    },
};

/// The annotation that delays a switch to another version while its value is "true".
pub const HOLD_ANNOTATION: &str = "edge.kubeedge.io/hold-upgrade";

/// The inputs of `validate` from the cluster.
#[derive(Debug, Clone)]
pub struct InferenceModelFacts {
    /// The node of `spec.nodeName`, if it exists.
    pub named: Option<Arc<NodeView>>,
    /// The nodes that match `spec.nodeSelector`, if no node is named.
    pub selected: SelectedNodes,
    /// What the agents of these nodes offer; empty if each agent can run the server.
    pub offers: NodeOffers,
    /// The Secrets and `ConfigMap`s that the server refers to, if an agent runs it.
    pub config: ConfigObjects,
    /// The states of the keys to which Secrets are sealed; empty without Secrets.
    pub seal_keys: BTreeMap<NodeName, SealKeyState>,
    /// The framework table, or the error of its `ConfigMap`.
    pub frameworks: Result<Arc<Frameworks>, String>,
    /// The Model of `spec.model`, if it exists.
    pub source: Option<Arc<Model>>,
    /// What the model's Deployment serves, if it exists.
    pub deployed: Option<Deployed>,
    /// The ports of the model that older objects use on nodes.
    pub used_ports: Vec<NodePort>,
    /// What the operator allows in Pods.
    pub pod_policy: PodPolicy,
    /// The image of the proxy before a transformer on a node.
    pub gateway_image: String,
    /// The nodes that may have the present revision, if the model has a rollout.
    pub granted: GrantedNodes,
}

/// The variables, volumes and credentials of the server, as the spec has them.
pub fn container_inputs(model: &InferenceModel) -> ContainerInputs<'_> {
    ContainerInputs::of_server(model.spec.server.as_ref(), &model.spec.image_pull_secrets)
}

/// What the present Deployment serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deployed {
    /// A version of the manifest.
    Version(String),
    /// An image that contains its model.
    Image(String),
}

impl Deployed {
    /// The version or the image, as in the status.
    pub fn into_name(self) -> String {
        let (Self::Version(name) | Self::Image(name)) = self;
        name
    }
}

/// The source of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelOrigin<'a> {
    /// The image contains the model.
    Image(&'a str),
    /// The framework's server serves a version of the manifest.
    Manifest,
    /// The framework's server serves the file of a Model.
    Model,
}

/// The source of the model: `spec.image` if it is set and not empty, or else the Model or the
/// manifest.
pub fn model_origin(model: &InferenceModel) -> ModelOrigin<'_> {
    match model.spec.image.as_deref() {
        None | Some("") if model.spec.model.is_some() => ModelOrigin::Model,
        None | Some("") => ModelOrigin::Manifest,
        Some(image) => ModelOrigin::Image(image),
    }
}

/// The version or image that the servers have to serve. `resolved` is the version of a valid spec;
/// that of a Model is not known without it.
pub fn target<'a>(model: &'a InferenceModel, resolved: Option<&'a ServedModel>) -> Option<&'a str> {
    match model_origin(model) {
        ModelOrigin::Model => resolved.map(|served| served.version.as_str()),
        // While the annotation keeps a Deployment, the resolved version is the kept one.
        ModelOrigin::Image(_) | ModelOrigin::Manifest => target_version(model),
    }
}

/// The target version of the spec, or its image if that contains the model. `None` for the file of a
/// Model, which is no part of the spec.
pub fn target_version(model: &InferenceModel) -> Option<&str> {
    match model_origin(model) {
        ModelOrigin::Image(image) => Some(image),
        ModelOrigin::Model => None,
        ModelOrigin::Manifest => {
            model.spec.target_version.as_deref().filter(|version| !version.is_empty())
        }
    }
}

/// Whether the servers are on more nodes than the status lists. Then the labels alone select them.
pub fn is_on_many(model: &InferenceModel) -> bool {
    model.status.as_ref().is_some_and(|status| status.node_counts.is_some())
}

/// The nodes whose agents run a server, as far as the status lists them.
pub fn nodes_of(status: &InferenceModelStatus) -> impl Iterator<Item = &str> {
    let servers = status.servers.iter().map(|server| server.node.as_str());
    status.node.as_deref().into_iter().chain(servers)
}

/// Returns whether the annotation prevents the switch to the target version.
pub fn hold(model: &InferenceModel) -> bool {
    let annotations = model.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(HOLD_ANNOTATION)).is_some_and(|value| value == "true")
}

/// Formats a version or an image for messages.
pub fn named(version: Option<&str>) -> String {
    match version {
        None => "the model".to_owned(),
        Some(version) if is_label_value(version) => format!("version {version}"),
        Some(image) => format!("image {image}"),
    }
}

#[cfg(test)]
mod tests {
    use neptune_api::ModelReference;

    use super::*;
    use crate::inference_model::fixtures;

    #[test]
    fn target_is_that_of_the_spec_or_else_the_version_of_the_model_object() {
        let resolved = ServedModel {
            version: "2cf24dba5fb0".to_owned(),
            url: "http://h/m".to_owned(),
            sha256: None,
            mirrors: Vec::new(),
            directory: "/models".to_owned(),
        };
        let mut model = fixtures::model();
        assert_eq!(target(&model, Some(&resolved)), Some("4"), "a held version is no target");
        model.spec.image = Some("mine:1".to_owned());
        assert_eq!(target(&model, None), Some("mine:1"));
        model.spec.image = None;
        model.spec.model = Some(ModelReference { name: "small".to_owned() });
        assert_eq!(target(&model, Some(&resolved)), Some("2cf24dba5fb0"));
        assert_eq!(target(&model, None), None);
    }
}
