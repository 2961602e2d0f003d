//! Writes the files and directories of one archive below a private directory. It creates no links
//! and no special files, so that no path leads out of the directory.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use super::{
    entry_names::{EntryKind, EntryNames},
    limits::{ArchiveLimits, ArchiveUsage},
};
use crate::{
    ModelError,
    disk_reserve::{DiskReserve, PeriodicCheck},
};

const BUFFER: usize = 128 << 10;

/// The tree of an archive that is being unpacked.
pub struct TreeWriter {
    root: PathBuf,
    names: EntryNames,
    usage: ArchiveUsage,
    space: PeriodicCheck,
    buffer: Vec<u8>,
    /// Whether the archive has a file.
    has_file: bool,
}

/// An archive that was unpacked to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnpackedTree {
    /// Size of all files together.
    pub bytes: u64,
}

impl TreeWriter {
    /// Creates the directory `root`.
    pub fn create(
        root: &Path,
        limits: ArchiveLimits,
        reserve: &DiskReserve,
    ) -> Result<Self, ModelError> {
        make_dir(root).map_err(|source| reserve.write_error(root, source, 0))?;
        Ok(Self {
            root: root.to_owned(),
            names: EntryNames::default(),
            usage: ArchiveUsage::new(limits),
            space: PeriodicCheck::new(reserve.clone(), true),
            buffer: vec![0; BUFFER],
            has_file: false,
        })
    }

    pub fn add_dir(&mut self, name: &[u8]) -> Result<(), ModelError> {
        self.add_entry(name, EntryKind::Dir).map(drop)
    }

    /// Writes a file with all bytes of the reader, which must have exactly `size` bytes.
    pub fn add_file(&mut self, name: &[u8], size: u64, from: impl Read) -> Result<(), ModelError> {
        let Some(path) = self.add_entry(name, EntryKind::File)? else { return Ok(()) };
        let write_error = |source| self.space.reserve.write_error(&path, source, 0);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o444).open(&path);
        let mut file = file.map_err(write_error)?;
        // Independent of the agent's umask, because workers run as other users.
        file.set_permissions(Permissions::from_mode(0o444)).map_err(write_error)?;
        let written = self.copy(name, &path, &mut file, from)?;
        if written != size {
            let reason = format!("file has {written} bytes instead of {size}");
            return Err(self.invalid(name, &reason));
        }
        self.has_file = true;
        Ok(())
    }

    fn copy(
        &mut self,
        name: &[u8],
        path: &Path,
        file: &mut File,
        mut from: impl Read,
    ) -> Result<u64, ModelError> {
        let mut written = 0;
        loop {
            let read = match from.read(&mut self.buffer) {
                Ok(0) => return Ok(written),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.invalid(name, &error.to_string())),
            };
            self.add_bytes(name, read as u64)?;
            file.write_all(&self.buffer[..read])
                .map_err(|source| self.space.reserve.write_error(path, source, read as u64))?;
            written += read as u64;
        }
    }

    fn add_bytes(&mut self, name: &[u8], more: u64) -> Result<(), ModelError> {
        self.usage.add_bytes(more).map_err(|reason| self.invalid(name, &reason))?;
        self.space.add(more)
    }

    /// Checks the name, and creates the directory or the parent directories of the file.
    fn add_entry(&mut self, name: &[u8], kind: EntryKind) -> Result<Option<PathBuf>, ModelError> {
        self.usage.add_entry().map_err(|reason| self.invalid(name, &reason))?;
        let path = self.names.add(name, kind).map_err(|reason| self.invalid(name, &reason))?;
        let Some(path) = path.map(|path| self.root.join(path)) else { return Ok(None) };
        let dir = if kind == EntryKind::Dir { Some(path.as_path()) } else { path.parent() };
        if let Some(dir) = dir {
            self.make_dirs(dir).map_err(|source| self.space.reserve.write_error(dir, source, 0))?;
        }
        Ok(Some(path))
    }

    fn make_dirs(&self, dir: &Path) -> io::Result<()> {
        if dir == self.root || dir.is_dir() {
            return Ok(());
        }
        if let Some(parent) = dir.parent() {
            self.make_dirs(parent)?;
        }
        make_dir(dir)
    }

    pub fn invalid(&self, name: &[u8], reason: &str) -> ModelError {
        invalid_archive(&self.space.reserve.url, name, reason)
    }

    /// # Errors
    /// [`ModelError::InvalidArchive`] for an archive without a file, such as one of 0 bytes.
    pub fn finish(&self) -> Result<UnpackedTree, ModelError> {
        if !self.has_file {
            return Err(self.invalid(b"", "contains no file; pack the files of the model"));
        }
        Ok(UnpackedTree { bytes: self.usage.bytes() })
    }
}

/// The error for entry `name`, or for the whole archive if `name` is empty.
pub fn invalid_archive(url: &str, name: &[u8], reason: &str) -> ModelError {
    // The name comes from the archive, so it is escaped and truncated.
    let shown: String = String::from_utf8_lossy(name).escape_debug().take(100).collect();
    let entry = if name.is_empty() { String::new() } else { format!(", entry \"{shown}\"") };
    ModelError::InvalidArchive { url: url.to_owned(), entry, reason: reason.to_owned() }
}

fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o755).create(dir)?;
    fs::set_permissions(dir, Permissions::from_mode(0o755))
}
