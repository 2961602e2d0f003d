//! Decides what the model store is asked for: an artifact's URL and digest as its request. Pure.

use neptune_agent_core::domain::artifact::{ArtifactSource, check};
use neptune_store::ArtifactRequest;

/// The request for a URL and a digest.
///
/// # Errors
/// A message about the invalid URL or digest, with the remedy.
pub fn request(url: &str, sha256: Option<&str>) -> Result<ArtifactRequest, String> {
    check(url, sha256)?;
    let sha256 = sha256.and_then(|digest| digest.parse().ok());
    ArtifactRequest::parse(url, sha256).map_err(|error| error.to_string())
}

/// The request for a source.
///
/// # Errors
/// A message about the invalid URL or digest, with the remedy.
pub fn want(source: &ArtifactSource) -> Result<ArtifactRequest, String> {
    let request = request(&source.url, source.sha256.as_deref())?;
    Ok(request.for_namespace(source.namespace.clone()))
}
