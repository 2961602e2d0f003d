//! The files of a partial download, and how much of them can be used after a restart of the process
//! or a power failure. I/O.
//!
//! ```text
//! partial/<key>/version.json   version of the content; written before its first byte
//!              /raw            the received bytes
//!              /synced.json    number of bytes of raw that are synced to disk
//!              /tree           the unpacked content so far; created again by each process
//!              /new            the complete artifact, before it moves to the content store
//!              /peer           what other nodes sent, see `peer_download`
//!              /peer-complete  the complete content that other nodes sent
//! ```

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use neptune_transfer::{
    durable::{self, Survives, remove},
    json,
};
use neptune_wire::NodeName;
use serde::{Deserialize, Serialize};

use crate::{Digest, resume::Validator};

/// The version of the content to which the received bytes belong.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PartialVersion {
    /// The requested content: its digest, or the fingerprint of its URL.
    #[serde(rename = "from")]
    pub request: Digest,
    pub validator: Option<Validator>,
    /// Total bytes of the download.
    pub total: Option<u64>,
    /// The node that sent the content; `None` if it is from its URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<NodeName>,
    /// Boot ID of the machine. After a reboot, only synced bytes are used.
    pub boot: String,
}

#[derive(Serialize, Deserialize)]
struct SyncedLength {
    bytes: u64,
}

impl PartialVersion {
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        json::write(&dir.join("version.json"), self)
    }
}

/// Records that the first `bytes` bytes of the raw file are synced to disk.
pub fn write_synced(dir: &Path, bytes: u64) -> io::Result<()> {
    json::write(&dir.join("synced.json"), &SyncedLength { bytes })
}

/// Recovers a partial download. Returns its version and the number of bytes that can be used.
/// Starts an empty one if there is none for `request`.
pub fn recover(dir: &Path, request: Digest) -> io::Result<(PartialVersion, u64)> {
    fs::create_dir_all(dir)?;
    remove(&dir.join("tree"))?;
    remove(&dir.join("new"))?;
    let boot = boot_id()?;
    let raw = dir.join("raw");
    let known: Option<PartialVersion> = json::read(&dir.join("version.json"));
    if let Some(version) = known.filter(|version| version.request == request) {
        let mut length = fs::metadata(&raw).map_or(0, |metadata| metadata.len());
        if version.boot != boot {
            let synced: Option<SyncedLength> = json::read(&dir.join("synced.json"));
            length = length.min(synced.map_or(0, |synced| synced.bytes));
        }
        if length > 0 {
            // The file is read-only if the process was stopped while moving it to the content
            // store.
            fs::set_permissions(&raw, Permissions::from_mode(0o644))?;
        }
        let is_usable = version.validator.is_some() || version.total == Some(length);
        if length > 0 && is_usable && version.total.is_none_or(|total| length <= total) {
            OpenOptions::new().write(true).open(&raw)?.set_len(length)?;
            let version = PartialVersion { boot, ..version };
            version.write(dir)?;
            return Ok((version, length));
        }
    }
    clear(dir)?;
    let version = PartialVersion { request, validator: None, total: None, peer: None, boot };
    version.write(dir)?;
    Ok((version, 0))
}

/// Makes a verified file the complete download of `request`, in place of what was received. Survives a
/// power failure, like the records that describe it.
pub fn adopt(dir: &Path, file: &Path, request: Digest, peer: Option<NodeName>) -> io::Result<()> {
    let bytes = fs::metadata(file)?.len();
    let raw = dir.join("raw");
    // In this order: without the raw file, the version and the length mean nothing.
    remove(&raw)?;
    remove(&dir.join("tree"))?;
    let (validator, total, boot) = (None, Some(bytes), boot_id()?);
    PartialVersion { request, validator, total, peer, boot }.write(dir)?;
    write_synced(dir, bytes)?;
    durable::adopt(file, &raw, Survives::PowerLoss)
}

/// Discards the received bytes.
pub fn clear(dir: &Path) -> io::Result<()> {
    remove(&dir.join("synced.json"))?;
    remove(&dir.join("tree"))?;
    let raw = File::create(dir.join("raw"))?;
    raw.sync_all()?;
    durable::sync_directory(dir)
}

/// Differs after each boot of the machine.
fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}
