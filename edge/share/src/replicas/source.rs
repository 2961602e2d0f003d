//! The node with the data: hashes what changed, and offers it to its replicas.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs, io,
    path::{Path, PathBuf},
};

use crate::peers::{ContentSource, ContentState, FileRange};
use neptune_transfer::{Digest, json};
use neptune_wire::NodeName;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use crate::replicas::{
    directory_lock::DirectoryLock,
    files::{FileVersion, hash_blocks, last_line_end, walk},
    manifest::{BLOCK, FileBlocks, InvalidManifest, MAX_FILES, Manifest, RelativePath},
};

/// Manifests that are offered: a replica may still work with the one before.
const KEPT_MANIFESTS: usize = 2;

/// The end of a file's content, as replicas see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileEnd {
    /// The content ends at the end of the file.
    Whole,
    /// The content ends after the last line break, so that a replica never has a part of a line.
    LastLine,
}

/// What a source answers to its replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetDescription {
    /// The newest generation of the data.
    #[serde(flatten)]
    pub generation: Generation,
    /// The name of the only file; `None` if the data is a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<RelativePath>,
}

/// A state of the data, which is numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// Grows with each change, also over restarts.
    pub number: u64,
    /// The hash of all files, see [`Manifest::root`].
    pub root: Digest,
    /// The digest of the encoded manifest, which replicas fetch.
    pub manifest: Digest,
    /// Bytes of all files.
    pub bytes: u64,
}

/// The location of a source's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceData {
    /// The files below a directory.
    Directory(PathBuf),
    /// One file, which the replicas have under this name.
    File(PathBuf, RelativePath),
}

impl SourceData {
    fn walk(&self) -> io::Result<BTreeMap<RelativePath, FileVersion>> {
        match self {
            Self::Directory(root) => walk(root),
            Self::File(path, name) => {
                let version = FileVersion::from(&fs::metadata(path)?);
                Ok([(name.clone(), version)].into())
            }
        }
    }

    fn path(&self, file: &RelativePath) -> PathBuf {
        match self {
            Self::Directory(root) => file.below(root),
            Self::File(path, _) => path.clone(),
        }
    }

    fn file(&self) -> Option<RelativePath> {
        match self {
            Self::Directory(_) => None,
            Self::File(_, name) => Some(name.clone()),
        }
    }
}

/// Data that other nodes copy.
#[derive(Debug)]
pub struct DatasetSource {
    data: SourceData,
    /// The digest by which the replicas ask for the dataset.
    name: Digest,
    state: PathBuf,
    _lock: DirectoryLock,
    end: FileEnd,
    /// What the last scan found. The lock permits one scan at a time.
    scanned: Mutex<Scanned>,
    offered: Mutex<Offered>,
}

/// What the last scan found. Stored, so that a restart does not hash everything again.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Scanned {
    generation: u64,
    files: BTreeMap<RelativePath, ScannedFile>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct ScannedFile {
    version: FileVersion,
    content: FileBlocks,
}

#[derive(Debug, Default)]
struct Offered {
    replicas: BTreeSet<NodeName>,
    current: Option<Generation>,
    /// The manifests that are offered, the newest one last.
    manifests: Vec<(Digest, FileRange)>,
    blocks: HashMap<Digest, FileRange>,
}

impl DatasetSource {
    /// Opens the data. `name` is how replicas ask for it, and `state` a directory for what the source
    /// remembers, outside of the data. Blocking: waits until no other source uses `state`.
    ///
    /// # Errors
    /// `state` cannot be created.
    pub fn open(data: SourceData, name: Digest, state: &Path, end: FileEnd) -> io::Result<Self> {
        fs::create_dir_all(state)?;
        let lock = DirectoryLock::take(state)?;
        let scanned = json::read(&state.join("source.json")).unwrap_or_default();
        let (state, scanned, offered) = (state.to_owned(), Mutex::new(scanned), Mutex::default());
        Ok(Self { data, name, state, _lock: lock, end, scanned, offered })
    }

    /// Sets the nodes that may fetch the data. Others see nothing of it.
    pub fn set_replicas(&self, replicas: BTreeSet<NodeName>) {
        lock(&self.offered).replicas = replicas;
    }

    /// Hashes what changed since the last scan, and offers the result. Returns the generation, which
    /// is the one before if nothing changed. With `is_full`, each file is hashed, which finds changes
    /// that kept size and time, and edits before the end of a file that also grew. Blocking, for as long as reading the changed files takes.
    ///
    /// A file that changes meanwhile may be offered with blocks that do not exist any more. Replicas
    /// notice it, and take the next generation.
    ///
    /// # Errors
    /// The directory cannot be read, or has too many files.
    pub fn scan(&self, is_full: bool) -> io::Result<Generation> {
        let mut scanned = lock(&self.scanned);
        let versions = self.data.walk()?;
        if versions.len() > MAX_FILES {
            return Err(io::Error::other(InvalidManifest::TooManyFiles(versions.len())));
        }
        let mut files = BTreeMap::new();
        for (path, version) in versions {
            let known = scanned.files.get(&path).filter(|_| !is_full);
            match self.hash(&path, version, known) {
                Ok(content) => drop(files.insert(path, ScannedFile { version, content })),
                // It was removed or became shorter: the next scan has the answer.
                Err(error) => {
                    tracing::debug!(path = path.as_str(), %error, "file changed while it was read");
                    files.extend(scanned.files.get(&path).map(|it| (path, it.clone())));
                }
            }
        }
        let content = |files: &BTreeMap<RelativePath, ScannedFile>| {
            let files = files.iter().map(|(path, file)| (path.clone(), file.content.clone()));
            files.collect::<BTreeMap<_, _>>()
        };
        let manifest = content(&files);
        let is_changed = scanned.generation == 0 || manifest != content(&scanned.files);
        let generation = scanned.generation + u64::from(is_changed);
        *scanned = Scanned { generation, files };
        if let Some(current) = lock(&self.offered).current.filter(|_| !is_changed) {
            return Ok(current);
        }
        // The number is on the disk before anybody sees it.
        json::write(&self.state.join("source.json"), &*scanned)?;
        self.offer(&Manifest { generation, files: manifest })
    }

    fn hash(
        &self,
        path: &RelativePath,
        version: FileVersion,
        known: Option<&ScannedFile>,
    ) -> io::Result<FileBlocks> {
        let file = self.data.path(path);
        if let Some(known) = known.filter(|known| known.version == version) {
            return Ok(known.content.clone());
        }
        let bytes = match self.end {
            FileEnd::Whole => version.bytes,
            FileEnd::LastLine => last_line_end(&file, version.bytes)?,
        };
        let mut blocks = match known {
            Some(known)
                if known.version.inode == version.inode && known.version.bytes < version.bytes =>
            {
                unchanged_blocks(&file, &known.content, bytes)?
            }
            _ => Vec::new(),
        };
        blocks.extend(hash_blocks(&file, blocks.len(), bytes)?);
        Ok(FileBlocks { bytes, blocks })
    }

    fn offer(&self, manifest: &Manifest) -> io::Result<Generation> {
        let encoded = manifest.encode()?;
        let digest = Digest::of_bytes(&encoded);
        let path = self.state.join(format!("manifest-{digest}"));
        fs::write(&path, &encoded)?;
        let (number, root) = (manifest.generation, manifest.root());
        let generation = Generation { number, root, manifest: digest, bytes: manifest.bytes() };
        let mut blocks = HashMap::new();
        for (path, file) in &manifest.files {
            let path = self.data.path(path);
            for (index, digest) in file.blocks.iter().enumerate() {
                let (offset, length) = (index as u64 * BLOCK, file.block_length(index));
                blocks.insert(*digest, FileRange { path: path.clone(), offset, length });
            }
        }
        let mut offered = lock(&self.offered);
        offered.manifests.retain(|(known, _)| *known != digest);
        let range = FileRange { path, offset: 0, length: encoded.len() as u64 };
        offered.manifests.push((digest, range));
        offered.blocks = blocks;
        offered.current = Some(generation);
        let extra = offered.manifests.len().saturating_sub(KEPT_MANIFESTS);
        for (_, range) in offered.manifests.drain(..extra) {
            fs::remove_file(range.path)?;
        }
        Ok(generation)
    }
}

/// Returns the full blocks of a file that grew, if its first and its last full block are unchanged.
fn unchanged_blocks(path: &Path, known: &FileBlocks, bytes: u64) -> io::Result<Vec<Digest>> {
    let full = usize::try_from(known.bytes / BLOCK).unwrap_or_default();
    if full == 0 || bytes < known.bytes {
        return Ok(Vec::new());
    }
    let is_same = |index: usize| {
        let end = (index as u64 + 1) * BLOCK;
        hash_blocks(path, index, end).map(|digests| digests[0] == known.blocks[index])
    };
    if is_same(0)? && is_same(full - 1)? {
        Ok(known.blocks[..full].to_vec())
    } else {
        Ok(Vec::new())
    }
}

impl ContentSource for DatasetSource {
    fn find(&self, digest: &Digest, peer: &NodeName) -> ContentState {
        let offered = lock(&self.offered);
        if !offered.replicas.contains(peer) {
            return ContentState::Absent;
        }
        let manifest = offered.manifests.iter().find(|(known, _)| known == digest);
        let range = manifest.map(|(_, range)| range).or_else(|| offered.blocks.get(digest));
        range.map_or(ContentState::Absent, |range| ContentState::Held(range.clone()))
    }

    fn request(&self, _digest: &Digest, _peer: &NodeName) -> bool {
        false
    }

    // A block that differs is one of a file that changed: the next scan has it.
    fn scrub(&self, _digest: &Digest, _peer: &NodeName) {}

    fn describe(&self, dataset: &Digest, peer: &NodeName) -> Option<Vec<u8>> {
        let offered = lock(&self.offered);
        let is_known = *dataset == self.name && offered.replicas.contains(peer);
        let generation = offered.current.filter(|_| is_known)?;
        let description = DatasetDescription { generation, file: self.data.file() };
        serde_json::to_vec(&description).ok()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one step, so a panic of another thread leaves no inconsistent value.
    mutex.lock()
}
