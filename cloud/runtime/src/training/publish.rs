//! Writes weights into the output Model with server-side apply. A repetition changes nothing.

use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams},
};
use neptune_api::Model;
use neptune_cloud_kinds::{
    finding::Finding,
    reason::Reason,
    training_model::output::{OWNER_ANNOTATION, conflict},
};
use serde_json::{Value, json};

use super::Publication;
use crate::error::text;

/// The field manager of the Model's address and digest.
const FIELD_MANAGER: &str = "neptune-training";

/// Writes the weights into the Model, which is created if it does not exist.
///
/// # Errors
/// The Model belongs to another `TrainingModel`, or the API server rejects the change.
pub async fn publish(
    client: &Client,
    namespace: &str,
    publication: &Publication,
) -> Result<(), Finding> {
    let Publication { model, owner, .. } = publication;
    let api: Api<Model> = Api::namespaced(client.clone(), namespace);
    let existing = api.get_opt(model).await.map_err(|error| failed(model, &error))?;
    if let Some(finding) = existing.as_ref().and_then(|existing| conflict(existing, owner)) {
        return Err(finding);
    }
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let patch = Patch::Apply(patch(existing.as_ref(), publication));
    let patched = api.patch(model, &params, &patch).await.map_err(|error| failed(model, &error))?;
    tracing::info!(
        model,
        sha256 = publication.sha256,
        version = patched.resource_version(),
        "weights published"
    );
    Ok(())
}

/// The version prevents a change of a Model that another `TrainingModel` takes meanwhile.
fn patch(existing: Option<&Model>, publication: &Publication) -> Value {
    let Publication { model, owner, url, sha256, format } = publication;
    let mut patch = json!({
        "apiVersion": "edgeai.io/v1alpha1",
        "kind": "Model",
        "metadata": {"name": model, "annotations": {OWNER_ANNOTATION: owner}},
        "spec": {"modelUrl": url, "sha256sum": sha256},
    });
    if let Some(format) = format {
        patch["spec"]["format"] = format.as_str().into();
    }
    if let Some(version) = existing.and_then(kube::ResourceExt::resource_version) {
        patch["metadata"]["resourceVersion"] = version.into();
    }
    patch
}

fn failed(model: &str, error: &kube::Error) -> Finding {
    let why = text(error);
    Finding::new(Reason::Publishing, format!("cannot write Model {model:?}: {why}; retrying"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn publication() -> Publication {
        Publication {
            model: "digits-small".to_owned(),
            owner: "digits".to_owned(),
            url: "http://h:8418/v1/content/ab".to_owned(),
            sha256: "ab".repeat(32),
            format: Some("npz".to_owned()),
        }
    }

    fn model(owner: Option<&str>) -> Model {
        let annotations = owner.map(|owner| json!({OWNER_ANNOTATION: owner}));
        serde_json::from_value(json!({
            "apiVersion": "edgeai.io/v1alpha1", "kind": "Model", "spec": {},
            "metadata": {"name": "digits-small", "resourceVersion": "7", "annotations": annotations},
        }))
        .unwrap()
    }

    #[test]
    fn model_of_another_training_is_a_conflict() {
        assert_eq!(conflict(&model(None), "digits"), None);
        assert_eq!(conflict(&model(Some("digits")), "digits"), None);
        let finding = conflict(&model(Some("other")), "digits").unwrap();
        assert_eq!(finding.reason, Reason::OutputConflict);
        assert_eq!(
            finding.message,
            "Model \"digits-small\" belongs to TrainingModel \"other\"; name another output"
        );
    }

    #[test]
    fn patch_has_only_the_fields_of_the_weights() {
        let fields = patch(Some(&model(None)), &publication());
        assert_eq!(fields["metadata"]["resourceVersion"], "7");
        assert_eq!(
            fields["spec"],
            json!({"modelUrl": "http://h:8418/v1/content/ab", "sha256sum": "ab".repeat(32),
                "format": "npz"})
        );
        let created = patch(None, &Publication { format: None, ..publication() });
        assert!(created["metadata"].get("resourceVersion").is_none());
        assert!(created["spec"].get("format").is_none());
    }
}
