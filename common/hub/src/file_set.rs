//! A set of files and its digest: the SHA-256 of the output of `sha256sum` for all files, sorted by
//! path. The text is a content of its own, so that nodes with the digest can get it from each other.
//! Pure.

use std::fmt::Write as _;

use std::collections::BTreeMap;

use neptune_transfer::Digest;

use crate::error::HubProblem;

/// The maximum number of files in a set.
const MAX_FILES: usize = 10_000;
/// Maximum length of a path in bytes.
const MAX_PATH: usize = 1024;

/// A file of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetFile {
    /// Path below the directory of the set.
    pub path: String,
    /// SHA-256 of the content.
    pub sha256: Digest,
}

/// Files with their paths and digests, sorted by path. Every path stays below the directory of the
/// set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSet {
    files: Vec<SetFile>,
}

/// Why files are not a set. The message has the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileSetError {
    /// The set has no file.
    #[error("no file is selected; correct the patterns of files")]
    Empty,
    /// The set has more than the maximum number of files.
    #[error("more than {MAX_FILES} files are selected; select fewer by patterns of files")]
    TooMany,
    /// A path leads out of the directory, or is not a plain path.
    #[error(
        "the path {0:?} is refused: it is absolute, too long, has empty parts, \".\", \"..\", a backslash or control characters"
    )]
    Path(String),
    /// Two files have the same path, or a file has the path of a directory.
    #[error("the path {0:?} occurs twice, or is both a file and a directory")]
    Duplicate(String),
    /// The text is not the output of `sha256sum`.
    #[error("line {0} of the list of files is not a digest and a path")]
    Line(usize),
}

impl From<FileSetError> for HubProblem {
    fn from(error: FileSetError) -> Self {
        Self::InvalidSet { reason: error.to_string() }
    }
}

impl FileSet {
    /// Sorts and checks the files.
    ///
    /// # Errors
    /// [`FileSetError`] for each reason but [`FileSetError::Line`].
    pub fn new(files: Vec<SetFile>) -> Result<Self, FileSetError> {
        let mut by_path = BTreeMap::new();
        for SetFile { path, sha256 } in files {
            check_path(&path)?;
            if by_path.insert(path.clone(), sha256).is_some() {
                return Err(FileSetError::Duplicate(shown(&path)));
            }
        }
        check_paths(by_path.keys().map(String::as_str))?;
        let files = by_path.into_iter().map(|(path, sha256)| SetFile { path, sha256 });
        Ok(Self { files: files.collect() })
    }

    /// Parses the text that [`FileSet::text`] returns.
    ///
    /// # Errors
    /// [`FileSetError`].
    pub fn parse(text: &str) -> Result<Self, FileSetError> {
        let mut files = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let parts = line.split_once("  ");
            let file = parts.and_then(|(sha256, path)| {
                Some(SetFile { path: path.to_owned(), sha256: sha256.parse().ok()? })
            });
            files.push(file.ok_or(FileSetError::Line(number + 1))?);
        }
        Self::new(files)
    }

    /// The files, sorted by path.
    pub fn files(&self) -> &[SetFile] {
        &self.files
    }

    /// One line per file, as `sha256sum` prints it.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for SetFile { sha256, path, .. } in &self.files {
            // Writing to a text does not fail.
            let _ = writeln!(text, "{sha256}  {path}");
        }
        text
    }

    /// The digest of the set.
    pub fn digest(&self) -> Digest {
        Digest::of_bytes(self.text().as_bytes())
    }
}

/// Checks paths before their files are downloaded.
///
/// # Errors
/// [`FileSetError`] for each reason but [`FileSetError::Line`].
pub(crate) fn check_paths<'a>(paths: impl Iterator<Item = &'a str>) -> Result<(), FileSetError> {
    let mut known: Vec<&str> = Vec::new();
    for path in paths {
        check_path(path)?;
        known.push(path);
    }
    known.sort_unstable();
    if known.is_empty() {
        return Err(FileSetError::Empty);
    }
    if known.len() > MAX_FILES {
        return Err(FileSetError::TooMany);
    }
    for path in &known {
        let is_twice = known.partition_point(|other| other <= path)
            - known.partition_point(|other| other < path)
            > 1;
        let mut parents = path.match_indices('/').map(|(at, _)| &path[..at]);
        if is_twice || parents.any(|parent| known.binary_search(&parent).is_ok()) {
            return Err(FileSetError::Duplicate(shown(path)));
        }
    }
    Ok(())
}

fn check_path(path: &str) -> Result<(), FileSetError> {
    let is_plain = path.len() <= MAX_PATH
        && !path.contains('\\')
        && !path.chars().any(char::is_control)
        && path.split('/').all(|part| !matches!(part, "" | "." | "..") && part.len() <= 255);
    if is_plain { Ok(()) } else { Err(FileSetError::Path(shown(path))) }
}

/// A path comes from the hub, so it is truncated.
fn shown(path: &str) -> String {
    path.chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn file(path: &str) -> SetFile {
        SetFile { path: path.to_owned(), sha256: Digest::of_bytes(path.as_bytes()) }
    }

    #[test]
    fn digest_is_that_of_the_output_of_sha256sum() {
        // printf a > a; printf b > b; sha256sum a b | sha256sum
        let set = FileSet::new(vec![file("b"), file("a")]).unwrap();
        assert_eq!(
            set.text(),
            "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb  a\n\
             3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d  b\n"
        );
        assert_eq!(
            set.digest().to_string(),
            "cb13f400dcb618e400d0f7d54f7cdb330d37a07272cb99a1016cda5830a10556"
        );
        assert_eq!(FileSet::parse(&set.text()), Ok(set));
    }

    #[test]
    fn paths_that_leave_the_directory_or_collide_are_refused() {
        let set = |paths: &[&str]| FileSet::new(paths.iter().map(|path| file(path)).collect());
        for path in ["../x", "a/../x", "/etc/x", "a//b", "a/", "", "./a", "a\\b", "a\nb"] {
            assert_eq!(set(&[path]), Err(FileSetError::Path(path.to_owned())), "{path:?}");
        }
        assert_eq!(set(&["a", "a"]), Err(FileSetError::Duplicate("a".to_owned())));
        assert_eq!(set(&["a", "a-b", "a/b"]), Err(FileSetError::Duplicate("a/b".to_owned())));
        assert_eq!(set(&[]), Err(FileSetError::Empty));
        assert!(matches!(set(&[&"x".repeat(256)]), Err(FileSetError::Path(_))));
        let many: Vec<SetFile> = (0..=MAX_FILES).map(|n| file(&n.to_string())).collect();
        assert_eq!(FileSet::new(many), Err(FileSetError::TooMany));
        for (text, line) in [("x  a\n", 1), ("", 0), ("\n", 1)] {
            let error = FileSet::parse(text).unwrap_err();
            let expected = if line == 0 { FileSetError::Empty } else { FileSetError::Line(line) };
            assert_eq!(error, expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn set_is_the_same_in_every_order_and_parses_to_itself(
            paths in prop::collection::btree_set("[a-c]{1,2}(/[a-c ]{1,3}){0,2}", 1..8)
        ) {
            let files: Vec<SetFile> = paths.iter().map(|path| file(path)).collect();
            let reversed = files.iter().rev().cloned().collect();
            let set = FileSet::new(files);
            prop_assert_eq!(&set, &FileSet::new(reversed));
            if let Ok(set) = set {
                prop_assert_eq!(&FileSet::parse(&set.text()), &Ok(set.clone()));
            }
        }
    }
}
