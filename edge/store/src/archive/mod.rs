//! Unpacks archives strictly: an archive that two programs could read differently is refused.
//! Accepts only regular files and directories. Links are refused, because models do not need them.

mod entry_names;
mod limits;
mod tree;

use std::{
    cell::{Cell, RefCell},
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom},
    rc::Rc,
};

use flate2::read::MultiGzDecoder;
use tar::EntryType;
use zip::ZipArchive;

pub use self::{
    limits::ArchiveLimits,
    tree::{TreeWriter, UnpackedTree},
};
use self::{limits::check_ratio, tree::invalid_archive};
use crate::{ModelError, request::Packaging};

/// Binary logarithm of the maximum zstd window size, which RFC 8878 recommends to support. The
/// window is kept in memory.
const MAX_WINDOW_LOG: u32 = 23;
/// Maximum size of the headers of a tar entry, including long names and PAX records. They are kept
/// in memory.
const MAX_TAR_HEADER_BYTES: u64 = 256 << 10;
/// Maximum size of a zip directory, which is kept in memory.
const MAX_ZIP_DIRECTORY_BYTES: u64 = 16 << 20;
/// The size field that tar writers use for files whose size does not fit.
const OCTAL_FULL: u64 = 0o777_7777_7777;

/// Unpacks a tar while it arrives. `packed` is the number of bytes that have arrived. `failure`
/// holds an error of the reader that is not an I/O error. `url` is for errors.
pub fn untar(
    from: impl Read,
    packaging: Packaging,
    packed: &Rc<Cell<u64>>,
    failure: &RefCell<Option<ModelError>>,
    limits: ArchiveLimits,
    tree: TreeWriter,
    url: &str,
) -> Result<UnpackedTree, ModelError> {
    let counted = |reader| LimitedReader::new(reader, packed, limits);
    let result = match packaging {
        Packaging::TarGz => {
            unpack_entries(counted(Decoder::Gz(Box::new(MultiGzDecoder::new(from)))), tree)
        }
        Packaging::TarZst => {
            let decoder = zstd::Decoder::new(from).and_then(|mut decoder| {
                decoder.window_log_max(MAX_WINDOW_LOG)?;
                Ok(decoder)
            });
            let decoder = decoder.map_err(|error| invalid_archive(url, b"", &error.to_string()))?;
            unpack_entries(counted(Decoder::Zst(Box::new(decoder))), tree)
        }
        Packaging::Tar | Packaging::Plain | Packaging::Zip | Packaging::Set => {
            unpack_entries(counted(Decoder::None(from)), tree)
        }
    };
    result.map_err(|error| failure.take().unwrap_or(error))
}

enum Decoder<R: Read> {
    None(R),
    Gz(Box<MultiGzDecoder<R>>),
    Zst(Box<zstd::Decoder<'static, BufReader<R>>>),
}

impl<R: Read> Read for Decoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::None(reader) => reader.read(buffer),
            Self::Gz(reader) => reader.read(buffer),
            Self::Zst(reader) => reader.read(buffer),
        }
    }
}

fn unpack_entries<R: Read>(
    from: LimitedReader<R>,
    mut tree: TreeWriter,
) -> Result<UnpackedTree, ModelError> {
    let budget = Rc::clone(&from.budget);
    let mut archive = tar::Archive::new(from);
    let mut all = archive.entries().map_err(|error| tree.invalid(b"", &error.to_string()))?;
    loop {
        budget.set(Some(MAX_TAR_HEADER_BYTES));
        let next = all.next();
        budget.set(None);
        let Some(next) = next else { break };
        let mut entry = next.map_err(|error| tree.invalid(b"", &error.to_string()))?;
        let name = entry.path_bytes().into_owned();
        let kind = entry.header().entry_type();
        if kind == EntryType::XGlobalHeader {
            // Usually a comment.
            check_global_pax(&mut entry).map_err(|reason| tree.invalid(&name, reason))?;
            continue;
        }
        check_pax(&mut entry).map_err(|reason| tree.invalid(&name, &reason))?;
        match kind {
            EntryType::Regular | EntryType::Continuous => {
                let size = entry.size();
                tree.add_file(&name, size, &mut entry)?;
            }
            EntryType::Directory => {
                if entry.size() != 0 {
                    return Err(tree.invalid(&name, "directory has content"));
                }
                tree.add_dir(&name)?;
            }
            other => return Err(tree.invalid(&name, unsupported_kind(other))),
        }
    }
    check_rest_is_zero(&mut archive.into_inner()).map_err(|reason| tree.invalid(b"", &reason))?;
    tree.finish()
}

fn unsupported_kind(kind: EntryType) -> &'static str {
    match kind {
        EntryType::Symlink => "symbolic links are not supported",
        EntryType::Link => "hard links are not supported",
        EntryType::Char | EntryType::Block => "device nodes are not supported",
        EntryType::Fifo => "named pipes are not supported",
        EntryType::GNUSparse => "sparse files are not supported",
        _ => "unknown entry type",
    }
}

/// Refuses PAX records that another program could interpret differently.
fn check_pax<R: Read>(entry: &mut tar::Entry<'_, R>) -> Result<(), String> {
    let plain = entry.header().entry_size().map_err(|error| error.to_string())?;
    if entry.size() != plain && plain != 0 && plain != OCTAL_FULL {
        return Err("headers contradict each other about the size".to_owned());
    }
    let records = entry.pax_extensions().map_err(|error| error.to_string())?;
    let mut seen = Vec::new();
    for record in records.into_iter().flatten() {
        let record = record.map_err(|_| "malformed PAX record")?;
        let key = record.key_bytes();
        if key.starts_with(b"GNU.sparse") {
            return Err("sparse files are not supported".to_owned());
        }
        if matches!(key, b"path" | b"size" | b"linkpath") {
            if seen.contains(&key) {
                return Err("duplicate PAX record".to_owned());
            }
            if key == b"size" && !record.value_bytes().iter().all(u8::is_ascii_digit) {
                return Err("PAX size is not a number".to_owned());
            }
            seen.push(key);
        }
    }
    Ok(())
}

/// Refuses global PAX records that some programs would apply to all following entries.
fn check_global_pax<R: Read>(entry: &mut tar::Entry<'_, R>) -> Result<(), &'static str> {
    let mut text = Vec::new();
    if entry.size() > MAX_TAR_HEADER_BYTES {
        return Err("entry headers are too long");
    }
    entry.read_to_end(&mut text).map_err(|_| "PAX records cannot be read")?;
    let changes = [&b" path="[..], b" size=", b" linkpath=", b" GNU.sparse"];
    if changes.iter().any(|change| text.windows(change.len()).any(|at| at == *change)) {
        return Err("global PAX record renames or resizes entries");
    }
    Ok(())
}

fn check_rest_is_zero(from: &mut impl Read) -> Result<(), String> {
    let mut buffer = [0; 16 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) if buffer[..read].iter().any(|byte| *byte != 0) => {
                return Err("unexpected data after the end of the archive".to_owned());
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// The output of a decoder, with limits.
struct LimitedReader<R> {
    from: R,
    packed: Rc<Cell<u64>>,
    unpacked: u64,
    limits: ArchiveLimits,
    /// Number of bytes that may still be read while everything that is read is held in memory.
    /// `None` outside of headers.
    budget: Rc<Cell<Option<u64>>>,
}

impl<R> LimitedReader<R> {
    fn new(from: R, packed: &Rc<Cell<u64>>, limits: ArchiveLimits) -> Self {
        Self { from, packed: Rc::clone(packed), unpacked: 0, limits, budget: Rc::default() }
    }
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.unpacked += read as u64;
        check_ratio(&self.limits, self.packed.get(), self.unpacked).map_err(io::Error::other)?;
        spend(&self.budget, read)?;
        Ok(read)
    }
}

fn spend(budget: &Cell<Option<u64>>, read: usize) -> io::Result<()> {
    let Some(left) = budget.get() else { return Ok(()) };
    let Some(left) = left.checked_sub(read as u64) else {
        return Err(io::Error::other("entry headers are too long"));
    };
    budget.set(Some(left));
    Ok(())
}

/// A zip file with a limit for reading its directory.
struct LimitedFile {
    file: BufReader<File>,
    budget: Rc<Cell<Option<u64>>>,
}

impl Read for LimitedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        spend(&self.budget, read)?;
        Ok(read)
    }
}

impl Seek for LimitedFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// Unpacks a zip on disk. A zip has its directory at the end, so it cannot be unpacked while it
/// arrives.
pub fn unzip(
    raw: File,
    limits: ArchiveLimits,
    mut tree: TreeWriter,
) -> Result<UnpackedTree, ModelError> {
    let packed = raw.metadata().map_or(0, |metadata| metadata.len());
    let budget = Rc::new(Cell::new(Some(MAX_ZIP_DIRECTORY_BYTES)));
    let file = LimitedFile { file: BufReader::new(raw), budget: Rc::clone(&budget) };
    let mut archive = open_zip(file, &budget).map_err(|reason| tree.invalid(b"", &reason))?;
    let mut unpacked = 0u64;
    for index in 0..archive.len() {
        let mut entry =
            archive.by_index(index).map_err(|error| tree.invalid(b"", &error.to_string()))?;
        let name = entry.name_raw().to_vec();
        check_zip_kind(&entry).map_err(|reason| tree.invalid(&name, reason))?;
        if entry.is_dir() {
            tree.add_dir(&name)?;
            continue;
        }
        let size = entry.size();
        unpacked = unpacked.saturating_add(size);
        check_ratio(&limits, packed, unpacked).map_err(|reason| tree.invalid(&name, &reason))?;
        // One more byte than the stated size is enough to detect a wrong size.
        tree.add_file(&name, size, (&mut entry).take(size.saturating_add(1)))?;
    }
    tree.finish()
}

fn open_zip(
    file: LimitedFile,
    budget: &Cell<Option<u64>>,
) -> Result<ZipArchive<LimitedFile>, String> {
    let mut archive = ZipArchive::new(file).map_err(|error| error.to_string())?;
    budget.set(None);
    if archive.has_duplicate_names() {
        return Err("duplicate name".to_owned());
    }
    if archive.offset() != 0 {
        return Err("unexpected data before the archive".to_owned());
    }
    if archive.has_overlapping_entries().map_err(|error| error.to_string())? {
        return Err("entries overlap".to_owned());
    }
    archive.validate_header_consistency().map_err(|error| error.to_string())?;
    Ok(archive)
}

fn check_zip_kind<R: Read>(entry: &zip::read::ZipFile<'_, R>) -> Result<(), &'static str> {
    if entry.encrypted() {
        return Err("encrypted entries are not supported");
    }
    // The file type in the Unix mode. Zip programs on other systems leave it zero.
    match entry.unix_mode().unwrap_or(0) & 0o170_000 {
        0 => Ok(()),
        0o100_000 if !entry.is_dir() => Ok(()),
        0o040_000 if entry.is_dir() => Ok(()),
        0o120_000 => Err("symbolic links are not supported"),
        _ => Err("neither a regular file nor a directory"),
    }
}
