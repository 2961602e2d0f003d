//! The files of a capture: appends records to segments, removes the oldest ones, and repairs what a
//! kill cut. I/O; `segments.rs` decides.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use neptune_transfer::durable;
use tracing::{info, warn};

use super::{
    binary::{BinaryFile, references},
    images::{Found, Images},
    segments::{Bounds, Segment, Segments, TooLarge, complete, file_name, id_of},
};

/// Name of the file whose lock keeps two gateways from writing to one directory.
const LOCK: &str = ".neptune-capture.lock";
/// The bytes of a file that are read at a time.
const BLOCK: usize = 64 * 1024;

/// The segments of a directory. Locked until it is dropped.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    segments: Segments,
    images: Images,
    open: Option<File>,
    /// Records since the last sync.
    unsynced: u32,
    _lock: File,
}

/// Why a record was not appended.
#[derive(Debug)]
pub enum AppendError {
    /// It is larger than a segment. Others can be appended.
    TooLarge,
    /// The disk is full. The next record can be appended once there is space.
    Full(io::Error),
    /// The directory cannot be written. It has to be opened again.
    Io(io::Error),
}

impl From<io::Error> for AppendError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full(error),
            _ => Self::Io(error),
        }
    }
}

impl Store {
    /// Opens a directory, creates it if only it is absent, and removes incomplete records.
    ///
    /// # Errors
    /// It cannot be read or written, or another process has it open.
    pub fn open(directory: &Path, bounds: Bounds) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        let lock = options.write(true).create(true).mode(0o600).open(directory.join(LOCK))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::other("another gateway writes to it"),
            TryLockError::Error(error) => error,
        })?;
        let mut images = Found::list(directory)?;
        let is_read = bounds.max_samples > 0 || !images.is_empty();
        let (mut stored, mut moved, mut ids) = (Vec::new(), Vec::new(), ids(directory)?);
        ids.sort_unstable();
        for id in ids {
            let path = directory.join(file_name(id));
            let bytes = repair(&path)?;
            let refer = |name: &str| moved.extend(images.refer(name, id));
            let samples = if is_read { read_lines(&path, refer)? } else { 0 };
            let samples = if bounds.max_samples > 0 { samples } else { 0 };
            stored.push(Segment { id, bytes, images: 0, samples });
        }
        let mut segments = Segments::new(bounds, stored);
        for moved in moved {
            segments.moved(moved);
        }
        let images = images.finish()?;
        let newest = segments.open().map(|id| directory.join(file_name(id)));
        let open = newest.map(|path| OpenOptions::new().append(true).open(path)).transpose()?;
        Ok(Self {
            directory: directory.to_owned(),
            segments,
            images,
            open,
            unsynced: 0,
            _lock: lock,
        })
    }

    /// Appends a record, which ends with a line feed, after the files to which it refers. `now` are
    /// milliseconds since 1970.
    ///
    /// # Errors
    /// See [`AppendError`]. The records are then as before, but for segments that had to go.
    pub fn append(
        &mut self,
        record: &[u8],
        files: &[BinaryFile],
        now: u64,
    ) -> Result<(), AppendError> {
        let bytes = record.len() as u64;
        // A file that is there counts to this record from now on.
        let size = bytes + files.iter().map(|file| file.content.len() as u64).sum::<u64>();
        let placement = self.segments.place(size, now).map_err(|TooLarge| AppendError::TooLarge)?;
        for id in placement.remove {
            durable::remove_file(&self.directory.join(file_name(id)))?;
            self.forget(id)?;
        }
        if let Some(id) = placement.create {
            self.create(id)?;
        }
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let open = self.segments.open().ok_or_else(gone)?;
        for file in files {
            self.segments.moved(self.images.put(file, open)?);
        }
        let file = self.open.as_mut().ok_or_else(gone)?;
        if let Err(error) = file.write_all(record) {
            return Err(match self.truncate(open) {
                Ok(()) => error.into(),
                Err(problem) => {
                    warn!("an incomplete record stays until the directory is opened: {problem}");
                    AppendError::Io(error)
                }
            });
        }
        self.segments.appended(bytes);
        self.unsynced += 1;
        Ok(())
    }

    /// Cuts the open segment after its last complete record.
    fn truncate(&self, open: u64) -> io::Result<()> {
        let length = self.segments.iter().last().map_or(0, |segment| segment.bytes);
        let path = self.directory.join(file_name(open));
        OpenOptions::new().write(true).open(path)?.set_len(length)
    }

    /// A segment is gone, and with it the files that only its records refer to.
    fn forget(&mut self, id: u64) -> io::Result<()> {
        if self.segments.open() == Some(id) {
            self.open = None;
        }
        self.segments.removed(id);
        for moved in self.images.remove_segment(id)? {
            self.segments.moved(moved);
        }
        Ok(())
    }

    fn create(&mut self, id: u64) -> io::Result<()> {
        self.sync()?;
        self.segments.seal();
        let path = self.directory.join(file_name(id));
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        File::open(&self.directory)?.sync_all()?;
        self.open = Some(file);
        self.segments.created(id);
        Ok(())
    }

    /// Records that are not on the disk yet.
    pub const fn unsynced(&self) -> u32 {
        self.unsynced
    }

    /// Writes what was appended to the disk.
    ///
    /// # Errors
    /// The disk.
    pub fn sync(&mut self) -> io::Result<()> {
        if self.unsynced > 0
            && let Some(file) = &self.open
        {
            file.sync_data()?;
        }
        self.unsynced = 0;
        Ok(())
    }

    /// Forgets segments that somebody else removed, such as a user who used the samples.
    ///
    /// # Errors
    /// The directory is gone.
    pub fn refresh(&mut self) -> io::Result<()> {
        let present = ids(&self.directory)?;
        let known: Vec<u64> = self.segments.iter().map(|segment| segment.id).collect();
        for id in known.into_iter().filter(|id| !present.contains(id)) {
            self.forget(id)?;
        }
        Ok(())
    }

    /// The size of all segments and their files.
    pub fn bytes(&self) -> u64 {
        self.segments.bytes()
    }
}

/// The segments in a directory, in no order.
fn ids(directory: &Path) -> io::Result<Vec<u64>> {
    let mut ids = Vec::new();
    for entry in fs::read_dir(directory)? {
        ids.extend(entry?.file_name().to_str().and_then(id_of));
    }
    Ok(ids)
}

/// Cuts a file after its last complete record. Returns its length.
fn repair(path: &Path) -> io::Result<u64> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let length = file.metadata()?.len();
    let mut end = length;
    let mut block = vec![0; BLOCK];
    let kept = loop {
        let size = end.min(BLOCK as u64);
        let part = &mut block[..usize::try_from(size).expect("at most a block")];
        file.seek(SeekFrom::Start(end - size))?;
        file.read_exact(part)?;
        if let Some(complete) = complete(part) {
            break end - size + complete as u64;
        }
        if end <= size {
            break 0;
        }
        end -= size;
    };
    if kept < length {
        info!("{}: {} bytes of an incomplete record removed", path.display(), length - kept);
        file.set_len(kept)?;
        file.sync_all()?;
    }
    Ok(kept)
}

/// The number of records of a repaired file. `refer` gets the names of the files to which they refer.
fn read_lines(path: &Path, mut refer: impl FnMut(&str)) -> io::Result<u64> {
    let mut records = 0;
    for line in BufReader::new(File::open(path)?).split(b'\n') {
        references(&line?).for_each(&mut refer);
        records += 1;
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const BOUNDS: Bounds = Bounds { max_bytes: 8_000, max_samples: 0 };

    fn content(directory: &Path) -> String {
        let mut ids = ids(directory).unwrap();
        ids.sort_unstable();
        let read = |id: u64| fs::read_to_string(directory.join(file_name(id))).unwrap();
        ids.into_iter().map(read).collect()
    }

    #[test]
    fn records_are_appended_to_private_files_within_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("hard");
        let mut store = Store::open(&directory, BOUNDS).unwrap();
        for number in 0..1_000 {
            store.append(format!("{{\"n\":{number:04}}}\n").as_bytes(), &[], 5).unwrap();
            assert!(store.bytes() <= 8_000);
        }
        store.sync().unwrap();
        let content = content(&directory);
        assert_eq!(content.len() as u64, store.bytes());
        assert!(content.ends_with("{\"n\":0999}\n") && content.len() > 6_000);
        let lines: Vec<_> = content.lines().collect();
        assert!(lines.is_sorted(), "the newest ones stay, in order");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&directory), 0o700);
        for id in ids(&directory).unwrap() {
            assert_eq!(mode(&directory.join(file_name(id))), 0o600);
        }
        assert!(matches!(store.append(&[b'x'; 9_000], &[], 5), Err(AppendError::TooLarge)));
    }

    #[test]
    fn cut_record_is_removed_at_the_start_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let long = format!("{}\n", "x".repeat(3 * BLOCK));
        for (written, kept) in
            [("a\nb", "a\n"), ("", ""), ("a", ""), ("a\n", "a\n"), (&*format!("{long}y"), &*long)]
        {
            fs::write(folder.path().join(file_name(7)), written).unwrap();
            fs::write(folder.path().join("own.jsonl"), "not ours").unwrap();
            let bounds = Bounds { max_bytes: 1 << 30, max_samples: 0 };
            let mut store = Store::open(folder.path(), bounds).unwrap();
            assert_eq!((store.bytes(), &*content(folder.path())), (kept.len() as u64, kept));
            store.append(b"next\n", &[], 1).unwrap();
            assert_eq!(content(folder.path()), format!("{kept}next\n"));
        }
        assert_eq!(fs::read_to_string(folder.path().join("own.jsonl")).unwrap(), "not ours");
    }

    #[test]
    fn bound_of_samples_counts_those_of_earlier_processes() {
        let folder = tempfile::tempdir().unwrap();
        let bounds = Bounds { max_bytes: 1 << 30, max_samples: 16 };
        for start in 0..5 {
            let mut store = Store::open(folder.path(), bounds).unwrap();
            for number in 0..10 {
                store.append(format!("{start}{number}\n").as_bytes(), &[], 1).unwrap();
                assert!(content(folder.path()).lines().count() <= 16);
            }
        }
        assert!(content(folder.path()).lines().count() >= 14);
        assert!(content(folder.path()).ends_with("49\n"));
    }

    #[test]
    fn removed_segments_are_forgotten_and_the_next_record_has_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(folder.path(), BOUNDS).unwrap();
        store.append(b"one\n", &[], 1).unwrap();
        fs::remove_file(folder.path().join(file_name(1))).unwrap();
        store.refresh().unwrap();
        assert_eq!(store.bytes(), 0);
        store.append(b"two\n", &[], 1).unwrap();
        assert_eq!(content(folder.path()), "two\n");
        fs::remove_dir_all(folder.path()).unwrap();
        assert!(store.refresh().is_err());
    }

    fn image(number: usize) -> (String, BinaryFile) {
        let name = format!("{number:064x}.png");
        let record = format!("{{\"url\":\"images/{name}\"}}\n");
        (record, BinaryFile { name, content: vec![b'i'; 100] })
    }

    /// The files of binary values, and those to which records refer, each in order.
    fn images(directory: &Path) -> (Vec<String>, Vec<String>) {
        let entries = fs::read_dir(directory.join("images")).unwrap();
        let mut files: Vec<_> =
            entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        let text = content(directory);
        let mut referred: Vec<_> = references(text.as_bytes()).map(str::to_owned).collect();
        for names in [&mut files, &mut referred] {
            names.sort();
            names.dedup();
        }
        (files, referred)
    }

    #[test]
    fn images_are_within_the_bound_and_go_with_their_records() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(folder.path(), BOUNDS).unwrap();
        for number in 0..300 {
            // Each third one was sent before.
            let (record, file) = image(if number % 3 == 0 { number / 2 } else { number });
            store.append(record.as_bytes(), &[file], 5).unwrap();
            assert!(store.bytes() <= 8_000);
            let (files, referred) = images(folder.path());
            assert_eq!(files, referred);
            let size = files.len() * 100 + content(folder.path()).len();
            assert_eq!(store.bytes(), size as u64);
            if number % 100 == 50 {
                drop(store);
                store = Store::open(folder.path(), BOUNDS).unwrap();
                assert_eq!(store.bytes(), size as u64);
            }
        }
        // Somebody takes all but the oldest segment.
        let mut segment_ids = ids(folder.path()).unwrap();
        segment_ids.sort_unstable();
        for id in &segment_ids[1..] {
            fs::remove_file(folder.path().join(file_name(*id))).unwrap();
        }
        store.refresh().unwrap();
        let (files, referred) = images(folder.path());
        assert_eq!(files, referred);
        assert!(!files.is_empty());
    }

    #[test]
    fn images_without_a_record_are_removed_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(folder.path(), BOUNDS).unwrap();
        let (record, file) = image(1);
        store.append(record.as_bytes(), std::slice::from_ref(&file), 5).unwrap();
        drop(store);
        // A kill after the file and before the record, one within the file, and a file of another.
        let (cut, other) = image(2);
        let path = |name: &str| folder.path().join("images").join(name);
        fs::write(path(&other.name), "complete").unwrap();
        fs::write(durable::temporary(&path(&other.name)), "cut").unwrap();
        fs::write(path("notes.txt"), "not ours").unwrap();
        let segment = folder.path().join(file_name(ids(folder.path()).unwrap()[0]));
        let mut segment = OpenOptions::new().append(true).open(segment).unwrap();
        segment.write_all(&cut.as_bytes()[..cut.len() - 1]).unwrap();
        let mut store = Store::open(folder.path(), BOUNDS).unwrap();
        assert_eq!(images(folder.path()).0, [file.name.clone(), "notes.txt".into()]);

        // Somebody removed the file: the next record of the image writes it again.
        fs::remove_file(path(&file.name)).unwrap();
        store.append(record.as_bytes(), std::slice::from_ref(&file), 5).unwrap();
        assert_eq!(fs::read(path(&file.name)).unwrap(), file.content);
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode(folder.path().join("images")), mode(path(&file.name))], [0o700, 0o600]);
        let large = BinaryFile { content: vec![0; 9_000], ..file };
        assert!(matches!(store.append(b"x\n", &[large], 5), Err(AppendError::TooLarge)));
    }

    #[test]
    fn full_disk_keeps_what_is_known_of_the_records() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(folder.path(), BOUNDS).unwrap();
        store.append(b"one\n", &[], 1).unwrap();
        let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let segment = store.open.replace(full).unwrap();
        // As much as there was space for.
        (&segment).write_all(b"tw").unwrap();
        assert!(matches!(store.append(b"two\n", &[], 1), Err(AppendError::Full(_))));
        assert_eq!((&*content(folder.path()), store.bytes()), ("one\n", 4));
        store.open = Some(segment);
        store.append(b"two\n", &[], 1).unwrap();
        assert_eq!((&*content(folder.path()), store.bytes()), ("one\ntwo\n", 8));
    }

    #[test]
    fn second_gateway_does_not_write_to_the_directory() {
        let folder = tempfile::tempdir().unwrap();
        let first = Store::open(folder.path(), BOUNDS).unwrap();
        let error = Store::open(folder.path(), BOUNDS).unwrap_err();
        assert_eq!(error.to_string(), "another gateway writes to it");
        drop(first);
        assert!(Store::open(folder.path(), BOUNDS).is_ok());
    }
}
