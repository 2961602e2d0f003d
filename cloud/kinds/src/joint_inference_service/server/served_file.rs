//! Decides under which name and version an owned model server serves the file of a Model. A part of
//! `validate`.

use neptune_api::{InferenceModel, JointInferenceService, Model};
use neptune_wire::{ArtifactAddress, Role};
use sha2::{Digest as _, Sha256};

use crate::model::is_selected;

/// The name under which an owned server of the edge serves its model. One name for all models that
/// labels select, so that clients do not notice a switch.
pub fn served_name(service: &JointInferenceService) -> Option<String> {
    if is_selected(service) {
        return service.metadata.name.clone();
    }
    service.spec.edge_worker.model.as_ref()?.name.clone()
}

/// The version of the model's file, a whole number as servers require. A file keeps its version
/// when other parts of the Model change.
pub fn version(
    service: &JointInferenceService,
    role: Role,
    model: &Model,
    existing: Option<&InferenceModel>,
) -> String {
    if role == Role::Edge && is_selected(service) {
        return file_version(model);
    }
    let generation = u64::try_from(model.metadata.generation.unwrap_or(1).max(1)).unwrap_or(1);
    let Some(before) = existing.and_then(|existing| existing.spec.manifest.first()) else {
        return generation.to_string();
    };
    let known = before.version.clone().unwrap_or_default();
    let is_same = before.download_url.as_deref() == Some(&download_url(model))
        && before.sha256sum == digest(model);
    if is_same && !known.is_empty() {
        return known;
    }
    // Another Model may have the same generation.
    let next = known.parse::<u64>().map_or(1, |known| known.saturating_add(1));
    generation.max(next).to_string()
}

/// The version of a file among those of several Models: 48 bits of a hash of the Model and its file.
pub fn file_version(model: &Model) -> String {
    let uid = model.metadata.uid.as_deref().unwrap_or_default();
    let parts = [uid, &download_url(model), &digest(model).unwrap_or_default()].join("\n");
    let hash = Sha256::digest(parts);
    let bytes = hash.iter().take(6);
    bytes.fold(0u64, |number, byte| number << 8 | u64::from(*byte)).max(1).to_string()
}

/// The address of the file, as an `InferenceModel` writes it.
pub fn download_url(model: &Model) -> String {
    let url = crate::model::address_text(&model.spec);
    match url.parse() {
        Ok(ArtifactAddress::Path(path)) => format!("file://{path}"),
        _ => url,
    }
}

/// The digest of the file.
pub fn digest(model: &Model) -> Option<String> {
    model.spec.sha256sum.as_deref().map(|sum| sum.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use neptune_api::{EdgeModel, InferenceModelFile, InferenceModelSpec, ModelSelector};

    use super::*;
    use crate::joint_inference_service::fixtures;

    fn model(change: impl FnOnce(&mut Model)) -> Model {
        let mut model = Arc::unwrap_or_clone(fixtures::model("small", "http://h/small.gguf"));
        model.metadata.uid = Some("uid-of-small".to_owned());
        model.metadata.generation = Some(3);
        change(&mut model);
        model
    }

    #[test]
    fn version_changes_with_the_file_and_not_with_other_parts_of_the_model() {
        let service = fixtures::assistant();
        let version_of = |model: &Model, existing: Option<&InferenceModel>| {
            version(&service, Role::Edge, model, existing)
        };
        let first = model(|_| ());
        assert_eq!(version_of(&first, None), "3");
        let spec = InferenceModelSpec {
            manifest: vec![InferenceModelFile {
                version: Some("2".to_owned()),
                download_url: Some(download_url(&first)),
                files: Vec::new(),
                sha256sum: digest(&first),
                mirrors: Vec::new(),
            }],
            ..InferenceModelSpec::default()
        };
        let existing = InferenceModel::new("assistant-edge", spec);
        assert_eq!(version_of(&first, Some(&existing)), "2", "only the placement changed");
        let other = model(|model| model.spec.sha256sum = Some("ab".repeat(32)));
        assert_eq!(version_of(&other, Some(&existing)), "3");
        let other = model(|model| model.spec.model_url = "http://h/other.gguf".to_owned());
        assert_eq!(version_of(&other, Some(&existing)), "3");
        let another = model(|model| {
            model.spec.model_url = "http://h/another.gguf".to_owned();
            model.metadata.generation = Some(1);
        });
        assert_eq!(version_of(&another, Some(&existing)), "3", "above the version that is served");
    }

    #[test]
    fn selected_models_have_versions_of_their_own_under_one_name() {
        let mut service = fixtures::assistant();
        assert_eq!(served_name(&service).as_deref(), Some("smollm2"));
        let match_labels = [("app".to_owned(), "digits".to_owned())].into();
        service.spec.edge_worker.model = Some(EdgeModel {
            selector: Some(ModelSelector { match_labels }),
            best: Some("accuracy".to_owned()),
            ..EdgeModel::default()
        });
        assert_eq!(served_name(&service), service.metadata.name);
        let first = model(|_| ());
        let version_of = |model: &Model| version(&service, Role::Edge, model, None);
        assert_eq!(version_of(&first), file_version(&first));
        assert!(
            version_of(&first).parse::<i64>().is_ok_and(|number| number > 0),
            "{}",
            version_of(&first)
        );
        let placed = model(|model| {
            model.spec.placement = Some(Box::default());
            model.metadata.generation = Some(9);
        });
        assert_eq!(version_of(&placed), version_of(&first));
        let others = [
            model(|model| model.metadata.uid = Some("another".to_owned())),
            model(|model| model.spec.model_url.push('x')),
            model(|model| model.spec.sha256sum = Some("cd".repeat(32))),
        ];
        for other in others {
            assert_ne!(version_of(&other), version_of(&first));
        }
    }
}
