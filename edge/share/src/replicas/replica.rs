//! A copy of a directory: fetches what is missing, and remembers what it has.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::peers::client::{
    connection::{PeerConnection, PeerError},
    download::download,
    partial::PeerPartial,
};
use neptune_transfer::{Digest, json};
use neptune_wire::NodeName;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use crate::replicas::{
    DatasetDescription, Generation,
    block_fetch::{BlockFetch, ReplicaError, SyncReport},
    compare::{BlockOrigin, Deletions, FileChange, compare, origins_of},
    directory_lock::DirectoryLock,
    files::{FileVersion, free_space, hash_blocks, read_at, walk, write_at},
    manifest::{BLOCK, FileBlocks, Manifest, RelativePath},
    progress::SyncProgress,
    staging::{put, remove_leftovers, staged_blocks, whole_lines},
};

/// Bytes of an encoded manifest at most.
const MAX_MANIFEST: u64 = 512 * 1024 * 1024;

/// The copy of another node's directory or file.
#[derive(Debug)]
pub struct Replica {
    root: PathBuf,
    state: PathBuf,
    lock: DirectoryLock,
    deletions: Deletions,
    /// Bytes of the file system that stay free.
    reserve: u64,
    committed: Option<DatasetDescription>,
    files: BTreeMap<RelativePath, FileBlocks>,
    /// Files that differed from the last commit when the directory was read.
    local_changes: usize,
    progress: Arc<SyncProgress>,
    /// The file that a sync was writing when it failed, and its blocks so far.
    staged: Option<(RelativePath, Vec<Digest>)>,
}

/// What a restart reads.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Committed {
    description: Option<DatasetDescription>,
    files: BTreeMap<RelativePath, (FileVersion, FileBlocks)>,
}

impl Replica {
    /// Opens the copy in `root`. `state` is a directory in the same file system, outside of `root`.
    /// Files that changed since the last commit are hashed; with `is_full`, all of them. A sync
    /// leaves `reserve` bytes of the file system free. Blocking: waits until no other replica uses
    /// `state`.
    ///
    /// # Errors
    /// The directories cannot be created or read.
    pub fn open(
        root: &Path,
        state: &Path,
        deletions: Deletions,
        reserve: u64,
        is_full: bool,
    ) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        fs::create_dir_all(state.join("new"))?;
        let replica = Self {
            lock: DirectoryLock::take(state)?,
            root: root.to_owned(),
            state: state.to_owned(),
            deletions,
            reserve,
            committed: None,
            files: BTreeMap::new(),
            local_changes: 0,
            progress: Arc::default(),
            staged: None,
        };
        replica.reopen(is_full)
    }

    /// Reads the directory again, as [`Replica::open`] does. Blocking.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn reopen(mut self, is_full: bool) -> io::Result<Self> {
        let committed: Committed = json::read(&self.state.join("replica.json")).unwrap_or_default();
        // A sync that was interrupted has changed files itself.
        let is_settled = committed.description.is_some() && !self.marker().exists();
        let (mut files, mut changes) = (BTreeMap::new(), 0);
        for (path, version) in walk(&self.root)? {
            let known = committed.files.get(&path);
            let same = known.filter(|(known, _)| !is_full && *known == version);
            let content = if let Some((_, content)) = same {
                content.clone()
            } else {
                let blocks = hash_blocks(&path.below(&self.root), 0, version.bytes)?;
                FileBlocks { bytes: version.bytes, blocks }
            };
            changes += usize::from(known.is_none_or(|(_, known)| *known != content));
            files.insert(path, content);
        }
        changes += committed.files.keys().filter(|path| !files.contains_key(*path)).count();
        self.local_changes = if is_settled { changes } else { 0 };
        (self.committed, self.files, self.staged) = (committed.description, files, None);
        Ok(self)
    }

    /// Returns the last complete generation; `None` before the first one.
    pub fn generation(&self) -> Option<Generation> {
        self.committed.as_ref().map(|committed| committed.generation)
    }

    /// Returns what the source described when the last generation was complete.
    pub fn description(&self) -> Option<&DatasetDescription> {
        self.committed.as_ref()
    }

    /// Returns the hash of the files as they are, see [`Manifest::root`].
    pub fn root(&self) -> Digest {
        Manifest { generation: 0, files: self.files.clone() }.root()
    }

    /// Returns the number of files that differed from the last commit when the directory was read
    /// last. Somebody else changed them, and the next sync replaces them.
    pub fn local_changes(&self) -> usize {
        self.local_changes
    }

    /// What the replica does, readable while it syncs.
    pub fn progress(&self) -> &Arc<SyncProgress> {
        &self.progress
    }

    /// The file that exists from the first change of a sync to its commit.
    fn marker(&self) -> PathBuf {
        self.state.join("syncing")
    }

    /// Runs blocking file access. It ends also if the future is dropped, and holds the lock until
    /// then.
    fn blocking<T, F>(&self, task: F) -> impl Future<Output = Result<T, ReplicaError>> + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, ReplicaError> + Send + 'static,
    {
        let lock = self.lock.clone();
        let access = spawn_blocking(move || {
            let result = task();
            drop(lock);
            result
        });
        async move { access.await.expect("file access does not panic") }
    }

    /// Makes the files equal to a generation of the source. If the future is dropped, what has
    /// arrived stays; call [`Replica::reopen`] before the next sync.
    ///
    /// # Errors
    /// See [`ReplicaError`]. Call it again, with the newest generation.
    pub async fn sync(
        &mut self,
        connection: &mut PeerConnection,
        source: &NodeName,
        described: &DatasetDescription,
    ) -> Result<SyncReport, ReplicaError> {
        let generation = &described.generation;
        let wanted = self.manifest(connection, source, &generation.manifest).await?;
        if wanted.root() != generation.root {
            return Err(PeerError::Invalid("the manifest does not have its root").into());
        }
        let plan = compare(&self.files, &wanted);
        self.progress.set_behind(plan.missing_bytes);
        let marker = self.marker();
        self.blocking(move || {
            File::create(marker)?;
            Ok(())
        })
        .await?;
        let mut report = SyncReport { generation: wanted.generation, ..SyncReport::default() };
        for (path, change) in &plan.changes {
            let file = &wanted.files[path];
            let progress = Arc::clone(&self.progress);
            let mut fetch = BlockFetch { connection, report: &mut report, progress };
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
        self.commit(described.clone()).await?;
        Ok(report)
    }

    async fn manifest(
        &self,
        connection: &mut PeerConnection,
        source: &NodeName,
        digest: &Digest,
    ) -> Result<Manifest, ReplicaError> {
        let path = self.state.join(format!("manifest-{digest}"));
        let mut partial = PeerPartial::open(&path).await?;
        if partial.file.digest() != *digest {
            download(connection, source, digest, &mut partial, MAX_MANIFEST).await?;
        }
        if partial.file.digest() != *digest {
            partial.restart().await?;
            return Err(PeerError::Invalid("the manifest does not have its digest").into());
        }
        drop(partial);
        self.blocking(move || Ok(Manifest::decode(&fs::read(path)?)?)).await
    }

    /// Writes the new blocks of a file that grew. Returns false if its end was changed as well. What
    /// follows the last line break of a block is held back until the next block: a sync that is cut
    /// leaves no part of a line, unless the line is longer than a block.
    async fn append(
        &mut self,
        fetch: &mut BlockFetch<'_>,
        path: &RelativePath,
        file: &FileBlocks,
        first: usize,
    ) -> Result<bool, ReplicaError> {
        let target = path.below(&self.root);
        let mut held = Vec::new();
        for index in first..file.blocks.len() {
            let start = index as u64 * BLOCK;
            let own = self.files.get(path).map_or(0, |own| own.bytes);
            let (read_from, present) = (target.clone(), own.saturating_sub(start));
            let prefix = match present {
                0 => Vec::new(),
                _ => self.blocking(move || Ok(read_at(&read_from, start, present)?)).await?,
            };
            let length = prefix.len();
            let Some(bytes) = fetch.block(file, index, prefix).await? else { return Ok(false) };
            held.extend_from_slice(&bytes[length..]);
            let is_last = index + 1 == file.blocks.len();
            let lines = if is_last { std::mem::take(&mut held) } else { whole_lines(&mut held) };
            let (target, end) = (target.clone(), own + lines.len() as u64);
            self.check_space().await?;
            self.blocking(move || Ok(write_at(&target, own, &lines)?)).await?;
            let own = self.files.entry(path.clone()).or_default();
            own.bytes = end;
            // The block in which the file ends now has its digest only at the end of the file.
            let whole = usize::try_from(end / BLOCK).unwrap_or(index).min(index + 1);
            let whole = if is_last { file.blocks.len() } else { whole };
            own.blocks.truncate(first);
            own.blocks.extend_from_slice(&file.blocks[first..whole]);
            self.progress.arrived(file.block_length(index));
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
                self.blocking(move || Ok(staged_blocks(&staging)?)).await?
            }
        };
        let wanted = file.blocks.iter();
        let present = staged.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        staged.truncate(present);
        self.staged = Some((path.clone(), staged));
        for (index, origin) in origins.iter().enumerate() {
            if index < present {
                if *origin == BlockOrigin::Source {
                    self.progress.arrived(file.block_length(index));
                }
                continue;
            }
            let local = match origin {
                BlockOrigin::Local(from, at) => {
                    let (from, offset) = (from.below(&self.root), *at as u64 * BLOCK);
                    let (length, digest) = (file.block_length(index), file.blocks[index]);
                    // The file may have been changed by this sync already, or by somebody else.
                    let bytes =
                        self.blocking(move || Ok(read_at(&from, offset, length).ok())).await?;
                    bytes.filter(|bytes| Digest::of_bytes(bytes) == digest)
                }
                BlockOrigin::Source => None,
            };
            let bytes = if let Some(bytes) = local {
                fetch.report.reused_blocks += 1;
                self.progress.count_reused();
                bytes
            } else {
                let bytes = fetch.block(file, index, Vec::new()).await?;
                let bytes = bytes.ok_or(PeerError::Invalid("a block does not have its digest"))?;
                self.progress.arrived(file.block_length(index));
                bytes
            };
            let target = staging.clone();
            self.check_space().await?;
            self.blocking(move || Ok(write_at(&target, index as u64 * BLOCK, &bytes)?)).await?;
            if let Some((_, staged)) = &mut self.staged {
                staged.push(file.blocks[index]);
            }
        }
        self.staged = None;
        let (root, path_below, bytes) = (self.root.clone(), path.clone(), file.bytes);
        self.blocking(move || Ok(put(&staging, &root, &path_below, bytes)?)).await?;
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

    /// Whether the file system has more than the reserve.
    async fn check_space(&self) -> Result<(), ReplicaError> {
        let (root, reserve) = (self.root.clone(), self.reserve);
        self.blocking(move || {
            let free = free_space(&root)?;
            if free < reserve + BLOCK {
                return Err(ReplicaError::DiskFull { free, reserve });
            }
            Ok(())
        })
        .await
    }

    /// Syncs everything to the disk, then records the generation.
    async fn commit(&mut self, described: DatasetDescription) -> Result<(), ReplicaError> {
        let (root, state, marker) = (self.root.clone(), self.state.clone(), self.marker());
        let (contents, committed) = (self.files.clone(), Some(described.clone()));
        self.blocking(move || {
            rustix::fs::syncfs(File::open(&root)?).map_err(io::Error::from)?;
            let versions = walk(&root)?.into_iter();
            let files = versions.filter_map(|(path, version)| {
                let content = contents.get(&path)?.clone();
                Some((path, (version, content)))
            });
            let committed = Committed { description: committed, files: files.collect() };
            json::write(&state.join("replica.json"), &committed)?;
            fs::remove_file(marker)?;
            Ok(remove_leftovers(&state)?)
        })
        .await?;
        (self.committed, self.local_changes) = (Some(described), 0);
        self.progress.set_behind(0);
        Ok(())
    }
}
