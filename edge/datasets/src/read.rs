//! Feeding a counter from a reader or a file as fast as the page cache gives. I/O; what is counted decides `counter`.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use crate::{counter::Counter, error::Error};

/// Read at once, in bytes: long enough that system calls and taking turns cost nothing, short enough to stay in the
/// second-level cache between reading and counting.
const CHUNK: usize = 64 * 1024;
/// From so many bytes on, a second thread pays.
const WORTH_A_THREAD: u64 = 8 * 1024 * 1024;

/// Counts what is read, and stops it. Shared between the one that counts and those who look on.
#[derive(Debug, Default)]
pub struct Meter {
    read: AtomicU64,
    stopped: AtomicBool,
}

impl Meter {
    /// Bytes of datasets read so far; nothing else reads them, so growing by n bytes shows as about n.
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Ends counting at the next chunk, with [`Error::Stopped`].
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

/// What ended reading early.
#[derive(Debug)]
pub(crate) enum Ended {
    Io(io::Error),
    Format(Error),
}

/// Feeds `counter` all that `reader` has: the way in for sources that are no files of this node. Blocks.
///
/// `source` is what an error calls it, a path or a URL.
///
/// # Errors
/// Those of the reader and of the format; [`Error::Stopped`].
pub fn count(
    source: &Path,
    mut reader: impl Read,
    counter: &mut Counter,
    meter: &Meter,
) -> Result<(), Error> {
    let mut buffer = vec![0; CHUNK];
    while !meter.is_stopped() {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                meter.add(read);
                counter.feed(&buffer[..read])?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io(source, &error)),
        }
    }
    Err(Error::Stopped)
}

/// Feeds `counter` the bytes `from..to` of `file`.
///
/// Copying out of the page cache costs more than counting, so large files are read by two threads; they count in
/// turns, each what it has read itself, so that the counter sees the bytes in their order.
///
/// # Errors
/// As [`count`]; `UnexpectedEof` if the file ends before `to`.
pub(crate) fn count_range(
    file: &File,
    from: u64,
    to: u64,
    counter: &mut Counter,
    meter: &Meter,
) -> Result<(), Ended> {
    let both = to - from >= WORTH_A_THREAD
        && thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    let turns = Turns {
        state: Mutex::new(Turn { next: 0, counter, ended: None }),
        changed: Condvar::new(),
    };
    let range = Range { file, from, to, meter, taken: AtomicU64::new(0) };
    thread::scope(|scope| {
        if both {
            scope.spawn(|| range.count_chunks(&turns));
        }
        range.count_chunks(&turns);
    });
    turns.state.into_inner().unwrap_or_else(PoisonError::into_inner).ended.map_or(Ok(()), Err)
}

struct Range<'a> {
    file: &'a File,
    from: u64,
    to: u64,
    meter: &'a Meter,
    /// Chunks that a thread has taken on itself.
    taken: AtomicU64,
}

/// Whose turn it is to count.
struct Turns<'a> {
    state: Mutex<Turn<'a>>,
    changed: Condvar,
}

struct Turn<'a> {
    /// The number of the chunk that is counted next.
    next: u64,
    counter: &'a mut Counter,
    ended: Option<Ended>,
}

impl Range<'_> {
    /// Reads chunks and counts them, until none is left to take.
    fn count_chunks(&self, turns: &Turns<'_>) {
        let mut buffer = vec![0; CHUNK.min(usize::try_from(self.to - self.from).unwrap_or(CHUNK))];
        loop {
            let number = self.taken.fetch_add(1, Ordering::Relaxed);
            let start = self.from + number * CHUNK as u64;
            if start >= self.to {
                return;
            }
            let chunk = self.read(&mut buffer, start);
            let mut turn = turns.wait_for(number);
            if turn.ended.is_some() {
                return;
            }
            let counted = chunk.and_then(|chunk| turn.counter.feed(chunk).map_err(Ended::Format));
            turn.next = number + 1;
            turn.ended = counted.err();
            drop(turn);
            turns.changed.notify_one();
        }
    }

    fn read<'b>(&self, buffer: &'b mut [u8], start: u64) -> Result<&'b [u8], Ended> {
        if self.meter.is_stopped() {
            return Err(Ended::Format(Error::Stopped));
        }
        let length = usize::try_from(self.to - start).unwrap_or(usize::MAX).min(buffer.len());
        let chunk = &mut buffer[..length];
        self.file.read_exact_at(chunk, start).map_err(Ended::Io)?;
        self.meter.add(length);
        Ok(chunk)
    }
}

impl<'a> Turns<'a> {
    /// Waits until the chunk `number` is next, or reading has ended.
    fn wait_for(&self, number: u64) -> MutexGuard<'_, Turn<'a>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed
            .wait_while(state, |turn| turn.next != number && turn.ended.is_none())
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{format::Format, options::Options};

    #[test]
    fn any_reader_can_be_counted_and_a_stopped_meter_ends_it() {
        let mut counter = Counter::new(Format::Csv, &Options::default()).unwrap();
        let (source, meter) = (Path::new("http://host/a.csv"), Meter::default());
        let reader = "a,b\n1,\"".as_bytes().chain("2\n\"\n3,4".as_bytes());
        count(source, reader, &mut counter, &meter).unwrap();
        assert_eq!((counter.tally().samples, meter.bytes_read()), (2, 14));
        meter.stop();
        assert_eq!(count(source, "5".as_bytes(), &mut counter, &meter), Err(Error::Stopped));
    }

    #[test]
    fn what_a_reader_fails_with_names_the_source() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("the connection is gone"))
            }
        }
        let mut counter = Counter::new(Format::Txt, &Options::default()).unwrap();
        let error = count(Path::new("http://host/a.txt"), Broken, &mut counter, &Meter::default())
            .unwrap_err();
        assert_eq!(error.to_string(), "http://host/a.txt: the connection is gone");
    }
}
