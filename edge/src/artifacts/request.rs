//! Decides what the model store is asked for: an artifact's URL and digest as its request. Pure.

use neptune_agent_core::domain::artifact::{ArtifactSource, Mirrors, check};
use neptune_store::ArtifactRequest;
use neptune_wire::MAX_MIRRORS;
use tracing::warn;

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

/// The request for a source with its mirrors. A mirror that this agent cannot use is left out.
///
/// # Errors
/// A message about the invalid URL or digest, with the remedy.
pub fn want_with_mirrors(
    source: &ArtifactSource,
    mirrors: &Mirrors,
) -> Result<ArtifactRequest, String> {
    let mut request = want(source)?;
    let mirrors = mirrors.get(source).map_or(&[][..], Vec::as_slice);
    for (url, number) in mirrors.iter().take(MAX_MIRRORS).zip(1..) {
        if let Err(error) = request.add_mirror(number, url) {
            warn!(%error, mirror = number, "mirror ignored");
        }
    }
    Ok(request)
}
