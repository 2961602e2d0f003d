//! The files of a volume with keys of a Secret or a `ConfigMap`, and the rules for their paths.

use std::collections::{BTreeMap, BTreeSet};

use neptune_wire::{SecretBytes, SecretValues};

/// Maximum length of a key, as in Kubernetes.
const MAX_KEY: usize = 253;
/// Maximum length of a path in a volume.
const MAX_PATH: usize = 1024;
/// Maximum length of a part of a path, that of a file name on Linux.
const MAX_PART: usize = 255;

/// The files of a volume by relative path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeFiles {
    pub files: BTreeMap<String, SecretBytes>,
}

impl VolumeFiles {
    /// The bytes of which the fingerprint of these files is made: other files give other bytes.
    pub fn canonical(&self) -> Vec<u8> {
        canonical(&self.files)
    }
}

/// Names and values, each with its length.
pub fn canonical(values: &BTreeMap<String, SecretBytes>) -> Vec<u8> {
    let size = values.iter().map(|(name, value)| 16 + name.len() + value.expose().len()).sum();
    let mut bytes = Vec::with_capacity(size);
    for (name, value) in values {
        for part in [name.as_bytes(), value.expose()] {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part);
        }
    }
    bytes
}

/// Returns the files of a volume. A path whose key does not exist is left out: it is optional, or the
/// controller would not have sent it.
///
/// # Errors
/// A path that could leave the volume, or is a file and a directory. The text follows the name of the
/// volume.
pub fn volume_files(
    values: &SecretValues,
    items: Option<&BTreeMap<String, String>>,
) -> Result<VolumeFiles, String> {
    let mut files = BTreeMap::new();
    match items {
        None => {
            for (key, value) in values {
                if !is_key(key) {
                    return Err(format!("has the key {key:?}, which is no file name; use items"));
                }
                files.insert(key.clone(), value.clone());
            }
        }
        Some(items) => {
            for (path, key) in items {
                if !is_path(path) {
                    return Err(format!(
                        "has the path {path:?}; use a relative path without \"..\""
                    ));
                }
                files.extend(values.get(key).map(|value| (path.clone(), value.clone())));
            }
        }
    }
    let directories: BTreeSet<&str> = files.keys().flat_map(|path| parents(path)).collect();
    match files.keys().find(|path| directories.contains(path.as_str())) {
        Some(path) => Err(format!("has {path:?} as a file and as a directory; correct items")),
        None => Ok(VolumeFiles { files }),
    }
}

fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

/// Whether a key is a file name: Kubernetes allows no other key.
fn is_key(key: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=MAX_KEY).contains(&key.len())
        && key.bytes().all(is_allowed)
        && key != "."
        && !key.starts_with("..")
}

/// Whether a path stays in its volume. A first part with `..` is one of the agent's own names.
fn is_path(path: &str) -> bool {
    let is_part = |part: &str| {
        (1..=MAX_PART).contains(&part.len())
            && part != "."
            && part != ".."
            && !part.contains(char::is_control)
    };
    path.len() <= MAX_PATH && !path.starts_with("..") && path.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn values(keys: &[&str]) -> SecretValues {
        let value = |key: &&str| ((*key).to_owned(), SecretBytes::new(key.as_bytes().to_vec()));
        keys.iter().map(value).collect()
    }

    fn paths(keys: &[&str], items: Option<&[(&str, &str)]>) -> Result<Vec<String>, String> {
        let items = items.map(|items| {
            items.iter().map(|(path, key)| ((*path).to_owned(), (*key).to_owned())).collect()
        });
        let files = volume_files(&values(keys), items.as_ref())?;
        Ok(files.files.into_keys().collect())
    }

    #[test]
    fn files_are_all_keys_or_the_items_that_exist() {
        assert_eq!(paths(&["a", "b.yaml"], None).unwrap(), ["a", "b.yaml"]);
        let items: &[_] = &[("x/y", "a"), ("z", "missing"), ("x/z", "a")];
        assert_eq!(paths(&["a", "b"], Some(items)).unwrap(), ["x/y", "x/z"]);
        assert_eq!(paths(&["a"], Some(&[])).unwrap(), [""; 0]);
    }

    #[test]
    fn hostile_keys_and_paths_are_refused() {
        let long = "a".repeat(254);
        for key in ["", ".", "..", "..data", "a/b", "../a", "/a", "a\0", "a b", "é", &*long] {
            assert!(paths(&[key], None).is_err(), "{key}");
        }
        let (part, whole) = ("a".repeat(256), "a/".repeat(513));
        for path in [
            "", "/", "/a", "a/", "a//b", ".", "..", "..data", "../a", "a/..", "a/../b", "a/./b",
            "..2", "a\nb", "a\0", &*part, &*whole,
        ] {
            let error = paths(&["a"], Some(&[(path, "a")])).unwrap_err();
            assert!(error.contains("use a relative path"), "{path}: {error}");
        }
        for path in ["...", "a..b", "a/..b", ".a"] {
            let is_plain = !path.starts_with("..");
            assert_eq!(paths(&["a"], Some(&[(path, "a")])).is_ok(), is_plain, "{path}");
        }
        let error = paths(&["a"], Some(&[("x", "a"), ("x/y", "a")])).unwrap_err();
        assert_eq!(error, "has \"x\" as a file and as a directory; correct items");
    }

    #[test]
    fn canonical_bytes_differ_for_other_files() {
        let one = |name: &str, value: &str| {
            let value = SecretBytes::new(value.as_bytes().to_vec());
            canonical(&[(name.to_owned(), value)].into())
        };
        assert_eq!(one("a", "b"), one("a", "b"));
        assert_ne!(one("a", "bc"), one("ab", "c"));
        assert_ne!(one("a", ""), canonical(&BTreeMap::new()));
    }
}
