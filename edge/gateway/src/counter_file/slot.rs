//! Files of records with a fixed size, each overwritten in place in the page cache.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use serde::Serialize;
use tracing::warn;

/// The format that this program writes and reads.
pub const FORMAT: u32 = 1;
/// The bytes of a record: more than the longest one, and within one page.
pub const SIZE: usize = 1024;
/// File of the kernel with the identity of the machine's boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The boot of the machine; empty if it is not known.
pub fn boot_id() -> String {
    fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned()
}

/// A file beside a state file.
pub fn beside(state: &Path, suffix: &str) -> PathBuf {
    let mut name = state.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    state.with_file_name(name)
}

/// Opens or creates a file that no other process uses.
///
/// # Errors
/// It cannot be written, or another process uses it.
pub fn open_locked(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => io::Error::other("another process uses it"),
        TryLockError::Error(error) => error,
    })?;
    Ok(file)
}

/// Whether the sum of a record can be continued.
///
/// # Errors
/// The reason why its sum would lack samples.
pub fn is_continued(is_closed: bool, (record, now): (&str, &str)) -> Result<(), String> {
    if !is_closed && (now.is_empty() || record != now) {
        return Err("the machine stopped while samples were counted".to_owned());
    }
    Ok(())
}

/// Removes a file that cannot be written, since a sum that lacks samples would be continued. Logs
/// the problem and its consequence.
pub fn abandon(path: &Path, problem: &io::Error, consequence: &str) {
    let removed = fs::remove_file(path).err();
    let removed = removed.map(|error| format!(", nor removed: {error}")).unwrap_or_default();
    warn!("{} is not written: {problem}{removed}; {consequence}", path.display());
}

/// Overwrites the record at an index, counted in records.
///
/// # Errors
/// It is too long, or cannot be written.
pub fn put(
    file: &File,
    buffer: &mut Vec<u8>,
    index: usize,
    record: Option<&impl Serialize>,
) -> io::Result<()> {
    buffer.clear();
    if let Some(record) = record {
        serde_json::to_writer(&mut *buffer, record)?;
    }
    if buffer.len() >= SIZE {
        return Err(io::Error::other("the record is too long"));
    }
    // The rest of a longer record is overwritten.
    buffer.resize(SIZE - 1, b' ');
    buffer.push(b'\n');
    // One call, so that a kill leaves the record before or this one.
    let written = file.write_at(buffer, (index * SIZE) as u64)?;
    if written == SIZE { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}
