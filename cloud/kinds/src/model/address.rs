//! The address of a repository or an artifact with the patterns of its files. Pure.

use neptune_wire::{AddressError, ArtifactAddress};

/// The address of an object, with the patterns of its files.
///
/// # Errors
/// The text is no address, or patterns are not allowed for it.
pub fn selected(url: &str, files: &[String]) -> Result<ArtifactAddress, AddressError> {
    url.parse::<ArtifactAddress>()?.with_files(files)
}

/// The address as nodes get it. Without patterns, or if it is invalid, it is the text of the spec.
pub fn selected_text(url: &str, files: &[String]) -> String {
    let with_files = if files.is_empty() { None } else { selected(url, files).ok() };
    with_files.map_or_else(|| url.to_owned(), |address| address.to_url())
}
