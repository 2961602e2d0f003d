//! What a part keeps on disk, and what of it can be used by another process, or after a power cut.
//!
//! ```text
//! partial/<key>/version.json   what the bytes are of; written before the first of them
//!              /raw            the bytes
//!              /synced.json    how many of them are on the disk for certain
//!              /tree           what was unpacked so far; begun anew by each process
//!              /new            the whole, on its way to the shelf
//! ```

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use serde::{Deserialize, Serialize};

use crate::{Digest, resume::Validator};

/// What the bytes of a part are of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Version {
    /// Of the URL.
    pub from: Digest,
    pub validator: Option<Validator>,
    pub total: Option<u64>,
    /// What is in the file but not on the disk is lost when this changes.
    pub boot: String,
}

#[derive(Serialize, Deserialize)]
struct Synced {
    bytes: u64,
}

impl Version {
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        write_json(dir, "version.json", self)
    }
}

/// So many bytes of the raw file are on the disk for certain.
pub fn write_synced(dir: &Path, bytes: u64) -> io::Result<()> {
    write_json(dir, "synced.json", &Synced { bytes })
}

/// Replaces a file, durably: it holds the old or the new value after a power cut.
pub fn write_json<T: Serialize>(dir: &Path, name: &str, value: &T) -> io::Result<()> {
    let part = dir.join(format!("{name}.part"));
    let mut file = File::create(&part)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    file.sync_all()?;
    fs::rename(part, dir.join(name))?;
    File::open(dir)?.sync_all()
}

pub fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// What of an earlier process can be used: the version, and how many bytes of it are there.
pub fn recover(dir: &Path, from: Digest) -> io::Result<(Version, u64)> {
    fs::create_dir_all(dir)?;
    remove(&dir.join("tree"))?;
    remove(&dir.join("new"))?;
    let boot = boot()?;
    let raw = dir.join("raw");
    let known: Option<Version> = read_json(&dir.join("version.json"));
    if let Some(version) = known.filter(|version| version.from == from) {
        let mut length = fs::metadata(&raw).map_or(0, |found| found.len());
        if version.boot != boot {
            let synced: Option<Synced> = read_json(&dir.join("synced.json"));
            length = length.min(synced.map_or(0, |synced| synced.bytes));
        }
        if length > 0 {
            // It may have been on its way to the shelf already.
            fs::set_permissions(&raw, Permissions::from_mode(0o644))?;
        }
        let is_usable = version.validator.is_some() || version.total == Some(length);
        if length > 0 && is_usable && version.total.is_none_or(|total| length <= total) {
            OpenOptions::new().write(true).open(&raw)?.set_len(length)?;
            let version = Version { boot, ..version };
            version.write(dir)?;
            return Ok((version, length));
        }
    }
    empty(dir)?;
    let version = Version { from, validator: None, total: None, boot };
    version.write(dir)?;
    Ok((version, 0))
}

pub fn empty(dir: &Path) -> io::Result<()> {
    remove(&dir.join("synced.json"))?;
    remove(&dir.join("tree"))?;
    let raw = File::create(dir.join("raw"))?;
    raw.sync_all()?;
    File::open(dir)?.sync_all()
}

/// Removes whatever is there.
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

/// Changes with each start of the machine.
fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}
