//! The Model into which a `TrainingModel` publishes, and whether it belongs to another one.

use kube_core::ResourceExt as _;
use neptune_api::Model;

use crate::{finding::Finding, reason::Reason};

/// The annotation of a Model that names the `TrainingModel` that publishes into it.
pub const OWNER_ANNOTATION: &str = "neptune.io/trainingmodel";

/// The name of the `TrainingModel` that publishes into a Model.
pub fn owner(model: &Model) -> Option<&str> {
    model.annotations().get(OWNER_ANNOTATION).map(String::as_str)
}

/// The finding if a Model belongs to another `TrainingModel`.
pub fn conflict(model: &Model, owner: &str) -> Option<Finding> {
    let held = self::owner(model).filter(|held| *held != owner)?;
    let message = format!(
        "Model {:?} belongs to TrainingModel {held:?}; name another output",
        model.name_any()
    );
    Some(Finding::new(Reason::OutputConflict, message))
}
