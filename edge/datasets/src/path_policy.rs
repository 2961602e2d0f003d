//! Restricts datasets to the directories that the node's administrator allows. Resolves symbolic
//! links on disk, so that none leads out of these directories. I/O.

use std::{
    ffi::OsString,
    fs::{self, File},
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::{Component, Path, PathBuf},
};

use rustix::fs::OFlags;

use crate::error::DatasetError;

/// The most links of a path, as in Linux.
const MAX_LINKS: usize = 40;

/// The directories in which datasets are allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPolicy {
    /// Absolute paths of directories. A dataset must be in one of them. If empty, no dataset is
    /// allowed.
    pub allowed_roots: Vec<PathBuf>,
}

impl PathPolicy {
    /// Checks that `path` is well-formed and, as written, in an allowed directory.
    ///
    /// Does not access paths outside the allowed directories, so that the result does not reveal
    /// which files exist there.
    ///
    /// # Errors
    /// [`DatasetError::InvalidPath`], [`DatasetError::OutsideAllowed`].
    pub fn check(&self, path: &Path) -> Result<(), DatasetError> {
        let well_formed =
            path.is_absolute() && path.components().all(|part| part != Component::ParentDir);
        if !well_formed {
            return Err(DatasetError::InvalidPath { path: path.to_owned() });
        }
        if self.allowed_roots.iter().any(|root| path.starts_with(root)) || self.contains(path) {
            return Ok(());
        }
        Err(DatasetError::OutsideAllowed { path: path.to_owned() })
    }

    /// Resolves all symbolic links in `path`. Blocking.
    ///
    /// # Errors
    /// The errors of [`PathPolicy::check`]; [`DatasetError::NotFound`],
    /// [`DatasetError::PermissionDenied`], [`DatasetError::Io`];
    /// [`DatasetError::SymlinkOutsideAllowed`] if the result is outside the allowed directories.
    pub fn resolve(&self, path: &Path) -> Result<PathBuf, DatasetError> {
        self.check(path)?;
        let outside = || DatasetError::SymlinkOutsideAllowed { path: path.to_owned() };
        match fs::canonicalize(path) {
            Ok(real) if self.contains(&real) => Ok(real),
            Ok(_) => Err(outside()),
            // The result does not tell whether the target of a link outside exists.
            Err(_) if self.leads_out(path) => Err(outside()),
            Err(error) => Err(DatasetError::io(path, &error)),
        }
    }

    /// Whether a link of a path that cannot be resolved leads out of the allowed directories.
    fn leads_out(&self, path: &Path) -> bool {
        let roots = self.allowed_roots.iter().cloned();
        let real = self.allowed_roots.iter().filter_map(|root| fs::canonicalize(root).ok());
        let roots: Vec<PathBuf> = roots.chain(real).collect();
        let mut rest: Vec<OsString> = parts(path);
        let (mut at, mut links) = (PathBuf::new(), 0);
        while let Some(part) = rest.pop() {
            if part == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&part);
            // Inside, or on the way there.
            if !roots.iter().any(|root| next.starts_with(root) || root.starts_with(&next)) {
                return true;
            }
            match fs::read_link(&next) {
                Ok(target) if links < MAX_LINKS => {
                    links += 1;
                    // An absolute one begins with the root.
                    rest.extend(parts(&target));
                }
                _ => at = next,
            }
        }
        !roots.iter().any(|root| at.starts_with(root))
    }

    /// Opens a regular file. Returns `None` for any other file type.
    ///
    /// The check applies to the opened file, so that a link that changes meanwhile has no effect.
    ///
    /// # Errors
    /// The errors of [`PathPolicy::resolve`].
    pub(crate) fn open(&self, path: &Path) -> Result<Option<File>, DatasetError> {
        let real = self.resolve(path)?;
        let io_error = |error| DatasetError::io(path, &error);
        if !fs::metadata(&real).map_err(io_error)?.is_file() {
            return Ok(None);
        }
        // Non-blocking: if the file is replaced by a pipe, opening it must not wait for a writer.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file =
            fs::OpenOptions::new().read(true).custom_flags(flags).open(&real).map_err(io_error)?;
        let opened =
            fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(io_error)?;
        if !self.contains(&opened) {
            return Err(DatasetError::SymlinkOutsideAllowed { path: path.to_owned() });
        }
        let regular = file.metadata().map_err(io_error)?.is_file();
        Ok(regular.then_some(file))
    }

    /// Whether a path without symbolic links is in an allowed directory.
    fn contains(&self, real: &Path) -> bool {
        self.allowed_roots
            .iter()
            .filter_map(|root| fs::canonicalize(root).ok())
            .any(|root| real.starts_with(root))
    }
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().filter(|part| *part != Component::CurDir);
    parts.rev().map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn link_outside_is_refused_whether_its_target_exists_or_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("allowed/dir")).unwrap();
        fs::write(path("there"), "").unwrap();
        let policy = PathPolicy { allowed_roots: vec![path("allowed")] };
        for (name, target) in [
            ("a", path("there")),
            ("b", path("not-there")),
            ("c", "../there".into()),
            ("d", "../not-there".into()),
            ("e", "dir/../../not-there".into()),
            ("f", "b".into()),
        ] {
            symlink(target, path("allowed").join(name)).unwrap();
            let refused = policy.resolve(&path("allowed").join(name));
            assert!(
                matches!(refused, Err(DatasetError::SymlinkOutsideAllowed { .. })),
                "{name}: {refused:?}"
            );
        }
        for (name, target) in [("g", "dir/no"), ("h", "dir/../no"), ("i", "i")] {
            symlink(target, path("allowed").join(name)).unwrap();
            let absent = policy.resolve(&path("allowed").join(name));
            let is_outside = matches!(absent, Err(DatasetError::SymlinkOutsideAllowed { .. }));
            assert!(absent.is_err() && !is_outside, "{name}: {absent:?}");
        }
    }

    #[test]
    fn path_outside_is_refused_before_it_is_accessed() {
        let policy = PathPolicy { allowed_roots: vec!["/data".into()] };
        for (path, refused) in [
            ("/data", false),
            ("/data/a/b.csv", false),
            ("/database/a.csv", true),
            ("/etc/passwd", true),
            ("/etc/no-such-file", true),
        ] {
            assert_eq!(policy.check(Path::new(path)).is_err(), refused, "{path}");
        }
        for path in ["data/a.csv", "/data/../etc/passwd", ""] {
            assert!(
                matches!(policy.check(Path::new(path)), Err(DatasetError::InvalidPath { .. })),
                "{path}"
            );
        }
        let nothing = PathPolicy { allowed_roots: vec![] };
        assert!(matches!(
            nothing.resolve(Path::new("/")),
            Err(DatasetError::OutsideAllowed { .. })
        ));
    }
}
