//! Validates the URL and the digest of a model.

use neptune_api::Model;
use neptune_wire::{AddressError, ArtifactAddress, redact};

use crate::{finding::Finding, kubernetes::secrets::check_name, reason::Reason};

/// Returns the source of the model.
///
/// # Errors
/// The finding, which every service that uses the model reports too.
pub fn validate(model: &Model) -> Result<ArtifactAddress, Finding> {
    let name = model.metadata.name.as_deref().unwrap_or_default();
    let address = model.spec.model_url.parse().map_err(|error: AddressError| {
        Finding::new(
            Reason::ModelUrlInvalid,
            format!("spec.modelUrl {:?} of Model {name}: {error}", redact(&model.spec.model_url)),
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
    if let Some(secret) = &model.spec.credentials_secret {
        let field = format!("spec.credentialsSecret of Model {name}");
        if let Some(finding) = check_name(&field, &secret.name) {
            return Err(finding);
        }
    }
    Ok(address)
}
