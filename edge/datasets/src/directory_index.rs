//! The counts of the files of a directory, in bounded memory. Pure.
//!
//! An entry per file would take as much memory as small files themselves. Instead, a hash of its path
//! assigns each file to one of [`BUCKETS`] buckets. A bucket has the sum of its files'
//! fingerprints and the counts of their content. When the sum changes, only the files of that
//! bucket are read again: one of up to a thousand files, a thousand of a million.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
};

use serde::{Deserialize, Serialize};

use crate::counts::{MAX_LABELS, SampleCounts};

/// 1,024 buckets take about 100 KiB with twenty labels, and at most 6 MiB with the maximum number
/// of labels.
pub(crate) const BUCKETS: u64 = 1024;

/// The counts of the files of a directory, by bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DirectoryIndex {
    /// Column names of the file that was read first.
    columns: Vec<String>,
    /// Labels by number. A label keeps its number while a file has it.
    labels: Vec<String>,
    /// The buckets that have files.
    buckets: BTreeMap<u16, Bucket>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Bucket {
    digest: u64,
    samples: u64,
    bytes: u64,
    /// Number of samples or objects per label, by the number of the label.
    labels: BTreeMap<u16, u64>,
    /// Sum over the labels beyond the limit.
    other: u64,
    /// Whether a file ends within a sample.
    unfinished: bool,
    skipped: u64,
    skipped_example: Option<String>,
}

/// The digest of each bucket, computed from the current content of the directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BucketDigests(BTreeMap<u16, u64>);

impl BucketDigests {
    pub(crate) fn add(&mut self, file: &FileFingerprint) {
        let digest = self.0.entry(file.bucket).or_default();
        *digest = digest.wrapping_add(file.digest);
    }
}

/// Identifies a file and its version by metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileFingerprint {
    bucket: u16,
    digest: u64,
}

impl FileFingerprint {
    /// `changed` is the inode change time, in seconds and nanoseconds.
    pub(crate) fn new(path: &Path, inode: u64, bytes: u64, changed: (i64, i64)) -> Self {
        let mut hasher = DefaultHasher::new();
        path.hash(&mut hasher);
        let bucket =
            u16::try_from(hasher.finish() % BUCKETS).expect("the number of buckets fits a u16");
        (inode, bytes, changed).hash(&mut hasher);
        Self { bucket, digest: hasher.finish() }
    }

    /// `buckets` must be sorted.
    pub(crate) fn is_in(&self, buckets: &[u16]) -> bool {
        buckets.binary_search(&self.bucket).is_ok()
    }
}

impl DirectoryIndex {
    /// Removes the buckets that differ from `now`. Returns the buckets to fill again, sorted.
    pub(crate) fn remove_changed(&mut self, now: &BucketDigests) -> Vec<u16> {
        self.buckets.retain(|number, bucket| now.0.get(number) == Some(&bucket.digest));
        if self.buckets.is_empty() {
            *self = Self::default();
        }
        self.forget_unused_labels();
        now.0.keys().filter(|number| !self.buckets.contains_key(number)).copied().collect()
    }

    /// Makes room for other labels.
    fn forget_unused_labels(&mut self) {
        let used: BTreeSet<u16> =
            self.buckets.values().flat_map(|bucket| bucket.labels.keys().copied()).collect();
        if used.len() == self.labels.len() {
            return;
        }
        let numbers: BTreeMap<u16, u16> = used.iter().copied().zip(0..).collect();
        self.labels = used.iter().map(|number| self.labels[usize::from(*number)].clone()).collect();
        for bucket in self.buckets.values_mut() {
            let labels = std::mem::take(&mut bucket.labels).into_iter();
            bucket.labels = labels.map(|(number, count)| (numbers[&number], count)).collect();
        }
    }

    /// Adds a file to a bucket that is being filled: its counts, or the reason why it cannot be
    /// counted.
    pub(crate) fn add(&mut self, file: &FileFingerprint, counted: Result<SampleCounts, String>) {
        let bucket = self.buckets.entry(file.bucket).or_default();
        bucket.digest = bucket.digest.wrapping_add(file.digest);
        match counted {
            Ok(counts) => {
                bucket.samples += counts.samples;
                bucket.bytes += counts.bytes;
                bucket.unfinished |= counts.unfinished;
                bucket.other += counts.labels.other;
                for (label, count) in counts.labels.by_name {
                    match label_number(&mut self.labels, label) {
                        Some(number) => *bucket.labels.entry(number).or_default() += count,
                        None => bucket.other += count,
                    }
                }
                if self.columns.is_empty() {
                    self.columns = counts.columns;
                }
            }
            Err(reason) => {
                bucket.skipped += 1;
                bucket.skipped_example.get_or_insert(reason);
            }
        }
    }

    pub(crate) fn counts(&self) -> SampleCounts {
        let columns = self.columns.clone();
        let mut counts = SampleCounts { columns, ..SampleCounts::default() };
        for bucket in self.buckets.values() {
            counts.samples += bucket.samples;
            counts.bytes += bucket.bytes;
            counts.unfinished |= bucket.unfinished;
            counts.skipped += bucket.skipped;
            counts.skipped_example =
                counts.skipped_example.or_else(|| bucket.skipped_example.clone());
            counts.labels.other += bucket.other;
            for (label, count) in &bucket.labels {
                counts.labels.add(&self.labels[usize::from(*label)], *count);
            }
        }
        counts
    }
}

/// The number of `label`. Adds it if there are fewer than [`MAX_LABELS`] labels.
fn label_number(labels: &mut Vec<String>, label: String) -> Option<u16> {
    let known = labels.iter().position(|known| *known == label);
    let number = known.or_else(|| (labels.len() < MAX_LABELS).then_some(labels.len()))?;
    if known.is_none() {
        labels.push(label);
    }
    u16::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(n: u32, bytes: u64) -> FileFingerprint {
        FileFingerprint::new(Path::new(&format!("{n}.xml")), 1, bytes, (0, 0))
    }

    fn of_labels(labels: impl IntoIterator<Item = String>) -> SampleCounts {
        let mut counts = SampleCounts { samples: 1, bytes: 10, ..SampleCounts::default() };
        for label in labels {
            counts.labels.add(&label, 1);
        }
        counts
    }

    /// Updates `known` to `files`. Returns the number of files that had to be read.
    fn scan(known: &mut DirectoryIndex, files: &[FileFingerprint]) -> usize {
        let mut now = BucketDigests::default();
        for file in files {
            now.add(file);
        }
        let changed = known.remove_changed(&now);
        let read: Vec<_> = files.iter().filter(|file| file.is_in(&changed)).collect();
        for file in &read {
            let parity = if file.digest % 2 == 0 { "even" } else { "odd" };
            known.add(file, Ok(of_labels([parity.to_owned()])));
        }
        read.len()
    }

    #[test]
    fn only_changed_buckets_are_read_again() {
        let mut files: Vec<_> = (0..20_000).map(|n| fingerprint(n, u64::from(n))).collect();
        let mut known = DirectoryIndex::default();
        assert_eq!(scan(&mut known, &files), 20_000);
        assert_eq!(scan(&mut known, &files), 0);

        files[7] = fingerprint(7, 8);
        files.swap_remove(100);
        files.push(fingerprint(20_000, 1));
        let read = scan(&mut known, &files);
        assert!((1..200).contains(&read), "{read} files were read again");

        let mut from_scratch = DirectoryIndex::default();
        scan(&mut from_scratch, &files);
        assert_eq!(known.counts(), from_scratch.counts());
        assert_eq!(known.counts().samples, 20_000);

        assert_eq!(scan(&mut known, &[]), 0);
        assert_eq!(known.counts(), SampleCounts::default());
    }

    #[test]
    fn unreadable_file_is_skipped_with_its_reason() {
        let mut known = DirectoryIndex::default();
        known.add(&fingerprint(1, 10), Err("1.xml: empty".into()));
        known.add(&fingerprint(2, 10), Ok(of_labels([])));
        let counts = known.counts();
        assert_eq!((counts.samples, counts.skipped, counts.bytes), (1, 1, 10));
        assert_eq!(counts.skipped_example.as_deref(), Some("1.xml: empty"));
    }

    #[test]
    fn label_without_files_makes_room_for_another() {
        let mut known = DirectoryIndex::default();
        let kept = fingerprint(10_000, 1);
        for day in 0..3 {
            let files: Vec<_> =
                (0..4).map(|n| fingerprint(day * 10 + n, 1)).chain([kept]).collect();
            let mut now = BucketDigests::default();
            for file in &files {
                now.add(file);
            }
            let changed = known.remove_changed(&now);
            for file in files.iter().filter(|file| file.is_in(&changed)) {
                let labels = if *file == kept {
                    vec!["kept".to_owned()]
                } else {
                    (0..60).map(|n| format!("{day}-{}-{n}", file.digest)).collect()
                };
                known.add(file, Ok(of_labels(labels)));
            }
            let labels = known.counts().labels;
            assert_eq!((labels.by_name.len(), labels.other), (241, 0), "day {day}");
            assert_eq!(labels.by_name["kept"], 1);
        }
    }

    #[test]
    fn number_of_labels_is_limited() {
        let mut known = DirectoryIndex::default();
        for file in 0..5 {
            let labels = (0..MAX_LABELS / 4).map(|n| format!("{file}-{n}"));
            known.add(&fingerprint(file, 1), Ok(of_labels(labels)));
        }
        assert_eq!(
            (known.counts().labels.by_name.len(), known.counts().labels.other),
            (MAX_LABELS, MAX_LABELS as u64 / 4)
        );
    }
}
