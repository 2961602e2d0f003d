//! Writes the files and directories of one archive below a directory that nobody sees yet. No links
//! and nothing special ever gets there, so no path can lead out of it.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use crate::{
    ModelError,
    limits::{Limits, Tally},
    names::{Kind, Names},
    space::Space,
};

/// How much is written between two looks at the disk.
const LOOK_EVERY: u64 = 8 << 20;
const BUFFER: usize = 128 << 10;

/// An archive on its way to disk.
pub struct Tree {
    root: PathBuf,
    names: Names,
    tally: Tally,
    space: Space,
    unlooked: u64,
    buffer: Vec<u8>,
}

/// What is in a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grown {
    /// Of all files.
    pub bytes: u64,
}

impl Tree {
    pub fn plant(root: &Path, limits: Limits, space: &Space) -> Result<Self, ModelError> {
        make_dir(root).map_err(|source| space.failed(root, source, 0))?;
        Ok(Self {
            root: root.to_owned(),
            names: Names::default(),
            tally: Tally::new(limits),
            space: space.clone(),
            unlooked: LOOK_EVERY,
            buffer: vec![0; BUFFER],
        })
    }

    pub fn dir(&mut self, name: &[u8]) -> Result<(), ModelError> {
        self.admit(name, Kind::Dir).map(drop)
    }

    /// Writes what the reader gives, to its end, which has to be `size` bytes away.
    pub fn file(&mut self, name: &[u8], size: u64, from: impl Read) -> Result<(), ModelError> {
        let Some(path) = self.admit(name, Kind::File)? else { return Ok(()) };
        let on_disk = |source| self.space.failed(&path, source, 0);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o444).open(&path);
        let mut file = file.map_err(on_disk)?;
        // Workers run as other users, whatever the agent's umask.
        file.set_permissions(Permissions::from_mode(0o444)).map_err(on_disk)?;
        let written = self.copy(name, &path, &mut file, from)?;
        if written != size {
            let why = format!("it is {written} bytes long instead of {size}");
            return Err(self.refuse(name, &why));
        }
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
                Err(error) => return Err(self.refuse(name, &error.to_string())),
            };
            self.account(name, read as u64)?;
            file.write_all(&self.buffer[..read])
                .map_err(|source| self.space.failed(path, source, read as u64))?;
            written += read as u64;
        }
    }

    fn account(&mut self, name: &[u8], more: u64) -> Result<(), ModelError> {
        self.tally.bytes(more).map_err(|why| self.refuse(name, &why))?;
        self.unlooked += more;
        if self.unlooked >= LOOK_EVERY {
            self.space.admit(LOOK_EVERY)?;
            self.unlooked = 0;
        }
        Ok(())
    }

    fn admit(&mut self, name: &[u8], kind: Kind) -> Result<Option<PathBuf>, ModelError> {
        self.tally.entry().map_err(|why| self.refuse(name, &why))?;
        let path = self.names.admit(name, kind).map_err(|why| self.refuse(name, &why))?;
        let Some(path) = path.map(|path| self.root.join(path)) else { return Ok(None) };
        let dir = if kind == Kind::Dir { Some(path.as_path()) } else { path.parent() };
        if let Some(dir) = dir {
            self.make_dirs(dir).map_err(|source| self.space.failed(dir, source, 0))?;
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

    pub fn refuse(&self, name: &[u8], why: &str) -> ModelError {
        refuse(&self.space, name, why)
    }

    pub fn grown(&self) -> Grown {
        Grown { bytes: self.tally.total() }
    }
}

pub fn refuse(space: &Space, name: &[u8], why: &str) -> ModelError {
    // The name may be anything.
    let shown: String = String::from_utf8_lossy(name).escape_debug().take(100).collect();
    let entry = if name.is_empty() { String::new() } else { format!(" `{shown}`") };
    ModelError::Archive { url: space.url.clone(), entry, why: why.to_owned() }
}

fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o755).create(dir)?;
    fs::set_permissions(dir, Permissions::from_mode(0o755))
}

/// Everything below is on the disk when this returns.
pub fn sync(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync(&entry.path())?;
        } else {
            File::open(entry.path())?.sync_all()?;
        }
    }
    File::open(dir)?.sync_all()
}
