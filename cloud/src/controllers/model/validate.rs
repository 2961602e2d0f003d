//! Whether a model can be fetched and checked. Pure.

use neptune_api::Model;

use crate::{finding::Finding, reason::Reason, worker::model_source::ModelSource};

/// Where the model is.
///
/// # Errors
/// What stands in the way of every worker that names it.
pub fn validate(model: &Model) -> Result<ModelSource, Finding> {
    let name = model.metadata.name.as_deref().unwrap_or_default();
    let source = model.spec.model_url.parse().map_err(|error| {
        Finding::new(
            Reason::ModelUrlInvalid,
            format!(
                "spec.modelUrl {:?} of Model {name}: {error}; write http://..., https://..., file:///... or an absolute path on the node",
                model.spec.model_url
            ),
        )
    })?;
    if let Some(digest) = &model.spec.sha256sum
        && (digest.len() != 64 || !digest.bytes().all(|b| b.is_ascii_hexdigit()))
    {
        return Err(Finding::new(
            Reason::ModelDigestInvalid,
            format!(
                "spec.sha256sum {digest:?} of Model {name} must be 64 hex digits, as sha256sum prints them"
            ),
        ));
    }
    Ok(source)
}
