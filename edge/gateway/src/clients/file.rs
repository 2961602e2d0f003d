//! The file with the counts of clients, beside that of the counters and as exact: a record for each
//! client, written before an answer. The next process continues the sums.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{ClientCounts, ClientEntry};
use crate::{
    config::MAX_CLIENTS,
    counter_file::slot::{self, FORMAT, SIZE},
};

/// A record, as JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    format: u32,
    client: String,
    since: Timestamp,
    boot: String,
    is_closed: bool,
    #[serde(flatten)]
    counts: ClientCounts,
}

/// The file of this process. Locked, so that another process with the same state does not use it.
#[derive(Debug)]
pub struct ClientFile {
    file: File,
    path: PathBuf,
    boot: String,
    /// The client of each record.
    names: Vec<Option<String>>,
    buffer: Vec<u8>,
    is_failing: bool,
}

impl ClientFile {
    /// Opens or creates the file beside a state file. Returns the counts that continue.
    ///
    /// # Errors
    /// It cannot be written, or another process uses it.
    pub fn open(state: &Path) -> io::Result<(Self, BTreeMap<String, ClientEntry>)> {
        Self::open_at(&slot::beside(state, ".clients"), &slot::boot_id())
    }

    fn open_at(path: &Path, boot: &str) -> io::Result<(Self, BTreeMap<String, ClientEntry>)> {
        let file = slot::open_locked(path)?;
        let content = fs::read(path)?;
        let mut opened = Self {
            file,
            path: path.to_owned(),
            boot: boot.to_owned(),
            names: vec![None; MAX_CLIENTS],
            buffer: Vec::with_capacity(SIZE),
            is_failing: false,
        };
        let mut entries = BTreeMap::new();
        for (index, bytes) in content.chunks(SIZE).take(MAX_CLIENTS).enumerate() {
            let Some(record) = continued(bytes, boot) else { continue };
            let entry = ClientEntry { since: record.since, counts: record.counts };
            if entries.insert(record.client.clone(), entry).is_none() {
                opened.names[index] = Some(record.client);
            }
        }
        for (name, entry) in &entries {
            // Not closed any more.
            opened.put(name, entry, false)?;
        }
        Ok((opened, entries))
    }

    /// Removes the records of clients that are not listed any more.
    pub fn retain(&mut self, is_listed: impl Fn(&str) -> bool) {
        for index in 0..self.names.len() {
            if self.names[index].as_deref().is_some_and(|name| !is_listed(name)) {
                self.names[index] = None;
                let blank = slot::put(&self.file, &mut self.buffer, index, None::<&Record>);
                self.note(blank);
            }
        }
    }

    /// Records the counts of a client.
    pub fn record(&mut self, name: &str, entry: &ClientEntry) {
        if !self.is_failing {
            let written = self.put(name, entry, false);
            self.note(written);
        }
    }

    /// Records the last counts of this process, on the disk.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn close<'a>(
        mut self,
        entries: impl Iterator<Item = (&'a str, ClientEntry)>,
    ) -> io::Result<()> {
        if self.is_failing {
            return Ok(());
        }
        for (name, entry) in entries {
            self.put(name, &entry, true)?;
        }
        self.file.sync_all()
    }

    /// Gives the file up after the first failure.
    fn note(&mut self, written: io::Result<()>) {
        let Err(problem) = written else { return };
        if std::mem::replace(&mut self.is_failing, true) {
            return;
        }
        slot::abandon(&self.path, &problem, "the counters of clients begin again");
    }

    fn put(&mut self, name: &str, entry: &ClientEntry, is_closed: bool) -> io::Result<()> {
        let known = self.names.iter().position(|own| own.as_deref() == Some(name));
        let index = known.or_else(|| self.names.iter().position(Option::is_none));
        let index = index.ok_or_else(|| io::Error::other("it has no room for a client"))?;
        let record = Record {
            format: FORMAT,
            client: name.to_owned(),
            since: entry.since,
            boot: self.boot.clone(),
            is_closed,
            counts: entry.counts,
        };
        slot::put(&self.file, &mut self.buffer, index, Some(&record))?;
        self.names[index] = Some(record.client);
        Ok(())
    }
}

/// A record whose sum can be continued.
fn continued(bytes: &[u8], boot: &str) -> Option<Record> {
    let record: Record = serde_json::from_slice(bytes).ok()?;
    let is_continued = slot::is_continued(record.is_closed, (&record.boot, boot)).is_ok();
    (record.format == FORMAT && is_continued).then_some(record)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::decision::Totals;

    fn entry(requests: u64) -> ClientEntry {
        let samples = Totals { inference: requests / 2, ..Totals::default() };
        let counts = ClientCounts { requests, refused: 1, samples };
        ClientEntry { since: Timestamp::UNIX_EPOCH, counts }
    }

    fn path(folder: &tempfile::TempDir) -> PathBuf {
        slot::beside(&folder.path().join("state.json"), ".clients")
    }

    #[test]
    fn killed_process_has_counted_each_client() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(&folder);
        let (mut first, entries) = ClientFile::open_at(&path, "boot").unwrap();
        assert!(entries.is_empty());
        for requests in [5, 1_000_000, 1_000_005] {
            first.record("hall", &entry(requests));
            first.record("notebook", &entry(requests + 1));
        }
        drop(first);
        let (mut second, entries) = ClientFile::open_at(&path, "boot").unwrap();
        let expected = [("hall", entry(1_000_005)), ("notebook", entry(1_000_006))];
        assert_eq!(entries, expected.map(|(name, entry)| (name.to_owned(), entry)).into());
        // The record of a removed client is free for another one, and does not come back.
        second.retain(|name| name == "notebook");
        second.record("line", &entry(7));
        drop(second);
        let (_, entries) = ClientFile::open_at(&path, "boot").unwrap();
        assert_eq!(entries.keys().collect::<Vec<_>>(), ["line", "notebook"]);
        assert_eq!(fs::metadata(&path).unwrap().len(), 2 * SIZE as u64);
    }

    #[test]
    fn other_boot_continues_only_what_was_closed() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(&folder);
        let (first, _) = ClientFile::open_at(&path, "one").unwrap();
        first.close([("hall", entry(5))].into_iter()).unwrap();
        let (second, entries) = ClientFile::open_at(&path, "two").unwrap();
        assert_eq!(entries["hall"], entry(5));
        drop(second);
        assert!(ClientFile::open_at(&path, "three").unwrap().1.is_empty());
    }

    #[test]
    fn damaged_record_costs_only_its_client() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(&folder);
        let (mut first, _) = ClientFile::open_at(&path, "boot").unwrap();
        first.record("hall", &entry(1));
        first.record("notebook", &entry(2));
        drop(first);
        let mut bytes = fs::read(&path).unwrap();
        bytes[0] = b'x';
        fs::write(&path, bytes).unwrap();
        let (mut second, entries) = ClientFile::open_at(&path, "boot").unwrap();
        assert_eq!(entries.keys().collect::<Vec<_>>(), ["notebook"]);
        second.record("hall", &entry(3));
        drop(second);
        assert_eq!(ClientFile::open_at(&path, "boot").unwrap().1.len(), 2);
    }

    #[test]
    fn longest_records_of_all_clients_fit() {
        let all = u64::MAX / 2;
        let counts = ClientCounts { requests: all, refused: all, samples: Totals::all(all) };
        let since = Timestamp::from_nanosecond(1_800_000_000_123_456_789).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let boot = "01234567-89ab-cdef-0123-456789abcdef";
        let (mut file, _) = ClientFile::open_at(&path(&folder), boot).unwrap();
        for number in 0..MAX_CLIENTS {
            let name = format!("{number:0>63}");
            file.put(&name, &ClientEntry { since, counts }, false).unwrap();
        }
        assert!(file.put("one-more", &entry(1), false).is_err());
    }
}
