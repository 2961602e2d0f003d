//! Small files that survive a power failure, and removal of files and directories. I/O.

use std::{fs, io, path::Path};

use neptune_transfer::durable::{self, Access, Survives};
use serde::{Deserialize, Serialize};

/// Replaces a JSON file. Survives a power failure: the records decide which bytes of a download count.
pub fn write_json<T: Serialize>(dir: &Path, name: &str, value: &T) -> io::Result<()> {
    let content = serde_json::to_vec(value)?;
    durable::replace(&dir.join(name), &content, Access::default(), Survives::PowerLoss)
}

/// Reads a JSON file. `None` if it is missing or invalid.
pub fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Removes a file or a directory with its content, if it exists.
pub fn remove(path: &Path) -> io::Result<()> {
    let result = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
