//! Parses addresses of a model hub: `hf://organization/repository[@revision][/path]`, and the
//! patterns that select files of a repository. A part of [`ArtifactAddress`](crate::ArtifactAddress).

use std::fmt;

use crate::AddressError;

/// The maximum number of patterns of one address.
pub const MAX_FILE_PATTERNS: usize = 32;

/// The revision of an address without one.
pub const DEFAULT_REVISION: &str = "main";

/// Maximum length of the name of an organization or a repository.
const MAX_NAME: usize = 96;
/// Maximum length of a revision and of a pattern.
const MAX_TEXT: usize = 256;

/// A file or a set of files in a repository of a model hub.
///
/// `Display` is the complete address, which has no secrets and parses to an equal value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HubAddress {
    /// The user or organization that owns the repository.
    pub organization: String,
    /// Name of the repository.
    pub repository: String,
    /// A branch, a tag or a commit; `None` for [`DEFAULT_REVISION`].
    pub revision: Option<String>,
    /// Path of one file in the repository; `None` for a set of files.
    pub path: Option<String>,
    /// Patterns of the files of a set, sorted and without duplicates. Empty: the default selection.
    pub files: Vec<String>,
}

impl HubAddress {
    /// Parses what follows `hf:`.
    pub(crate) fn parse(rest: &str) -> Result<Self, AddressError> {
        let rest = rest.strip_prefix("//").ok_or(AddressError::Hub)?;
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
        let (organization, rest) = rest.split_once('/').ok_or(AddressError::Hub)?;
        let (repository, path) = match rest.split_once('/') {
            Some((repository, path)) => (repository, Some(path)),
            None => (rest, None),
        };
        let (repository, revision) = match repository.split_once('@') {
            Some((repository, revision)) => (repository, Some(revision)),
            None => (repository, None),
        };
        if !is_name(organization) || !is_name(repository) || !revision.is_none_or(is_revision) {
            return Err(AddressError::Hub);
        }
        if !path.is_none_or(is_file_path) {
            return Err(AddressError::HubPath);
        }
        let files = query.map(patterns).transpose()?.unwrap_or_default();
        if path.is_some() && query.is_some() {
            return Err(AddressError::FilesOfFile);
        }
        Ok(Self {
            organization: organization.to_owned(),
            repository: repository.to_owned(),
            revision: revision.map(|text| text.replace("%2F", "/").replace("%2f", "/")),
            path: path.map(str::to_owned),
            files,
        })
    }

    /// Selects the files of a set by patterns. Patterns of the address remain.
    ///
    /// # Errors
    /// [`AddressError::FilesOfFile`] if the address is that of one file;
    /// [`AddressError::FilePatterns`].
    pub(crate) fn with_files(mut self, files: &[String]) -> Result<Self, AddressError> {
        if self.path.is_some() {
            return Err(AddressError::FilesOfFile);
        }
        self.files.extend_from_slice(files);
        self.files = checked_patterns(self.files)?;
        Ok(self)
    }

    /// Whether the address names a set of files and not one file.
    pub fn is_set(&self) -> bool {
        self.path.is_none()
    }

    /// The branch, tag or commit.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(DEFAULT_REVISION)
    }

    /// Whether the revision is a branch or a tag, which may name other content later. A commit has 40
    /// hexadecimal digits.
    pub fn is_moving(&self) -> bool {
        let revision = self.revision();
        revision.len() != 40 || !revision.bytes().all(|b| b.is_ascii_hexdigit())
    }

    /// The commit, unless the revision is a branch or a tag.
    pub fn commit(&self) -> Option<&str> {
        Some(self.revision()).filter(|_| !self.is_moving())
    }

    /// The name of the repository with its organization.
    pub fn repository_id(&self) -> String {
        format!("{}/{}", self.organization, self.repository)
    }

    /// The same files at another revision.
    #[must_use]
    pub fn at(&self, revision: &str) -> Self {
        Self { revision: Some(revision.to_owned()), ..self.clone() }
    }

    /// One file of the repository at the same revision.
    #[must_use]
    pub fn file(&self, path: &str) -> Self {
        Self { path: Some(path.to_owned()), files: Vec::new(), ..self.clone() }
    }
}

impl fmt::Display for HubAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { organization, repository, revision, path, files } = self;
        write!(f, "hf://{organization}/{repository}")?;
        if let Some(revision) = revision {
            write!(f, "@{}", revision.replace('/', "%2F"))?;
        }
        if let Some(path) = path {
            write!(f, "/{path}")?;
        }
        write_patterns(f, files)
    }
}

/// Writes the patterns of a set as the query of its address.
pub(crate) fn write_patterns(f: &mut fmt::Formatter<'_>, files: &[String]) -> fmt::Result {
    for (position, pattern) in files.iter().enumerate() {
        write!(f, "{}files={pattern}", if position == 0 { '?' } else { '&' })?;
    }
    Ok(())
}

/// The patterns in the query of an address, such as `files=*.json&files=*.safetensors`.
pub(crate) fn patterns(query: &str) -> Result<Vec<String>, AddressError> {
    let pattern = |part: &str| part.strip_prefix("files=").map(str::to_owned);
    let files: Option<Vec<String>> = query.split('&').map(pattern).collect();
    checked_patterns(files.ok_or(AddressError::FilePatterns)?)
}

/// Sorts patterns, so that one selection has one text.
pub(crate) fn checked_patterns(mut files: Vec<String>) -> Result<Vec<String>, AddressError> {
    files.sort_unstable();
    files.dedup();
    let is_pattern = |text: &String| {
        (1..=MAX_TEXT).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_graphic() && !br#"&?#%\"'[]{}"#.contains(&b))
    };
    if files.len() > MAX_FILE_PATTERNS || !files.iter().all(is_pattern) {
        return Err(AddressError::FilePatterns);
    }
    Ok(files)
}

fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
        && !text.contains("..")
}

/// Slashes are written as `%2F`, because a slash ends the revision.
fn is_revision(text: &str) -> bool {
    let text = text.replace("%2F", "/").replace("%2f", "/");
    (1..=MAX_TEXT).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._/".contains(&b))
        && text.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

/// Whether a text is the path of a file below a directory, without `.`, `..` and empty parts.
fn is_file_path(text: &str) -> bool {
    text.len() <= 1024
        && !text.contains(['\\', '#', '%'])
        && text.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;
    use crate::ArtifactAddress;

    fn parse(text: &str) -> Result<HubAddress, AddressError> {
        match text.parse()? {
            ArtifactAddress::Hub(address) => Ok(address),
            other => Err(AddressError::Scheme(other.to_string())),
        }
    }

    #[test]
    fn address_names_one_file_or_a_set_at_a_revision() {
        let commit = "a".repeat(40);
        for (text, revision, path, is_moving) in [
            ("hf://org/repo", "main", None, true),
            ("HF://org/repo.v1@v1.0", "v1.0", None, true),
            ("hf://o/r/model.gguf", "main", Some("model.gguf"), true),
            ("hf://o/r@refs%2Fpr%2F1/a/b c.bin", "refs/pr/1", Some("a/b c.bin"), true),
            (&*format!("hf://o/r@{commit}/a/m@1.bin"), &*commit, Some("a/m@1.bin"), false),
        ] {
            let address = parse(text).unwrap();
            assert_eq!((address.revision(), address.path.as_deref()), (revision, path), "{text}");
            assert_eq!((address.is_moving(), address.is_set()), (is_moving, path.is_none()));
            assert_eq!(parse(&address.to_string()).unwrap(), address, "{text}");
        }
    }

    #[test]
    fn patterns_are_sorted_so_that_one_selection_has_one_text() {
        let address = parse("hf://o/r?files=*.safetensors&files=*.json&files=*.json").unwrap();
        assert_eq!(address.files, ["*.json", "*.safetensors"]);
        assert_eq!(address.to_string(), "hf://o/r?files=*.json&files=*.safetensors");
        let set = parse("hf://o/r").unwrap().with_files(&["**/*.bin".to_owned()]).unwrap();
        assert_eq!(set.to_string(), "hf://o/r?files=**/*.bin");
        let file = parse("hf://o/r/m.bin").unwrap();
        assert_eq!(file.with_files(&["a".to_owned()]), Err(AddressError::FilesOfFile));
        let many: Vec<String> = (0..33).map(|number| number.to_string()).collect();
        assert_eq!(parse("hf://o/r").unwrap().with_files(&many), Err(AddressError::FilePatterns));
    }

    #[test]
    fn invalid_address_is_refused_with_the_reason() {
        use AddressError as E;
        for (text, error) in [
            ("hf:o/r", E::Hub),
            ("hf://", E::Hub),
            ("hf://repo", E::Hub),
            ("hf:///repo/x", E::Hub),
            ("hf://o//x", E::Hub),
            ("hf://o/r@", E::Hub),
            ("hf://o/r@a%2F..%2Fb/x", E::Hub),
            ("hf://o/r@a%20b/x", E::Hub),
            ("hf://../r/x", E::Hub),
            ("hf://ann:secret@o/r", E::Hub),
            ("hf://o/r/", E::HubPath),
            ("hf://o/r/../x", E::HubPath),
            ("hf://o/r/a/./x", E::HubPath),
            ("hf://o/r/a%2f..%2fx", E::HubPath),
            ("hf://o/r/a#b", E::HubPath),
            ("hf://o/r?x=1", E::FilePatterns),
            ("hf://o/r?files=", E::FilePatterns),
            ("hf://o/r?files=a b", E::FilePatterns),
            ("hf://o/r/m.bin?files=a", E::FilesOfFile),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn accepted_address_round_trips_and_its_path_stays_below_the_repository(
            text in "hf://[a.]{1,3}/[a.@-]{1,4}(@[a%2F./]{0,6})?(/[a./%?#]{0,6}){0,2}([?]files=[a*/&.]{0,4})?"
        ) {
            if let Ok(address) = parse(&text) {
                prop_assert_eq!(&parse(&address.to_string()).unwrap(), &address);
                let parts = address.path.iter().flat_map(|path| path.split('/'));
                prop_assert!(parts.into_iter().all(|part| !part.is_empty() && part != ".."));
            }
        }
    }
}
