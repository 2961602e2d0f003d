//! A copy of a directory: fetches what is missing, and remembers what it has.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use neptune_content::Digest;
use neptune_peers::{
    Peer,
    client::{
        connection::{PeerConnection, PeerError},
        download::download,
        partial::PartialFile,
    },
};
use neptune_pinned_tls::TlsKey;
use serde::{Deserialize, Serialize};

use crate::{
    block_fetch::{BlockFetch, ReplicaError, SyncReport, blocking},
    compare::{BlockOrigin, FileChange, compare, origins_of},
    files::{FileVersion, hash_blocks, read_at, read_json, walk, write_at, write_json},
    manifest::{BLOCK, FileBlocks, Manifest, RelativePath},
    staging::{put, remove_leftovers, staged_blocks},
};

/// Bytes of an encoded manifest at most.
const MAX_MANIFEST: u64 = 512 * 1024 * 1024;

/// What happens to files that the source removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletions {
    /// They are removed.
    Follow,
    /// They stay.
    Keep,
}

/// The copy of a directory.
#[derive(Debug)]
pub struct Replica {
    root: PathBuf,
    state: PathBuf,
    deletions: Deletions,
    generation: u64,
    files: BTreeMap<RelativePath, FileBlocks>,
    /// Bytes to fetch for the manifest of the last sync.
    missing_bytes: u64,
    /// The file that a sync was writing when it failed, and its blocks so far.
    staged: Option<(RelativePath, Vec<Digest>)>,
}

/// What a restart reads.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Committed {
    generation: u64,
    files: BTreeMap<RelativePath, (FileVersion, FileBlocks)>,
}

impl Replica {
    /// Opens the copy in `root`. `state` is a directory in the same file system, outside of `root`.
    /// Files that changed since the last commit are hashed; with `is_full`, all of them. Blocking.
    ///
    /// # Errors
    /// The directories cannot be created or read.
    pub fn open(
        root: &Path,
        state: &Path,
        deletions: Deletions,
        is_full: bool,
    ) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        fs::create_dir_all(state.join("new"))?;
        let committed: Committed = read_json(&state.join("replica.json")).unwrap_or_default();
        let mut files = BTreeMap::new();
        for (path, version) in walk(root)? {
            let known =
                committed.files.get(&path).filter(|(known, _)| !is_full && *known == version);
            let content = if let Some((_, content)) = known {
                content.clone()
            } else {
                let blocks = hash_blocks(&path.below(root), 0, version.bytes)?;
                FileBlocks { bytes: version.bytes, blocks }
            };
            files.insert(path, content);
        }
        let (root, state) = (root.to_owned(), state.to_owned());
        let generation = committed.generation;
        Ok(Self { root, state, deletions, generation, files, missing_bytes: 0, staged: None })
    }

    /// Returns the last complete generation; 0 if there is none.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the hash of the files as they are, see [`Manifest::root`].
    pub fn root(&self) -> Digest {
        Manifest { generation: 0, files: self.files.clone() }.root()
    }

    /// Returns the bytes that the last sync has still to fetch.
    pub fn bytes_behind(&self) -> u64 {
        self.missing_bytes
    }

    /// Makes the files equal to the manifest with this digest.
    ///
    /// # Errors
    /// See [`ReplicaError`]. Call it again, with the newest manifest.
    pub async fn sync(
        &mut self,
        key: &TlsKey,
        source: &Peer,
        manifest: &Digest,
    ) -> Result<SyncReport, ReplicaError> {
        let mut connection = PeerConnection::open(key, source).await?;
        let wanted = self.manifest(&mut connection, source, manifest).await?;
        let plan = compare(&self.files, &wanted);
        self.missing_bytes = plan.missing_bytes;
        let mut report = SyncReport { generation: wanted.generation, ..SyncReport::default() };
        for (path, change) in &plan.changes {
            let file = &wanted.files[path];
            let mut fetch = BlockFetch { connection: &mut connection, report: &mut report };
            match change {
                FileChange::Append(first) => {
                    if !self.append(&mut fetch, path, file, *first).await? {
                        let origins = origins_of(&self.files, path, file);
                        self.rewrite(&mut fetch, path, file, &origins).await?;
                    }
                }
                FileChange::Rewrite(origins) => {
                    self.rewrite(&mut fetch, path, file, origins).await?;
                }
            }
        }
        if self.deletions == Deletions::Follow {
            for path in &plan.deletions {
                self.delete(path)?;
            }
        }
        self.commit(wanted.generation).await?;
        Ok(report)
    }

    async fn manifest(
        &self,
        connection: &mut PeerConnection,
        source: &Peer,
        digest: &Digest,
    ) -> Result<Manifest, ReplicaError> {
        let path = self.state.join(format!("manifest-{digest}"));
        let mut partial = PartialFile::open(&path).await?;
        if !partial.has_digest(digest) {
            download(connection, &source.node, digest, &mut partial, MAX_MANIFEST).await?;
        }
        if !partial.has_digest(digest) {
            partial.restart().await?;
            return Err(PeerError::Invalid("the manifest does not have its digest").into());
        }
        drop(partial);
        blocking(move || Ok(Manifest::decode(&fs::read(path)?)?)).await
    }

    /// Writes the new blocks of a file that grew. Returns false if its end was changed as well.
    async fn append(
        &mut self,
        fetch: &mut BlockFetch<'_>,
        path: &RelativePath,
        file: &FileBlocks,
        first: usize,
    ) -> Result<bool, ReplicaError> {
        let target = path.below(&self.root);
        for index in first..file.blocks.len() {
            let start = index as u64 * BLOCK;
            let own = self.files.get(path).map_or(0, |own| own.bytes);
            let (read_from, present) = (target.clone(), own.saturating_sub(start));
            let prefix = match present {
                0 => Vec::new(),
                _ => blocking(move || Ok(read_at(&read_from, start, present)?)).await?,
            };
            let length = prefix.len();
            let Some(bytes) = fetch.block(file, index, prefix).await? else { return Ok(false) };
            let target = target.clone();
            blocking(move || Ok(write_at(&target, own, &bytes[length..])?)).await?;
            let own = self.files.entry(path.clone()).or_default();
            own.blocks.truncate(index);
            own.blocks.push(file.blocks[index]);
            own.bytes = start + file.block_length(index);
            self.missing_bytes = self.missing_bytes.saturating_sub(file.block_length(index));
        }
        Ok(true)
    }

    /// Writes a file beside the others, and renames it. An earlier attempt is continued.
    async fn rewrite(
        &mut self,
        fetch: &mut BlockFetch<'_>,
        path: &RelativePath,
        file: &FileBlocks,
        origins: &[BlockOrigin],
    ) -> Result<(), ReplicaError> {
        let staging =
            self.state.join("new").join(Digest::of_bytes(path.as_str().as_bytes()).to_string());
        let mut staged = match self.staged.take() {
            Some((known, blocks)) if known == *path => blocks,
            _ => {
                let staging = staging.clone();
                blocking(move || Ok(staged_blocks(&staging)?)).await?
            }
        };
        let wanted = file.blocks.iter();
        let present = staged.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        staged.truncate(present);
        self.staged = Some((path.clone(), staged));
        for (index, origin) in origins.iter().enumerate() {
            if index < present {
                if *origin == BlockOrigin::Source {
                    self.missing_bytes =
                        self.missing_bytes.saturating_sub(file.block_length(index));
                }
                continue;
            }
            let local = match origin {
                BlockOrigin::Local(from, at) => {
                    let (from, offset) = (from.below(&self.root), *at as u64 * BLOCK);
                    let (length, digest) = (file.block_length(index), file.blocks[index]);
                    // The file may have been changed by this sync already, or by somebody else.
                    let bytes = blocking(move || Ok(read_at(&from, offset, length).ok())).await?;
                    bytes.filter(|bytes| Digest::of_bytes(bytes) == digest)
                }
                BlockOrigin::Source => None,
            };
            let bytes = if let Some(bytes) = local {
                fetch.report.reused_blocks += 1;
                bytes
            } else {
                let bytes = fetch.block(file, index, Vec::new()).await?;
                let bytes = bytes.ok_or(PeerError::Invalid("a block does not have its digest"))?;
                self.missing_bytes = self.missing_bytes.saturating_sub(file.block_length(index));
                bytes
            };
            let target = staging.clone();
            blocking(move || Ok(write_at(&target, index as u64 * BLOCK, &bytes)?)).await?;
            if let Some((_, staged)) = &mut self.staged {
                staged.push(file.blocks[index]);
            }
        }
        self.staged = None;
        let (root, path_below, bytes) = (self.root.clone(), path.clone(), file.bytes);
        blocking(move || Ok(put(&staging, &root, &path_below, bytes)?)).await?;
        self.files.insert(path.clone(), file.clone());
        Ok(())
    }

    fn delete(&mut self, path: &RelativePath) -> io::Result<()> {
        let file = path.below(&self.root);
        match fs::remove_file(&file) {
            // A parent is a new file already.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound
                        | io::ErrorKind::NotADirectory
                        | io::ErrorKind::IsADirectory
                ) => {}
            removed => removed?,
        }
        let mut parent = file.parent();
        // Succeeds only for empty directories.
        while let Some(directory) = parent.filter(|it| *it != self.root) {
            if fs::remove_dir(directory).is_err() {
                break;
            }
            parent = directory.parent();
        }
        self.files.remove(path);
        Ok(())
    }

    /// Syncs everything to the disk, then records the generation.
    async fn commit(&mut self, generation: u64) -> Result<(), ReplicaError> {
        let (root, state) = (self.root.clone(), self.state.clone());
        let contents = self.files.clone();
        blocking(move || {
            rustix::fs::syncfs(File::open(&root)?).map_err(io::Error::from)?;
            let versions = walk(&root)?.into_iter();
            let files = versions.filter_map(|(path, version)| {
                let content = contents.get(&path)?.clone();
                Some((path, (version, content)))
            });
            let committed = Committed { generation, files: files.collect() };
            write_json(&state.join("replica.json"), &committed)?;
            Ok(remove_leftovers(&state)?)
        })
        .await?;
        self.generation = generation;
        self.missing_bytes = 0;
        Ok(())
    }
}
