//! The file with the counters. It is written before a client gets its answer, so that a killed
//! process has counted every sample that was answered. The next process continues the sum.
//!
//! One record is overwritten in place, in the page cache: it survives the end of the process and
//! not that of the machine. After another boot a record counts only if it was closed.

pub mod slot;

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::info;

use self::slot::{FORMAT, SIZE};
use crate::decision::Totals;

/// The content of the file, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    format: u32,
    /// When the first process of the sum started.
    since: Timestamp,
    /// The boot of the machine during which it was written.
    boot: String,
    /// Whether the process ended and the record is on the disk.
    is_closed: bool,
    /// The sum over all processes since then.
    #[serde(flatten)]
    totals: Totals,
}

/// What earlier processes counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Earlier {
    /// Time at which the first of these processes started.
    pub since: Timestamp,
    /// The sum of what these processes counted.
    pub totals: Totals,
}

/// The file of this process. Locked, so that another process with the same state does not use it.
#[derive(Debug)]
pub struct CounterFile {
    file: File,
    path: PathBuf,
    earlier: Earlier,
    /// Whether an earlier process did not close it.
    was_killed: bool,
    record: Record,
    buffer: Vec<u8>,
    is_failing: bool,
}

impl CounterFile {
    /// Opens or creates the file beside a state file, and continues its sum.
    ///
    /// # Errors
    /// It cannot be written, or another process uses it.
    pub fn open(state: &Path, now: Timestamp) -> io::Result<Self> {
        Self::open_at(&counter_path(state), &slot::boot_id(), now)
    }

    fn open_at(path: &Path, boot: &str, now: Timestamp) -> io::Result<Self> {
        let file = slot::open_locked(path)?;
        let before = read(path);
        let was_killed = before.as_ref().is_ok_and(|record| !record.is_closed);
        let earlier = before.and_then(|record| continued(&record, boot)).unwrap_or_else(|reason| {
            info!("{}: counters begin at zero: {reason}", path.display());
            Earlier { since: now, totals: Totals::default() }
        });
        let record = Record {
            format: FORMAT,
            since: earlier.since,
            boot: boot.to_owned(),
            is_closed: false,
            totals: earlier.totals,
        };
        let buffer = Vec::with_capacity(SIZE);
        let path = path.to_owned();
        let mut opened =
            Self { file, path, earlier, was_killed, record, buffer, is_failing: false };
        opened.put(&Totals::default(), false)?;
        Ok(opened)
    }

    /// What earlier processes counted.
    pub const fn earlier(&self) -> Earlier {
        self.earlier
    }

    /// Whether the process before was killed, or the machine stopped.
    pub const fn was_killed(&self) -> bool {
        self.was_killed
    }

    /// Records the counters of this process. If that fails, the file is removed: a sum that lacks
    /// samples would be continued.
    pub fn record(&mut self, totals: &Totals) {
        if self.is_failing {
            return;
        }
        if let Err(problem) = self.put(totals, false) {
            self.is_failing = true;
            let consequence = "a kill loses the samples of up to a second";
            slot::abandon(&self.path, &problem, consequence);
        }
    }

    /// Records the last counters of this process, on the disk.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn close(mut self, totals: &Totals) -> io::Result<()> {
        if self.is_failing {
            return Ok(());
        }
        self.put(totals, true)?;
        self.file.sync_all()
    }

    fn put(&mut self, totals: &Totals, is_closed: bool) -> io::Result<()> {
        self.record.is_closed = is_closed;
        self.record.totals = self.earlier.totals.plus(totals);
        slot::put(&self.file, &mut self.buffer, 0, Some(&self.record))
    }
}

/// The counters beside a state file.
fn counter_path(state: &Path) -> PathBuf {
    slot::beside(state, ".counters")
}

fn read(path: &Path) -> Result<Record, String> {
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    if bytes.is_empty() {
        return Err("the file is new".to_owned());
    }
    let record: Record = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if record.format == FORMAT {
        Ok(record)
    } else {
        Err(format!("format {} is not {FORMAT}", record.format))
    }
}

/// The sum of a record that can be continued. The reason, if it cannot.
fn continued(record: &Record, boot: &str) -> Result<Earlier, String> {
    slot::is_continued(record.is_closed, (&record.boot, boot))?;
    Ok(Earlier { since: record.since, totals: record.totals })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn totals(inference: u64) -> Totals {
        Totals { inference, cloud: inference / 5, ..Totals::default() }
    }

    #[test]
    fn killed_process_has_counted_what_it_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let path = counter_path(&folder.path().join("state.json"));
        let open = |boot, second| CounterFile::open_at(&path, boot, time(second)).unwrap();
        let mut first = open("boot", 0);
        assert_eq!(first.earlier(), Earlier { since: time(0), totals: totals(0) });
        assert!(!first.was_killed());
        for inference in [5, 1_000_000, 1_000_005] {
            first.record(&totals(inference));
        }
        drop(first);
        let mut second = open("boot", 1);
        assert_eq!(second.earlier(), Earlier { since: time(0), totals: totals(1_000_005) });
        assert!(second.was_killed());
        second.record(&totals(10));
        drop(second);
        assert_eq!(open("boot", 2).earlier().totals, totals(1_000_015));
    }

    #[test]
    fn other_boot_continues_only_a_closed_sum() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c");
        let mut first = CounterFile::open_at(&path, "one", time(0)).unwrap();
        first.record(&totals(5));
        first.close(&totals(10)).unwrap();
        let second = CounterFile::open_at(&path, "two", time(1)).unwrap();
        assert_eq!(second.earlier(), Earlier { since: time(0), totals: totals(10) });
        assert!(!second.was_killed());
        drop(second);
        for boot in ["three", ""] {
            let lost = CounterFile::open_at(&path, boot, time(2)).unwrap();
            assert_eq!(lost.earlier(), Earlier { since: time(2), totals: totals(0) }, "{boot:?}");
        }
    }

    #[test]
    fn damaged_file_begins_another_sum() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c");
        for damage in ["{", "\0\0\0", r#"{"format":2}"#] {
            fs::write(&path, damage).unwrap();
            let opened = CounterFile::open_at(&path, "boot", time(3)).unwrap();
            assert_eq!(opened.earlier(), Earlier { since: time(3), totals: totals(0) });
        }
    }

    #[test]
    fn second_process_with_the_same_state_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c");
        let first = CounterFile::open_at(&path, "boot", time(0)).unwrap();
        let error = CounterFile::open_at(&path, "boot", time(1)).unwrap_err();
        assert_eq!(error.to_string(), "another process uses it");
        drop(first);
        assert!(CounterFile::open_at(&path, "boot", time(1)).is_ok());
    }

    #[test]
    fn longest_record_fits() {
        let folder = tempfile::tempdir().unwrap();
        let boot = "01234567-89ab-cdef-0123-456789abcdef";
        let now = time(0) + jiff::SignedDuration::from_nanos(123_456_789);
        let mut file = CounterFile::open_at(&folder.path().join("c"), boot, now).unwrap();
        file.put(&Totals::all(u64::MAX / 2), false).unwrap();
    }

    #[test]
    fn file_that_cannot_be_written_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c");
        let mut opened = CounterFile::open_at(&path, "boot", time(0)).unwrap();
        // Of the same file, without the right to write.
        opened.file = File::open(&path).unwrap();
        opened.record(&totals(1));
        assert!(opened.is_failing && !path.exists());
        opened.record(&totals(2));
        opened.close(&totals(2)).unwrap();
        assert!(!path.exists());
    }
}
