//! The files below a directory, of the wanted extensions, one after the other and in no order. I/O, flat memory.

use std::{
    fs::{self, Metadata},
    path::Path,
};

use crate::{error::Error, policy::Policy, read::Meter};

/// What a walk could not look at.
#[derive(Debug, Default)]
pub(crate) struct Skipped {
    pub(crate) count: u64,
    pub(crate) example: Option<String>,
}

impl Skipped {
    pub(crate) fn add(&mut self, reason: impl FnOnce() -> String) {
        self.count += 1;
        self.example.get_or_insert_with(reason);
    }
}

/// Calls `visit` with every regular file below `root` whose extension is one of `extensions`, in any case.
///
/// Links to files are followed as far as the policy goes; links to directories are skipped, since they can be loops.
/// What vanishes meanwhile is left out.
///
/// # Errors
/// Of `root` itself, and [`Error::Stopped`]; anything below that cannot be read is skipped.
pub(crate) fn walk(
    root: &Path,
    extensions: &[&str],
    policy: &Policy,
    meter: &Meter,
    mut visit: impl FnMut(&Path, &Metadata),
) -> Result<Skipped, Error> {
    let mut skipped = Skipped::default();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = match fs::read_dir(&directory).map_err(|error| Error::io(&directory, &error))
        {
            Ok(entries) => entries,
            Err(error) if directory == root => return Err(error),
            Err(Error::Missing { .. }) => continue,
            Err(error) => {
                skipped.add(|| error.to_string());
                continue;
            }
        };
        for entry in entries.flatten() {
            if meter.is_stopped() {
                return Err(Error::Stopped);
            }
            let path = entry.path();
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                directories.push(path);
            } else if (kind.is_file() || kind.is_symlink()) && has_extension(&path, extensions) {
                match look(&path, kind.is_symlink(), policy) {
                    Ok(metadata) if metadata.is_file() => visit(&path, &metadata),
                    Ok(_) => skipped.add(|| format!("{}: links to a directory", path.display())),
                    Err(Error::Missing { .. }) => {}
                    Err(error) => skipped.add(|| error.to_string()),
                }
            }
        }
    }
    Ok(skipped)
}

fn look(path: &Path, link: bool, policy: &Policy) -> Result<Metadata, Error> {
    let real = if link { policy.resolve(path)? } else { path.to_owned() };
    fs::symlink_metadata(&real).map_err(|error| Error::io(path, &error))
}

fn has_extension(path: &Path, wanted: &[&str]) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension
        .is_some_and(|extension| wanted.iter().any(|known| known.eq_ignore_ascii_case(extension)))
}
