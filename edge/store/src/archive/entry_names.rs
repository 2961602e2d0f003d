//! Decides which entry names of an archive are accepted. Pure. A name must not lead out of the
//! tree, and must differ from every other name by more than letter case. `tree` creates the files.

use std::{collections::HashMap, path::PathBuf, str};

use sha2::{Digest as _, Sha256};

/// The limit of common file systems, in bytes.
const MAX_COMPONENT_BYTES: usize = 255;
const MAX_PATH_BYTES: usize = 1024;
const MAX_DEPTH: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Dir,
}

/// The names in one archive. Takes about 40 bytes per name, of any length.
#[derive(Debug, Default)]
pub struct EntryNames {
    /// Hash and kind of the exact name, by the hash of the name in lower case.
    known: HashMap<NameHash, (NameHash, EntryKind)>,
}

/// The first half of a sha256. Collisions are not feasible.
type NameHash = [u8; 16];

impl EntryNames {
    /// The path of the entry below the tree; `None` for the root of the tree.
    ///
    /// # Errors
    /// Why the name is refused.
    pub fn add(&mut self, name: &[u8], kind: EntryKind) -> Result<Option<PathBuf>, String> {
        let name = str::from_utf8(name).map_err(|_| "name is not UTF-8")?;
        let parts = components(name, kind)?;
        let Some(last) = parts.len().checked_sub(1) else {
            return if kind == EntryKind::Dir { Ok(None) } else { Err("name is empty".to_owned()) };
        };
        for depth in 0..=last {
            let kind = if depth == last { kind } else { EntryKind::Dir };
            self.add_path(&parts[..=depth].join("/"), kind, depth == last)?;
        }
        Ok(Some(parts.iter().collect()))
    }

    /// `is_entry`: `path` is the entry itself, and not one of its parent directories.
    fn add_path(&mut self, path: &str, kind: EntryKind, is_entry: bool) -> Result<(), String> {
        let exact = hash(path);
        let folded = hash(&path.to_lowercase());
        match self.known.get(&folded) {
            None => {
                self.known.insert(folded, (exact, kind));
                Ok(())
            }
            Some((other, _)) if *other != exact => {
                Err(format!("{path:?} differs from another name only in letter case"))
            }
            Some((_, EntryKind::Dir)) if kind == EntryKind::Dir => Ok(()),
            Some((_, EntryKind::File)) if kind == EntryKind::File && is_entry => {
                Err("duplicate name".to_owned())
            }
            Some(_) => Err(format!("{path:?} is both a file and a directory")),
        }
    }
}

fn hash(text: &str) -> NameHash {
    let mut hash = [0; 16];
    hash.copy_from_slice(&Sha256::digest(text)[..16]);
    hash
}

fn components(name: &str, kind: EntryKind) -> Result<Vec<&str>, &'static str> {
    if name.starts_with('/') {
        return Err("path is absolute");
    }
    if name.contains('\\') {
        return Err("name contains a backslash");
    }
    if name.chars().any(char::is_control) {
        return Err("name contains control characters");
    }
    if name.len() > MAX_PATH_BYTES {
        return Err("path is longer than 1024 bytes");
    }
    if kind == EntryKind::File && name.ends_with('/') {
        return Err("file has the name of a directory");
    }
    let parts: Vec<&str> =
        name.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err("path contains `..`");
    }
    if parts.iter().any(|part| part.len() > MAX_COMPONENT_BYTES) {
        return Err("path component is longer than 255 bytes");
    }
    if parts.len() > MAX_DEPTH {
        return Err("path is more than 32 directories deep");
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(names: &[(&str, EntryKind)]) -> Result<Option<PathBuf>, String> {
        let mut known = EntryNames::default();
        names
            .iter()
            .map(|(name, kind)| known.add(name.as_bytes(), *kind))
            .last()
            .unwrap_or(Ok(None))
    }

    #[test]
    fn plain_names_are_normalized_and_accepted() {
        use EntryKind::{Dir, File};
        assert_eq!(add(&[("./", Dir)]), Ok(None));
        assert_eq!(add(&[("./a//b/./c", File)]), Ok(Some("a/b/c".into())));
        assert_eq!(add(&[("a", Dir), ("a/", Dir), ("a/b", File)]), Ok(Some("a/b".into())));
        assert_eq!(add(&[("a/b", File), ("a/..b", File)]), Ok(Some("a/..b".into())));
    }

    #[test]
    fn invalid_names_are_refused_with_the_reason() {
        use EntryKind::{Dir, File};
        let long = "x".repeat(256);
        let longer = format!("{}y", "x/".repeat(600));
        let deep = format!("{}y", "x/".repeat(32));
        let cases: [(&[(&str, EntryKind)], &str); 15] = [
            (&[("/etc/passwd", File)], "absolute"),
            (&[("../x", File)], "`..`"),
            (&[("a/../../x", File)], "`..`"),
            (&[("a/..", Dir)], "`..`"),
            (&[("..\\x", File)], "backslash"),
            (&[("a\nb", File)], "control"),
            (&[("", File)], "empty"),
            (&[("a/", File)], "name of a directory"),
            (&[("a", File), ("./a", File)], "duplicate"),
            (&[("Model", File), ("model", File)], "letter case"),
            (&[("A/x", File), ("a/y", File)], "letter case"),
            (&[("a", File), ("a/b", File)], "both"),
            (&[(&long, File)], "255"),
            (&[(&longer, File)], "1024"),
            (&[(&deep, File)], "deep"),
        ];
        for (names, reason) in cases {
            let error = add(names).expect_err(reason);
            assert!(error.contains(reason), "{names:?}: {error}");
        }
        assert!(
            EntryNames::default().add(b"a\xff", File).is_err_and(|error| error.contains("UTF-8"))
        );
    }
}
