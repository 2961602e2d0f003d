//! Visits the files of a format below a directory, one at a time and in no particular
//! order. I/O, with memory that does not depend on the number of files.

use std::{
    fs::{self, Metadata},
    path::Path,
};

use neptune_sources::DatasetFormat;

use crate::{error::DatasetError, path_policy::PathPolicy, read::ReadMeter};

/// The entries that a walk could not visit.
#[derive(Debug, Default)]
pub(crate) struct SkippedEntries {
    pub(crate) count: u64,
    /// Path of the first skipped entry, with the reason; `None` without any.
    pub(crate) example: Option<String>,
}

impl SkippedEntries {
    pub(crate) fn add(&mut self, reason: impl FnOnce() -> String) {
        self.count += 1;
        self.example.get_or_insert_with(reason);
    }
}

/// Calls `visit` with every regular file below `root` whose name is one of `format`.
///
/// Follows links to files if `policy` allows their target. Skips links to directories, because
/// they can form loops. Ignores entries that are removed during the walk.
///
/// # Errors
/// The errors of reading `root`, and [`DatasetError::Stopped`]. Unreadable entries below `root` are
/// skipped.
pub(crate) fn walk(
    root: &Path,
    format: DatasetFormat,
    policy: &PathPolicy,
    meter: &ReadMeter,
    mut visit: impl FnMut(&Path, &Metadata),
) -> Result<SkippedEntries, DatasetError> {
    let mut skipped = SkippedEntries::default();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries =
            match fs::read_dir(&directory).map_err(|error| DatasetError::io(&directory, &error)) {
                Ok(entries) => entries,
                Err(error) if directory == root => return Err(error),
                Err(DatasetError::NotFound { .. }) => continue,
                Err(error) => {
                    skipped.add(|| error.to_string());
                    continue;
                }
            };
        for entry in entries.flatten() {
            if meter.is_stopped() {
                return Err(DatasetError::Stopped);
            }
            let path = entry.path();
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                directories.push(path);
            } else if (kind.is_file() || kind.is_symlink()) && format.has_file_name(&path) {
                match target_metadata(&path, kind.is_symlink(), policy) {
                    Ok(metadata) if metadata.is_file() => visit(&path, &metadata),
                    Ok(_) => skipped.add(|| format!("{}: links to a directory", path.display())),
                    Err(DatasetError::NotFound { .. }) => {}
                    Err(error) => skipped.add(|| error.to_string()),
                }
            }
        }
    }
    Ok(skipped)
}

fn target_metadata(
    path: &Path,
    is_symlink: bool,
    policy: &PathPolicy,
) -> Result<Metadata, DatasetError> {
    let real = if is_symlink { policy.resolve(path)? } else { path.to_owned() };
    fs::symlink_metadata(&real).map_err(|error| DatasetError::io(path, &error))
}
