//! What the spec of an `InferenceModel` wants to serve, and the facts that `validate` reads. Values only. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use neptune_api::InferenceModel;

use crate::worker::frameworks::Frameworks;

/// The annotation that delays a switch to another version while its value is "true".
pub const HOLD_ANNOTATION: &str = "edge.kubeedge.io/hold-upgrade";

/// What the cluster has of what a model names.
#[derive(Debug, Clone)]
pub struct InferenceModelFacts {
    /// The node of spec.nodeName.
    pub named: Option<Arc<Node>>,
    /// The nodes that have all labels of spec.nodeSelector, by name.
    pub selected: Vec<Arc<Node>>,
    /// The tables, or what is wrong with the `ConfigMap`.
    pub frameworks: Result<Arc<Frameworks>, String>,
    /// What the model's Deployment has, if there is one.
    pub deployed: Option<Deployed>,
    /// Older models with the same port that a node's agent serves: their nodes and names.
    pub same_port: Vec<(String, String)>,
}

/// What a Deployment serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deployed {
    /// A version of the manifest.
    Version(String),
    /// An image that brings its model.
    Image(String),
}

impl Deployed {
    /// The version or the image, as a status names it.
    pub fn into_name(self) -> String {
        let (Self::Version(name) | Self::Image(name)) = self;
        name
    }
}

/// What provides the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode<'a> {
    /// An image contains it.
    Image(&'a str),
    /// The framework's server serves a version of the manifest.
    Manifest,
}

/// What provides the model: an image, if one is given and not empty.
pub fn mode(model: &InferenceModel) -> Mode<'_> {
    match model.spec.image.as_deref() {
        None | Some("") => Mode::Manifest,
        Some(image) => Mode::Image(image),
    }
}

/// The target version of the spec, or its image.
pub fn target_version(model: &InferenceModel) -> Option<&str> {
    match mode(model) {
        Mode::Image(image) => Some(image),
        Mode::Manifest => {
            model.spec.target_version.as_deref().filter(|version| !version.is_empty())
        }
    }
}

/// Whether the annotation holds a switch.
pub fn hold(model: &InferenceModel) -> bool {
    let annotations = model.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(HOLD_ANNOTATION)).is_some_and(|value| value == "true")
}

/// The length of a version: it is the value of a label too.
pub const MAX_VERSION: usize = 63;

/// Whether a text can be a directory's name, a part of an argument and a label's value.
pub fn is_plain(text: &str) -> bool {
    let at_the_ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= MAX_VERSION
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
        && at_the_ends(text.chars().next())
        && at_the_ends(text.chars().next_back())
}

/// A version, or an image, for people.
pub fn named(version: Option<&str>) -> String {
    match version {
        None => "the model".to_owned(),
        Some(version) if is_plain(version) => format!("version {version}"),
        Some(image) => format!("image {image}"),
    }
}
