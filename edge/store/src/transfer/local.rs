//! Copies the missing bytes of a partial download from a file of this node, if the file is in an
//! allowed directory.

use std::{
    fs::File,
    io::{self, Seek as _, SeekFrom},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Instant,
};

use bytes::BytesMut;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use tokio::{io::AsyncReadExt as _, sync::watch, task::spawn_blocking};

use crate::{
    FetchProgress, ModelError, progress::TransferRate, resume::Validator,
    storage::partial::PartialDownload,
};

const BUFFER: usize = 256 << 10;

/// An open file in an allowed directory.
pub struct LocalFile {
    file: File,
    /// Length in bytes when it was opened.
    length: u64,
    /// Identifies the version of the content.
    pub validator: Validator,
}

/// Opens a regular file that is below one of `roots` after resolving symbolic links. Blocking.
pub fn open(path: &Path, roots: &[PathBuf]) -> Result<LocalFile, ModelError> {
    let io_error = |source| ModelError::LocalFile { path: path.to_owned(), source };
    let refused = |reason: &str| ModelError::PathNotAllowed {
        path: path.to_owned(),
        reason: reason.to_owned(),
    };
    // The first check does not access the path, so that the result does not reveal which files
    // exist outside the allowed directories.
    let is_below = |path: &Path| roots.iter().any(|root| path.starts_with(root));
    let real_roots: Vec<PathBuf> =
        roots.iter().filter_map(|root| root.canonicalize().ok()).collect();
    if !is_below(path) && !real_roots.iter().any(|root| path.starts_with(root)) {
        return Err(refused("path is outside the allowed directories"));
    }
    let real = path.canonicalize().map_err(io_error)?;
    if !real_roots.iter().any(|root| real.starts_with(root)) {
        return Err(refused("symbolic link leads outside the allowed directories"));
    }
    // NO_SYMLINKS: a link that replaces a directory of the path meanwhile is not followed.
    // NONBLOCK: opening a pipe must not wait for a writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat2(CWD, &real, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
        .map_err(|error| io_error(error.into()))?;
    let file = File::from(file);
    let metadata = file.metadata().map_err(io_error)?;
    if !metadata.is_file() {
        return Err(refused("not a regular file; pack a directory into an archive"));
    }
    let validator = format!(
        "{}:{}:{}.{:09}",
        metadata.ino(),
        metadata.len(),
        metadata.mtime(),
        metadata.mtime_nsec()
    );
    Ok(LocalFile { file, length: metadata.len(), validator: Validator::File(validator) })
}

/// Appends the missing bytes until the download is complete.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn copy(
    path: &Path,
    roots: &[PathBuf],
    partial: &mut PartialDownload,
    progress: &watch::Sender<FetchProgress>,
) -> Result<(), ModelError> {
    let source = {
        let (path, roots) = (path.to_owned(), roots.to_vec());
        spawn_blocking(move || open(&path, &roots)).await.expect("opening a file does not panic")?
    };
    if partial.validator() != Some(&source.validator) {
        partial.restart(Some(source.length), Some(source.validator.clone())).await?;
    }
    partial.check_disk_space()?;
    let io_error = |source| ModelError::LocalFile { path: path.to_owned(), source };
    let mut file = source.file;
    file.seek(SeekFrom::Start(partial.received())).map_err(io_error)?;
    let mut file = tokio::fs::File::from_std(file);
    file.set_max_buf_size(BUFFER);
    let mut rate = TransferRate::new(Instant::now());
    while !partial.is_complete() {
        let mut chunk = BytesMut::with_capacity(BUFFER);
        let read = file.read_buf(&mut chunk).await.map_err(io_error)? as u64;
        if read == 0 || partial.received() + read > source.length {
            partial.restart(None, None).await?;
            return Err(io_error(io::Error::other("file changed while it was read")));
        }
        partial.append(chunk.freeze()).await?;
        if let Some(per_second) = rate.add(read, Instant::now()) {
            let (received, total) = (partial.received(), partial.total());
            progress.send_replace(FetchProgress::downloading(received, total, per_second));
        }
    }
    Ok(())
}
