//! The files of a directory as lists of blocks, and their encoding. Pure.

use std::{
    collections::BTreeMap,
    io::{self, Read as _},
    path::{Path, PathBuf},
    str::FromStr,
};

use neptune_transfer::Digest;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Bytes of a block; the last one of a file may be shorter.
pub const BLOCK: u64 = 1024 * 1024;
/// Files of a directory at most.
pub const MAX_FILES: usize = 1_000_000;
/// Bytes of a decoded manifest at most.
const MAX_DECODED: u64 = 1024 * 1024 * 1024;
/// Bytes of a decoded manifest that is compressed at any ratio.
const MAX_INFLATED: u64 = 64 * 1024 * 1024;
/// How much larger a longer one may become: digests do not compress.
const MAX_RATIO: u64 = 16;
/// The largest window of the decompressor, as a power of two: 16 MiB.
const MAX_WINDOW: u32 = 24;
/// Bytes of a path at most.
const MAX_PATH: usize = 1024;

/// A path below the directory: UTF-8, without empty parts, `.` and `..`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RelativePath(String);

impl RelativePath {
    /// Returns the path below `root`.
    pub fn below(&self, root: &Path) -> PathBuf {
        root.join(&self.0)
    }

    /// Returns the path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RelativePath {
    type Err = InvalidManifest;

    fn from_str(text: &str) -> Result<Self, InvalidManifest> {
        text.to_owned().try_into()
    }
}

impl TryFrom<String> for RelativePath {
    type Error = InvalidManifest;

    fn try_from(text: String) -> Result<Self, InvalidManifest> {
        let is_part = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= 255;
        let is_path = text.split('/').all(is_part) && text.len() <= MAX_PATH;
        if is_path && !text.contains('\0') {
            Ok(Self(text))
        } else {
            Err(InvalidManifest::Path(text))
        }
    }
}

impl From<RelativePath> for String {
    fn from(path: RelativePath) -> Self {
        path.0
    }
}

/// The content of one file as a list of blocks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FileBlocks {
    /// Length of the file in bytes.
    pub bytes: u64,
    /// SHA-256 of each block, in the order of the file.
    pub blocks: Vec<Digest>,
}

impl FileBlocks {
    /// Returns the bytes of a block.
    pub fn block_length(&self, index: usize) -> u64 {
        (self.bytes - index as u64 * BLOCK).min(BLOCK)
    }
}

/// The files of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Manifest {
    /// Grows with each change of the source.
    pub generation: u64,
    /// The files by path.
    pub files: BTreeMap<RelativePath, FileBlocks>,
}

/// Why a manifest is refused.
#[derive(Debug, thiserror::Error)]
pub enum InvalidManifest {
    /// A path could leave the directory, or is too long.
    #[error("{0:?} is not a relative path without . and .., of at most 1024 bytes")]
    Path(String),
    /// The number of blocks does not fit the length.
    #[error("{0:?} has another number of blocks than its length needs")]
    Blocks(String),
    /// A path is a file and a directory.
    #[error("{0:?} is a file and a directory")]
    Conflict(String),
    /// The directory has more files than [`MAX_FILES`].
    #[error("{0} files, at most {MAX_FILES} are supported")]
    TooManyFiles(usize),
    /// The text cannot be decompressed or parsed.
    #[error("cannot decode: {0}")]
    Encoding(#[from] io::Error),
    /// The text is too long, or much longer than its encoding.
    #[error("the manifest inflates beyond {0} bytes")]
    TooLarge(u64),
}

impl Manifest {
    /// Returns the hash of all paths, lengths and blocks. Equal roots mean equal directories, also
    /// of different generations.
    pub fn root(&self) -> Digest {
        let mut hash = Sha256::new();
        for (path, file) in &self.files {
            hash.update((path.0.len() as u64).to_be_bytes());
            hash.update(&path.0);
            hash.update(file.bytes.to_be_bytes());
            file.blocks.iter().for_each(|block| hash.update(block));
        }
        Digest::from(hash)
    }

    /// Returns the bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }

    /// Encodes the manifest, for [`Manifest::decode`].
    ///
    /// # Errors
    /// The compressor has no memory.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        zstd::encode_all(serde_json::to_vec(self)?.as_slice(), 1)
    }

    /// Decodes and checks a manifest.
    ///
    /// # Errors
    /// It is malformed, too large, or describes files outside the directory.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidManifest> {
        let limit = MAX_INFLATED.max(bytes.len() as u64 * MAX_RATIO).min(MAX_DECODED);
        let mut decoder = zstd::Decoder::new(bytes)?;
        decoder.window_log_max(MAX_WINDOW)?;
        let mut text = Vec::new();
        decoder.take(limit + 1).read_to_end(&mut text)?;
        if text.len() as u64 > limit {
            return Err(InvalidManifest::TooLarge(limit));
        }
        let manifest: Self = serde_json::from_slice(&text).map_err(io::Error::from)?;
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), InvalidManifest> {
        if self.files.len() > MAX_FILES {
            return Err(InvalidManifest::TooManyFiles(self.files.len()));
        }
        for (path, file) in &self.files {
            if file.blocks.len() as u64 != file.bytes.div_ceil(BLOCK) {
                return Err(InvalidManifest::Blocks(path.0.clone()));
            }
            for (at, _) in path.0.match_indices('/') {
                let parent = RelativePath(path.0[..at].to_owned());
                if self.files.contains_key(&parent) {
                    return Err(InvalidManifest::Conflict(parent.0));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn manifest(files: &[(&str, u64)]) -> Manifest {
        let file = |bytes: u64| FileBlocks {
            bytes,
            blocks: (0..bytes.div_ceil(BLOCK))
                .map(|it| Digest::of_bytes(&it.to_be_bytes()))
                .collect(),
        };
        let files =
            files.iter().map(|(path, bytes)| (RelativePath((*path).to_owned()), file(*bytes)));
        Manifest { generation: 3, files: files.collect() }
    }

    #[test]
    fn path_outside_the_directory_is_refused() {
        for good in ["a", "a/b.jpg", "..a/b..", "ä/ ", "-"] {
            assert_eq!(good.parse::<RelativePath>().unwrap().as_str(), good);
        }
        let long = "a/".repeat(600) + "a";
        for bad in ["", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\0b", &long] {
            assert!(bad.parse::<RelativePath>().is_err(), "{bad}");
        }
    }

    #[test]
    fn contradicting_manifest_is_refused() {
        let good = manifest(&[("a", 3 * BLOCK), ("b/c", 1), ("b-", 0)]);
        assert_eq!(Manifest::decode(&good.encode().unwrap()).unwrap(), good);
        let mut short = good.clone();
        short.files.get_mut(&RelativePath("a".to_owned())).unwrap().blocks.pop();
        let conflict = manifest(&[("b", 1), ("b-", 1), ("b/c", 1)]);
        let outside = manifest(&[("../c", 1)]);
        for bad in [short, conflict, outside] {
            assert!(Manifest::decode(&bad.encode().unwrap()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn small_encoding_of_a_huge_text_is_refused() {
        let spaces = vec![b' '; usize::try_from(MAX_INFLATED).unwrap() + 1];
        let bomb = zstd::encode_all(spaces.as_slice(), 1).unwrap();
        assert!(bomb.len() < 1 << 20, "{}", bomb.len());
        let error = Manifest::decode(&bomb).unwrap_err().to_string();
        assert_eq!(error, "the manifest inflates beyond 67108864 bytes");
    }

    #[test]
    fn root_depends_on_the_files_alone() {
        let one = manifest(&[("a", 5), ("b", 6)]);
        assert_eq!(Manifest { generation: 9, ..one.clone() }.root(), one.root());
        for other in
            [manifest(&[("a", 6), ("b", 5)]), manifest(&[("a", 5)]), manifest(&[("ab", 5)])]
        {
            assert_ne!(other.root(), one.root());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in any::<Vec<u8>>(), text in ".*") {
            assert!(Manifest::decode(&bytes).is_err());
            let _ = Manifest::decode(&zstd::encode_all(text.as_bytes(), 1).unwrap());
        }
    }
}
