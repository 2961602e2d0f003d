//! Reads archives strictly: what two programs could read in two ways is refused. Regular files and
//! directories only; links of either kind are refused, as models need none.

use std::{
    cell::{Cell, RefCell},
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom},
    rc::Rc,
};

use flate2::read::MultiGzDecoder;
use tar::EntryType;
use zip::ZipArchive;

use crate::{
    ModelError,
    limits::{Limits, ratio},
    space::Space,
    tree::{Grown, Tree, refuse},
    want::Form,
};

/// The largest zstd window that decoders have to take; more would be held in memory.
const WINDOW_LOG: u32 = 23;
/// A tar entry's headers, long names and PAX records included, are held in memory.
const TAR_HEADERS: u64 = 256 << 10;
/// A zip's directory is held in memory.
const ZIP_DIRECTORY: u64 = 16 << 20;
/// What tar writers put into the size of files that do not fit it.
const OCTAL_FULL: u64 = 0o777_7777_7777;

/// Unpacks a tar while it arrives. `packed` is how much of it has come; `failure` holds an error of
/// the reader's own.
pub fn untar(
    from: impl Read,
    form: Form,
    packed: &Rc<Cell<u64>>,
    failure: &RefCell<Option<ModelError>>,
    limits: Limits,
    tree: Tree,
    space: &Space,
) -> Result<Grown, ModelError> {
    let counted = |reader| Counted::new(reader, packed, limits);
    let result = match form {
        Form::TarGz => entries(counted(Decoder::Gz(Box::new(MultiGzDecoder::new(from)))), tree),
        Form::TarZst => {
            let decoder = zstd::Decoder::new(from).and_then(|mut decoder| {
                decoder.window_log_max(WINDOW_LOG)?;
                Ok(decoder)
            });
            let decoder = decoder.map_err(|error| refuse(space, b"", &error.to_string()))?;
            entries(counted(Decoder::Zst(Box::new(decoder))), tree)
        }
        Form::Tar | Form::Plain | Form::Zip => entries(counted(Decoder::None(from)), tree),
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

fn entries<R: Read>(from: Counted<R>, mut tree: Tree) -> Result<Grown, ModelError> {
    let budget = Rc::clone(&from.budget);
    let mut archive = tar::Archive::new(from);
    let mut all = archive.entries().map_err(|error| tree.refuse(b"", &error.to_string()))?;
    loop {
        budget.set(Some(TAR_HEADERS));
        let next = all.next();
        budget.set(None);
        let Some(next) = next else { break };
        let mut entry = next.map_err(|error| tree.refuse(b"", &error.to_string()))?;
        let name = entry.path_bytes().into_owned();
        let kind = entry.header().entry_type();
        if kind == EntryType::XGlobalHeader {
            // Comments, mostly.
            global(&mut entry).map_err(|why| tree.refuse(&name, why))?;
            continue;
        }
        pax(&mut entry).map_err(|why| tree.refuse(&name, &why))?;
        match kind {
            EntryType::Regular | EntryType::Continuous => {
                let size = entry.size();
                tree.file(&name, size, &mut entry)?;
            }
            EntryType::Directory => {
                if entry.size() != 0 {
                    return Err(tree.refuse(&name, "it is a directory with content"));
                }
                tree.dir(&name)?;
            }
            other => return Err(tree.refuse(&name, unfit(other))),
        }
    }
    rest_is_zero(&mut archive.into_inner()).map_err(|why| tree.refuse(b"", &why))?;
    Ok(tree.grown())
}

fn unfit(kind: EntryType) -> &'static str {
    match kind {
        EntryType::Symlink => "it is a symbolic link",
        EntryType::Link => "it is a hard link",
        EntryType::Char | EntryType::Block => "it is a device node",
        EntryType::Fifo => "it is a named pipe",
        EntryType::GNUSparse => "it is a sparse file",
        _ => "it is of an unknown kind",
    }
}

/// Refuses records by which another program would read another entry.
fn pax<R: Read>(entry: &mut tar::Entry<'_, R>) -> Result<(), String> {
    let plain = entry.header().entry_size().map_err(|error| error.to_string())?;
    if entry.size() != plain && plain != 0 && plain != OCTAL_FULL {
        return Err("its headers contradict each other about its size".to_owned());
    }
    let records = entry.pax_extensions().map_err(|error| error.to_string())?;
    let mut seen = Vec::new();
    for record in records.into_iter().flatten() {
        let record = record.map_err(|_| "its PAX records are malformed")?;
        let key = record.key_bytes();
        if key.starts_with(b"GNU.sparse") {
            return Err("it is a sparse file".to_owned());
        }
        if matches!(key, b"path" | b"size" | b"linkpath") {
            if seen.contains(&key) {
                return Err("a PAX record comes twice".to_owned());
            }
            if key == b"size" && !record.value_bytes().iter().all(u8::is_ascii_digit) {
                return Err("its PAX size is no number".to_owned());
            }
            seen.push(key);
        }
    }
    Ok(())
}

/// Global records would apply to all that follows, in some programs.
fn global<R: Read>(entry: &mut tar::Entry<'_, R>) -> Result<(), &'static str> {
    let mut text = Vec::new();
    if entry.size() > TAR_HEADERS {
        return Err("its headers are too long");
    }
    entry.read_to_end(&mut text).map_err(|_| "its records cannot be read")?;
    let changes = [&b" path="[..], b" size=", b" linkpath=", b" GNU.sparse"];
    if changes.iter().any(|change| text.windows(change.len()).any(|at| at == *change)) {
        return Err("global PAX records rename or resize entries");
    }
    Ok(())
}

fn rest_is_zero(from: &mut impl Read) -> Result<(), String> {
    let mut buffer = [0; 16 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) if buffer[..read].iter().any(|byte| *byte != 0) => {
                return Err("more follows the end of the archive".to_owned());
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// What comes out of a decoder, with its caps.
struct Counted<R> {
    from: R,
    packed: Rc<Cell<u64>>,
    unpacked: u64,
    limits: Limits,
    /// How much may still be read where everything read is held in memory.
    budget: Rc<Cell<Option<u64>>>,
}

impl<R> Counted<R> {
    fn new(from: R, packed: &Rc<Cell<u64>>, limits: Limits) -> Self {
        Self { from, packed: Rc::clone(packed), unpacked: 0, limits, budget: Rc::default() }
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.unpacked += read as u64;
        ratio(&self.limits, self.packed.get(), self.unpacked).map_err(io::Error::other)?;
        spend(&self.budget, read)?;
        Ok(read)
    }
}

fn spend(budget: &Cell<Option<u64>>, read: usize) -> io::Result<()> {
    let Some(left) = budget.get() else { return Ok(()) };
    let Some(left) = left.checked_sub(read as u64) else {
        return Err(io::Error::other("its headers are too long"));
    };
    budget.set(Some(left));
    Ok(())
}

/// A file of which only so much may be read while its directory is.
struct Budgeted {
    file: BufReader<File>,
    budget: Rc<Cell<Option<u64>>>,
}

impl Read for Budgeted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        spend(&self.budget, read)?;
        Ok(read)
    }
}

impl Seek for Budgeted {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// Unpacks a zip that is on disk: its directory is at its end, so it cannot be read while it arrives.
pub fn unzip(raw: File, limits: Limits, mut tree: Tree) -> Result<Grown, ModelError> {
    let packed = raw.metadata().map_or(0, |found| found.len());
    let budget = Rc::new(Cell::new(Some(ZIP_DIRECTORY)));
    let file = Budgeted { file: BufReader::new(raw), budget: Rc::clone(&budget) };
    let mut archive = open_zip(file, &budget).map_err(|why| tree.refuse(b"", &why))?;
    let mut unpacked = 0u64;
    for index in 0..archive.len() {
        let mut entry =
            archive.by_index(index).map_err(|error| tree.refuse(b"", &error.to_string()))?;
        let name = entry.name_raw().to_vec();
        zip_kind(&entry).map_err(|why| tree.refuse(&name, why))?;
        if entry.is_dir() {
            tree.dir(&name)?;
            continue;
        }
        let size = entry.size();
        unpacked = unpacked.saturating_add(size);
        ratio(&limits, packed, unpacked).map_err(|why| tree.refuse(&name, &why))?;
        // One byte more than it says shows that it lies.
        tree.file(&name, size, (&mut entry).take(size.saturating_add(1)))?;
    }
    Ok(tree.grown())
}

fn open_zip(file: Budgeted, budget: &Cell<Option<u64>>) -> Result<ZipArchive<Budgeted>, String> {
    let mut archive = ZipArchive::new(file).map_err(|error| error.to_string())?;
    budget.set(None);
    if archive.has_duplicate_names() {
        return Err("a name comes twice".to_owned());
    }
    if archive.offset() != 0 {
        return Err("something precedes the archive".to_owned());
    }
    if archive.has_overlapping_entries().map_err(|error| error.to_string())? {
        return Err("entries overlap".to_owned());
    }
    archive.validate_header_consistency().map_err(|error| error.to_string())?;
    Ok(archive)
}

fn zip_kind<R: Read>(entry: &zip::read::ZipFile<'_, R>) -> Result<(), &'static str> {
    if entry.encrypted() {
        return Err("it is encrypted");
    }
    // The kind of file in Unix modes; zip programs elsewhere leave it zero.
    match entry.unix_mode().unwrap_or(0) & 0o170_000 {
        0 => Ok(()),
        0o100_000 if !entry.is_dir() => Ok(()),
        0o040_000 if entry.is_dir() => Ok(()),
        0o120_000 => Err("it is a symbolic link"),
        _ => Err("it is neither a regular file nor a directory"),
    }
}
