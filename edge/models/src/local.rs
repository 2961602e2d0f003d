//! Brings what a part lacks from a file of this node, if it is below a directory that the node offers.

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

use crate::{ModelError, Phase, Progress, part::Part, progress::Rate, resume::Validator};

const BUFFER: usize = 256 << 10;

/// A file that may be read, and which version of it it is.
pub struct Offered {
    file: File,
    length: u64,
    pub validator: Validator,
}

/// Opens a regular file that is, links followed, below one of the roots. Blocking.
pub fn open(path: &Path, roots: &[PathBuf]) -> Result<Offered, ModelError> {
    let unreadable = |source| ModelError::Local { path: path.to_owned(), source };
    let refused = |why: &str| ModelError::NotOffered { path: path.to_owned(), why: why.to_owned() };
    // First without touching it: what lies elsewhere on the node is nobody's business.
    let is_below = |path: &Path| roots.iter().any(|root| path.starts_with(root));
    let real_roots: Vec<PathBuf> =
        roots.iter().filter_map(|root| root.canonicalize().ok()).collect();
    if !is_below(path) && !real_roots.iter().any(|root| path.starts_with(root)) {
        return Err(refused("it is not below a directory that this node offers"));
    }
    let real = path.canonicalize().map_err(unreadable)?;
    if !real_roots.iter().any(|root| real.starts_with(root)) {
        return Err(refused("a link leads out of the directories that this node offers"));
    }
    // Nobody can put a link into the way any more; a pipe would wait for its writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat2(CWD, &real, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
        .map_err(|error| unreadable(error.into()))?;
    let file = File::from(file);
    let found = file.metadata().map_err(unreadable)?;
    if !found.is_file() {
        return Err(refused("it is no regular file; pack a directory into an archive"));
    }
    let validator =
        format!("{}:{}:{}.{:09}", found.ino(), found.len(), found.mtime(), found.mtime_nsec());
    Ok(Offered { file, length: found.len(), validator: Validator::File(validator) })
}

/// Appends what is lacking, until the part is whole.
pub async fn pull(
    path: &Path,
    roots: &[PathBuf],
    part: &mut Part,
    progress: &watch::Sender<Progress>,
) -> Result<(), ModelError> {
    let offered = {
        let (path, roots) = (path.to_owned(), roots.to_vec());
        spawn_blocking(move || open(&path, &roots)).await.expect("opening a file does not panic")?
    };
    if part.validator() != Some(&offered.validator) {
        part.start_over(Some(offered.length), Some(offered.validator.clone())).await?;
    }
    part.admit()?;
    let unreadable = |source| ModelError::Local { path: path.to_owned(), source };
    let mut file = offered.file;
    file.seek(SeekFrom::Start(part.received())).map_err(unreadable)?;
    let mut file = tokio::fs::File::from_std(file);
    file.set_max_buf_size(BUFFER);
    let mut rate = Rate::new(Instant::now());
    while !part.is_whole() {
        let mut chunk = BytesMut::with_capacity(BUFFER);
        let read = file.read_buf(&mut chunk).await.map_err(unreadable)? as u64;
        if read == 0 || part.received() + read > offered.length {
            part.start_over(None, None).await?;
            return Err(unreadable(io::Error::other("it changed while it was read")));
        }
        part.push(chunk.freeze()).await?;
        if let Some(bytes_per_second) = rate.add(read, Instant::now()) {
            progress.send_modify(|progress| {
                *progress = Progress {
                    received: part.received(),
                    total: part.total(),
                    bytes_per_second,
                    phase: Phase::Downloading,
                    trouble: None,
                };
            });
        }
    }
    Ok(())
}
