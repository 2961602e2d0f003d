//! Which files a dataset may be: the directories that the node's owner allowed, looked at on disk so that no symbolic
//! link leads out of them. I/O.

use std::{
    fs::{self, File},
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::{Component, Path, PathBuf},
};

use rustix::fs::OFlags;

use crate::error::Error;

/// What the node's owner allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Absolute paths of directories; a dataset lies in one of them. None: no dataset is allowed.
    pub allowed_roots: Vec<PathBuf>,
}

impl Policy {
    /// Whether `path` is well-formed and, as it is written, within an allowed directory. Nothing outside of these is
    /// looked at, so that an answer does not tell what exists there.
    ///
    /// # Errors
    /// `NotAbsolute`, `OutsideAllowed`.
    pub fn admits(&self, path: &Path) -> Result<(), Error> {
        let well_formed =
            path.is_absolute() && path.components().all(|part| part != Component::ParentDir);
        if !well_formed {
            return Err(Error::NotAbsolute { path: path.to_owned() });
        }
        if self.allowed_roots.iter().any(|root| path.starts_with(root)) || self.holds(path) {
            return Ok(());
        }
        Err(Error::OutsideAllowed { path: path.to_owned() })
    }

    /// Where `path` really is, all symbolic links followed.
    ///
    /// # Errors
    /// As [`Policy::admits`]; `Missing`, `Denied`, `LinkLeaves`.
    pub fn resolve(&self, path: &Path) -> Result<PathBuf, Error> {
        self.admits(path)?;
        let real = fs::canonicalize(path).map_err(|error| Error::io(path, &error))?;
        if self.holds(&real) { Ok(real) } else { Err(Error::LinkLeaves { path: path.to_owned() }) }
    }

    /// Opens a regular file; none if it is something else.
    ///
    /// What is checked is the file that was opened, so a link that is changed meanwhile leads nowhere else.
    ///
    /// # Errors
    /// As [`Policy::resolve`].
    pub(crate) fn open(&self, path: &Path) -> Result<Option<File>, Error> {
        let real = self.resolve(path)?;
        let fault = |error| Error::io(path, &error);
        if !fs::metadata(&real).map_err(fault)?.is_file() {
            return Ok(None);
        }
        // Not blocking: should it have become a pipe since, opening it must not wait for a writer.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file =
            fs::OpenOptions::new().read(true).custom_flags(flags).open(&real).map_err(fault)?;
        let opened = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(fault)?;
        if !self.holds(&opened) {
            return Err(Error::LinkLeaves { path: path.to_owned() });
        }
        let regular = file.metadata().map_err(fault)?.is_file();
        Ok(regular.then_some(file))
    }

    /// Whether a path without links is within an allowed directory.
    fn holds(&self, real: &Path) -> bool {
        self.allowed_roots
            .iter()
            .filter_map(|root| fs::canonicalize(root).ok())
            .any(|root| real.starts_with(root))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn paths_are_refused_as_they_are_written_before_anything_is_looked_at() {
        let policy = Policy { allowed_roots: vec!["/data".into()] };
        for (path, refused) in [
            ("/data", false),
            ("/data/a/b.csv", false),
            ("/database/a.csv", true),
            ("/etc/passwd", true),
            ("/etc/no-such-file", true),
        ] {
            assert_eq!(policy.admits(Path::new(path)).is_err(), refused, "{path}");
        }
        for path in ["data/a.csv", "/data/../etc/passwd", ""] {
            assert!(
                matches!(policy.admits(Path::new(path)), Err(Error::NotAbsolute { .. })),
                "{path}"
            );
        }
        let nothing = Policy { allowed_roots: vec![] };
        assert!(matches!(nothing.resolve(Path::new("/")), Err(Error::OutsideAllowed { .. })));
    }
}
