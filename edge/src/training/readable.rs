//! Finds the first file of a dataset that the user of a training container cannot read. I/O.
//!
//! A program that lists a directory that it cannot read often sees no files, and trains with
//! nothing.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use neptune_sources::DatasetFormat;

use crate::artifacts::access::{READ, SEARCH, permits};

/// Entries of directories that are looked at. The first ones of a large dataset stand for the rest.
const MAX_ENTRIES: usize = 10_000;

/// A file or directory that the user cannot read.
#[derive(Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub path: PathBuf,
    pub owner: u32,
}

impl Unreadable {
    /// The problem and its remedy, to follow the path of the dataset in a message.
    pub fn message(&self, user: u32) -> String {
        let Self { path, owner } = self;
        let run_as = match owner {
            0 => String::new(),
            owner => format!(", or set workerSpec.securityContext.runAsUser: {owner}"),
        };
        format!(
            "is not readable for user {user}, as whom the program runs: {} belongs to user {owner} and is closed to others; change its owner or mode{run_as}; retrying",
            path.display()
        )
    }
}

/// The first unreadable file of this format, or the directory that hides it. Only what is below
/// `path` counts: the container mounts it.
///
/// # Errors
/// The dataset cannot be read by the agent either.
pub fn first_unreadable(
    path: &Path,
    format: DatasetFormat,
    user: u32,
) -> io::Result<Option<Unreadable>> {
    let metadata = fs::metadata(path)?;
    let unreadable = |path: &Path, metadata: &fs::Metadata, needed| {
        let hidden = Unreadable { path: path.to_owned(), owner: metadata.uid() };
        (!permits(path, metadata, user, needed)).then_some(hidden)
    };
    if !metadata.is_dir() {
        return Ok(unreadable(path, &metadata, READ));
    }
    // Directories, each with the one above it, or itself, that hides its files.
    let mut pending = vec![(path.to_owned(), unreadable(path, &metadata, READ | SEARCH))];
    let mut left = MAX_ENTRIES;
    while let Some((dir, hidden_by)) = pending.pop() {
        for entry in fs::read_dir(&dir)? {
            left = left.saturating_sub(1);
            if left == 0 {
                return Ok(None);
            }
            let path = entry?.path();
            // Links to directories can form loops, and are no part of a dataset.
            let Ok(link) = fs::symlink_metadata(&path) else { continue };
            let own = hidden_by.as_ref();
            let hidden = || own.map(|it| Unreadable { path: it.path.clone(), owner: it.owner });
            if link.is_dir() {
                let by = hidden().or_else(|| unreadable(&path, &link, READ | SEARCH));
                pending.push((path, by));
            } else if format.has_file_name(&path)
                && let Ok(metadata) = fs::metadata(&path)
                && metadata.is_file()
                && let Some(first) = hidden().or_else(|| unreadable(&path, &metadata, READ))
            {
                return Ok(Some(first));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn file_or_directory_that_hides_samples_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        set(root, 0o755);
        let (inner, file) = (root.join("a"), root.join("a/samples-1.jsonl"));
        let closed = root.join("lost+found");
        for dir in [&inner, &closed] {
            fs::create_dir(dir).unwrap();
        }
        fs::write(&file, "{}\n").unwrap();
        fs::write(root.join("a/.lock"), "").unwrap();
        set(&closed, 0o700);
        set(&root.join("a/.lock"), 0o600);
        let own = fs::metadata(root).unwrap().uid();
        let other = own + 1;
        let first = |user| first_unreadable(root, DatasetFormat::Jsonl, user).unwrap();
        for (dir_mode, file_mode, hidden_by) in [
            (0o755, 0o644, None),
            (0o755, 0o600, Some(&file)),
            (0o700, 0o644, Some(&inner)),
            (0o744, 0o644, Some(&inner)),
        ] {
            set(&file, file_mode);
            set(&inner, dir_mode);
            let expected = hidden_by.map(|path| Unreadable { path: path.clone(), owner: own });
            assert_eq!(first(other), expected, "{dir_mode:o} {file_mode:o}");
            assert_eq!(first(own), None);
        }
        set(root, 0o700);
        assert_eq!(first(other).unwrap().path, root);
        // The file itself is the dataset: the container mounts no directory above it.
        set(&file, 0o644);
        assert_eq!(first_unreadable(&file, DatasetFormat::Jsonl, other).unwrap(), None);
        set(&file, 0o600);
        assert!(first_unreadable(&file, DatasetFormat::Jsonl, other).unwrap().is_some());
        assert!(first_unreadable(&root.join("b"), DatasetFormat::Jsonl, own).is_err());
    }

    #[test]
    fn message_names_user_path_and_remedy() {
        let unreadable = Unreadable { path: "/data/hard/samples-1.jsonl".into(), owner: 998 };
        assert_eq!(
            unreadable.message(65_532),
            "is not readable for user 65532, as whom the program runs: /data/hard/samples-1.jsonl \
             belongs to user 998 and is closed to others; change its owner or mode, or set \
             workerSpec.securityContext.runAsUser: 998; retrying"
        );
        let of_root = Unreadable { owner: 0, ..unreadable };
        assert!(!of_root.message(65_532).contains("runAsUser"));
    }
}
