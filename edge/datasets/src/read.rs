//! Feeds a counter from a reader or a file, at the speed of the page cache. I/O. What is counted is
//! decided in `counter`.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use crate::{counter::SampleCounter, error::DatasetError};
use parking_lot::{Condvar, Mutex, MutexGuard};

/// Size of one read, in bytes. It is large enough that the cost of system calls and locking is
/// negligible, and small enough that the data stays in the second-level cache.
const CHUNK_BYTES: usize = 64 * 1024;
/// Minimum size of a range that is read by two threads, in bytes.
const MIN_PARALLEL_BYTES: u64 = 8 * 1024 * 1024;

/// Counts the bytes that are read from datasets, and stops a count. Can be shared between threads.
#[derive(Debug, Default)]
pub struct ReadMeter {
    read: AtomicU64,
    stopped: AtomicBool,
}

impl ReadMeter {
    /// Number of bytes read so far. A dataset that grows by n bytes adds about n.
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Stops counting at the next chunk, with [`DatasetError::Stopped`].
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The error that ended a read.
#[derive(Debug)]
pub(crate) enum ReadError {
    Io(io::Error),
    Dataset(DatasetError),
}

/// Feeds `counter` with all bytes of `reader`. Use it for sources that are not files of this node.
/// Blocking.
///
/// `source` is the path or URL that errors name.
///
/// # Errors
/// The errors of the reader and of [`SampleCounter::feed`]; [`DatasetError::Stopped`].
pub fn count_reader(
    source: &Path,
    mut reader: impl Read,
    counter: &mut SampleCounter,
    meter: &ReadMeter,
) -> Result<(), DatasetError> {
    let mut buffer = vec![0; CHUNK_BYTES];
    while !meter.is_stopped() {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                meter.add(read);
                counter.feed(&buffer[..read])?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(DatasetError::io(source, &error)),
        }
    }
    Err(DatasetError::Stopped)
}

/// Feeds `counter` with the bytes `from..to` of `file`.
///
/// Copying out of the page cache costs more than counting, so two threads read a large range. Each
/// thread counts the chunks that it has read. They take turns, so that the counter gets the bytes
/// in order.
///
/// # Errors
/// The errors of [`count_reader`]; `UnexpectedEof` if the file ends before `to`.
pub(crate) fn count_range(
    file: &File,
    from: u64,
    to: u64,
    counter: &mut SampleCounter,
    meter: &ReadMeter,
) -> Result<(), ReadError> {
    let is_parallel = to - from >= MIN_PARALLEL_BYTES
        && thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    let turns = Turns {
        state: Mutex::new(TurnState { next: 0, counter, error: None }),
        changed: Condvar::new(),
    };
    let range = FileRange { file, from, to, meter, taken: AtomicU64::new(0) };
    thread::scope(|scope| {
        if is_parallel {
            scope.spawn(|| range.count_chunks(&turns));
        }
        range.count_chunks(&turns);
    });
    turns.state.into_inner().error.map_or(Ok(()), Err)
}

struct FileRange<'a> {
    file: &'a File,
    from: u64,
    to: u64,
    meter: &'a ReadMeter,
    /// Number of chunks that are assigned to a thread.
    taken: AtomicU64,
}

/// The order in which the threads may use the counter.
struct Turns<'a> {
    state: Mutex<TurnState<'a>>,
    changed: Condvar,
}

struct TurnState<'a> {
    /// Number of the chunk that is counted next.
    next: u64,
    counter: &'a mut SampleCounter,
    error: Option<ReadError>,
}

impl FileRange<'_> {
    /// Reads and counts chunks until all are assigned.
    fn count_chunks(&self, turns: &Turns<'_>) {
        let size = usize::try_from(self.to - self.from).unwrap_or(CHUNK_BYTES);
        let mut buffer = vec![0; CHUNK_BYTES.min(size)];
        loop {
            let number = self.taken.fetch_add(1, Ordering::Relaxed);
            let start = self.from + number * CHUNK_BYTES as u64;
            if start >= self.to {
                return;
            }
            let chunk = self.read(&mut buffer, start);
            let mut turn = turns.wait_for(number);
            if turn.error.is_some() {
                return;
            }
            let counted =
                chunk.and_then(|chunk| turn.counter.feed(chunk).map_err(ReadError::Dataset));
            turn.next = number + 1;
            turn.error = counted.err();
            drop(turn);
            turns.changed.notify_one();
        }
    }

    fn read<'b>(&self, buffer: &'b mut [u8], start: u64) -> Result<&'b [u8], ReadError> {
        if self.meter.is_stopped() {
            return Err(ReadError::Dataset(DatasetError::Stopped));
        }
        let length = usize::try_from(self.to - start).unwrap_or(usize::MAX).min(buffer.len());
        let chunk = &mut buffer[..length];
        self.file.read_exact_at(chunk, start).map_err(ReadError::Io)?;
        self.meter.add(length);
        Ok(chunk)
    }
}

impl<'a> Turns<'a> {
    /// Waits until chunk `number` is next, or until a read failed.
    fn wait_for(&self, number: u64) -> MutexGuard<'_, TurnState<'a>> {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |turn| turn.next != number && turn.error.is_none());
        state
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use neptune_sources::{DatasetFormat, FormatOptions};

    #[test]
    fn reader_is_counted_until_the_meter_is_stopped() {
        let mut counter =
            SampleCounter::new(DatasetFormat::Csv, &FormatOptions::default()).unwrap();
        let (source, meter) = (Path::new("http://host/a.csv"), ReadMeter::default());
        let reader = "a,b\n1,\"".as_bytes().chain("2\n\"\n3,4".as_bytes());
        count_reader(source, reader, &mut counter, &meter).unwrap();
        assert_eq!((counter.counts().samples, meter.bytes_read()), (2, 14));
        meter.stop();
        assert_eq!(
            count_reader(source, "5".as_bytes(), &mut counter, &meter),
            Err(DatasetError::Stopped)
        );
    }

    #[test]
    fn reader_error_names_the_source() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("connection reset"))
            }
        }
        let mut counter =
            SampleCounter::new(DatasetFormat::Txt, &FormatOptions::default()).unwrap();
        let error = count_reader(
            Path::new("http://host/a.txt"),
            Broken,
            &mut counter,
            &ReadMeter::default(),
        )
        .unwrap_err();
        assert_eq!(error.to_string(), "http://host/a.txt: connection reset");
    }
}
