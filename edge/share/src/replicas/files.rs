//! Reads directories and blocks of files. Follows no link. Blocking.

use std::{
    collections::BTreeMap,
    fs::{self, File, Metadata},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::Path,
};

use neptune_transfer::Digest;
use serde::{Deserialize, Serialize};

use crate::replicas::manifest::{BLOCK, RelativePath};

/// Bytes that are read at once.
const PIECE: usize = 128 * 1024;

/// Identifies a version of a file, unless it was changed without a change of its size and time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileVersion {
    pub inode: u64,
    pub bytes: u64,
    /// Time of the last modification, in nanoseconds since 1970.
    pub modified: i128,
}

impl From<&Metadata> for FileVersion {
    fn from(metadata: &Metadata) -> Self {
        let modified =
            i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        Self { inode: metadata.ino(), bytes: metadata.len(), modified }
    }
}

/// Returns the regular files below `root`. Files whose path is not UTF-8 are left out.
pub fn walk(root: &Path) -> io::Result<BTreeMap<RelativePath, FileVersion>> {
    let mut files = BTreeMap::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && directory != root => continue,
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            // It may be gone meanwhile.
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            if metadata.is_dir() {
                directories.push(path);
            } else if metadata.is_file() {
                let relative = path.strip_prefix(root).ok().and_then(Path::to_str);
                if let Some(relative) = relative.and_then(|it| it.parse().ok()) {
                    files.insert(relative, FileVersion::from(&metadata));
                } else {
                    tracing::warn!(path = %path.display(), "path cannot be replicated");
                }
            }
        }
    }
    Ok(files)
}

/// Returns the digests of the blocks from block `first` to byte `end`.
pub fn hash_blocks(path: &Path, first: usize, end: u64) -> io::Result<Vec<Digest>> {
    let mut file = File::open(path)?;
    let mut at = first as u64 * BLOCK;
    file.seek(SeekFrom::Start(at))?;
    let mut digests = Vec::new();
    while at < end {
        let length = (end - at).min(BLOCK);
        let (digest, read) = Digest::of_reader((&file).take(length))?;
        if read < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        digests.push(digest);
        at += length;
    }
    Ok(digests)
}

/// Returns the end of the last line that ends before byte `end`; 0 if there is none.
pub fn last_line_end(path: &Path, end: u64) -> io::Result<u64> {
    let file = File::open(path)?;
    let mut piece = vec![0; PIECE];
    let mut end = end;
    while end > 0 {
        let start = end.saturating_sub(PIECE as u64);
        let size = usize::try_from(end - start).unwrap_or(PIECE);
        file.read_exact_at(&mut piece[..size], start)?;
        if let Some(position) = piece[..size].iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + position as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Reads `length` bytes of a file at an offset.
pub fn read_at(path: &Path, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    File::open(path)?.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

/// Writes bytes at an offset; the file may not exist.
pub fn write_at(path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    file.write_all_at(bytes, offset)
}

/// The space that is free on the file system of a path, in bytes.
pub fn free_space(path: &Path) -> io::Result<u64> {
    let stats = rustix::fs::statvfs(path)?;
    Ok(stats.f_bavail.saturating_mul(stats.f_frsize))
}
