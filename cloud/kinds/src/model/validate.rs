//! Validates the URL and the digest of a model.

use neptune_api::{Model, ModelSpec};
use neptune_wire::{ArtifactAddress, redact};

use super::{
    address::{selected, selected_text},
    mirrors,
};
use crate::{finding::Finding, kubernetes::secrets::check_name, reason::Reason};

/// Returns the source of the model.
///
/// # Errors
/// The finding, which every service that uses the model reports too.
pub fn validate(model: &Model) -> Result<ArtifactAddress, Finding> {
    let name = model.metadata.name.as_deref().unwrap_or_default();
    let address = selected(&model.spec.model_url, &model.spec.files).map_err(|error| {
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
    let spec = &model.spec;
    if let Err(why) = mirrors::check(&address, spec.sha256sum.is_some(), &spec.mirrors) {
        let message = format!("spec.mirrors of Model {name}: {why}");
        return Err(Finding::new(Reason::ModelUrlInvalid, message));
    }
    if let Some(secret) = &model.spec.credentials_secret {
        let field = format!("spec.credentialsSecret of Model {name}");
        if let Some(finding) = check_name(&field, &secret.name) {
            return Err(finding);
        }
    }
    Ok(address)
}

/// The address of the model as nodes get it: that of the spec, with the patterns of its files. Of an
/// invalid spec it is the `modelUrl`.
pub fn address_text(spec: &ModelSpec) -> String {
    selected_text(spec.model_url.trim(), &spec.files)
}

/// The warning about a branch or tag whose files may change.
pub fn moving_revision(spec: &ModelSpec) -> Option<String> {
    if spec.sha256sum.is_some() {
        return None;
    }
    match selected(&spec.model_url, &spec.files) {
        Ok(ArtifactAddress::Hub(address)) if address.is_moving() => {
            let revision = address.revision();
            Some(format!(
                "RevisionMoves: spec.modelUrl names the branch or tag {revision:?}, so nodes may get different files; use the modelUrl and sha256sum that `neptune-cloud resolve` prints"
            ))
        }
        Ok(ArtifactAddress::Oci(address)) if address.is_moving() => {
            let tag = address.reference();
            Some(format!(
                "RevisionMoves: spec.modelUrl names the tag {tag:?}, so nodes may get different files; use the modelUrl and sha256sum that `neptune-cloud resolve` prints"
            ))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use neptune_wire::AddressError;

    use super::*;

    fn spec(model_url: &str, files: &[&str], sha256sum: Option<String>) -> ModelSpec {
        let files = files.iter().map(|text| (*text).to_owned()).collect();
        ModelSpec { model_url: model_url.to_owned(), files, sha256sum, ..ModelSpec::default() }
    }

    #[test]
    fn patterns_select_from_a_repository_and_are_part_of_the_address() {
        let set = spec("hf://o/r@v1 ", &["b/*", "*.json"], None);
        assert_eq!(address_text(&set), "hf://o/r@v1?files=*.json&files=b/*");
        assert_eq!(address_text(&spec(" http://h/m ", &[], None)), "http://h/m");
        for (url, error) in [
            ("http://h/m", AddressError::FilesNotSupported),
            ("/m", AddressError::FilesNotSupported),
            ("hf://o/r/m.bin", AddressError::FilesOfFile),
        ] {
            let model = Model::new("m", spec(url, &["*"], None));
            let finding = validate(&model).map(drop).expect_err(url);
            assert_eq!(finding.reason, Reason::ModelUrlInvalid, "{url}");
            assert!(finding.message.ends_with(&error.to_string()), "{}", finding.message);
        }
    }

    #[test]
    fn branch_or_tag_without_a_digest_is_a_warning() {
        let commit = format!("hf://o/r@{}/m.bin", "a".repeat(40));
        let manifest = format!("oci://registry.example/r:v1@sha256:{}", "a".repeat(64));
        for (url, sha256sum, is_warned) in [
            ("hf://o/r/m.bin", None, true),
            ("hf://o/r@v1", None, true),
            ("hf://o/r@v1", Some("a".repeat(64)), false),
            (&*commit, None, false),
            ("oci://registry.example/r", None, true),
            ("oci://registry.example/r:v1", Some("a".repeat(64)), false),
            (&*manifest, None, false),
            ("http://h/m", None, false),
        ] {
            let warning = moving_revision(&spec(url, &[], sha256sum));
            assert_eq!(warning.is_some(), is_warned, "{url}: {warning:?}");
        }
    }
}
