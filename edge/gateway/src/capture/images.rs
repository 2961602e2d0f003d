//! The files of binary values beside the segments. I/O.

use std::{
    collections::HashMap,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use neptune_transfer::durable::{self, Access, Survives};

use super::{
    binary::{BinaryFile, DIRECTORY, is_name},
    image_index::{ImageIndex, Moved},
};

/// The files of a directory of records.
#[derive(Debug)]
pub struct Images {
    directory: PathBuf,
    index: ImageIndex,
}

impl Images {
    /// The files of the directory, after all references were read: see [`Found`].
    fn new(directory: PathBuf, index: ImageIndex) -> Self {
        Self { directory, index }
    }

    /// Writes a file, if it is absent, and lets a record of the newest segment refer to it. Survives a
    /// power failure: the file is on the disk before the record is written.
    ///
    /// # Errors
    /// The disk. The file may be left; it is removed at the next start.
    pub fn put(&mut self, file: &BinaryFile, segment: u64) -> io::Result<Moved> {
        let (path, bytes) = (self.directory.join(&file.name), file.content.len() as u64);
        // Somebody else may have removed it.
        let is_present = self.index.contains(&file.name)
            && fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.len() == bytes);
        if !is_present {
            self.write(&path, file)?;
        }
        Ok(self.index.refer(&file.name, bytes, segment))
    }

    fn write(&self, path: &Path, file: &BinaryFile) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        durable::replace(path, &file.content, Access::OWNER, Survives::PowerLoss)
    }

    /// A segment is gone: removes the files that nothing refers to any more. Returns what counts to
    /// another segment now.
    ///
    /// # Errors
    /// The disk.
    pub fn remove_segment(&mut self, segment: u64) -> io::Result<Vec<Moved>> {
        let (gone, moved) = self.index.remove_segment(segment);
        for name in gone {
            durable::remove_file(&self.directory.join(name))?;
        }
        Ok(moved)
    }
}

/// The files that a directory has at the start, before the records were read that refer to them.
pub struct Found {
    directory: PathBuf,
    sizes: HashMap<String, u64>,
    index: ImageIndex,
}

impl Found {
    /// Lists the files, and removes incomplete ones.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(records: &Path) -> io::Result<Self> {
        let directory = records.join(DIRECTORY);
        let mut sizes = HashMap::new();
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => Some(entries),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        durable::remove_leftovers(&directory)?;
        for entry in entries.into_iter().flatten() {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if is_name(&name) {
                sizes.insert(name, entry.metadata()?.len());
            }
        }
        Ok(Self { directory, sizes, index: ImageIndex::default() })
    }

    /// Whether there are none, so that no record needs to be read.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// A record of the segment has this name. Segments come in their order.
    pub fn refer(&mut self, name: &str, segment: u64) -> Option<Moved> {
        let bytes = *self.sizes.get(name)?;
        Some(self.index.refer(name, bytes, segment))
    }

    /// Removes the files to which no record refers: a kill, or somebody, removed the records.
    ///
    /// # Errors
    /// The disk.
    pub fn finish(self) -> io::Result<Images> {
        for name in self.sizes.keys().filter(|name| !self.index.contains(name)) {
            durable::remove_file(&self.directory.join(name))?;
        }
        Ok(Images::new(self.directory, self.index))
    }
}
