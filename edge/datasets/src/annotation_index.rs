//! The counts of a directory of annotations, in bounded memory. Pure.
//!
//! An entry per file would take as much memory as the files themselves. Instead, a hash of its path
//! assigns each file to one of [`BUCKETS`] buckets. A bucket holds the sum of its files'
//! fingerprints and the counts of their content. When the sum changes, only the files of that
//! bucket are read again: one of up to a thousand files, a thousand of a million.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
};

use serde::{Deserialize, Serialize};

use crate::counts::{MAX_LABELS, SampleCounts};

/// 1,024 buckets take about 100 KiB with twenty classes, and at most 6 MiB with the maximum number
/// of classes.
pub(crate) const BUCKETS: u64 = 1024;

/// The counts of a directory of annotations, by bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AnnotationIndex {
    /// Class names by class number. A class keeps its number.
    classes: Vec<String>,
    /// The buckets that have files.
    buckets: BTreeMap<u16, Bucket>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Bucket {
    digest: u64,
    files: u64,
    bytes: u64,
    /// Number of objects by class number.
    objects: BTreeMap<u16, u64>,
    /// Number of objects of classes beyond the limit.
    other: u64,
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
    bytes: u64,
}

impl FileFingerprint {
    /// `changed` is the inode change time, in seconds and nanoseconds.
    pub(crate) fn new(path: &Path, inode: u64, bytes: u64, changed: (i64, i64)) -> Self {
        let mut hasher = DefaultHasher::new();
        path.hash(&mut hasher);
        let bucket =
            u16::try_from(hasher.finish() % BUCKETS).expect("the number of buckets fits a u16");
        (inode, bytes, changed).hash(&mut hasher);
        Self { bucket, digest: hasher.finish(), bytes }
    }

    /// `buckets` must be sorted.
    pub(crate) fn is_in(&self, buckets: &[u16]) -> bool {
        buckets.binary_search(&self.bucket).is_ok()
    }
}

impl AnnotationIndex {
    /// Removes the buckets that differ from `now`. Returns the buckets to fill again, sorted.
    pub(crate) fn remove_changed(&mut self, now: &BucketDigests) -> Vec<u16> {
        self.buckets.retain(|number, bucket| now.0.get(number) == Some(&bucket.digest));
        now.0.keys().filter(|number| !self.buckets.contains_key(number)).copied().collect()
    }

    /// Adds a file to a bucket that is being filled. `read` holds the classes of its objects, or
    /// the reason why it cannot be counted.
    pub(crate) fn add(&mut self, file: &FileFingerprint, read: Result<Vec<String>, String>) {
        let bucket = self.buckets.entry(file.bucket).or_default();
        bucket.digest = bucket.digest.wrapping_add(file.digest);
        match read {
            Ok(classes) => {
                bucket.files += 1;
                bucket.bytes += file.bytes;
                for class in classes {
                    match class_number(&mut self.classes, class) {
                        Some(number) => *bucket.objects.entry(number).or_default() += 1,
                        None => bucket.other += 1,
                    }
                }
            }
            Err(reason) => {
                bucket.skipped += 1;
                bucket.skipped_example.get_or_insert(reason);
            }
        }
    }

    pub(crate) fn counts(&self) -> SampleCounts {
        let mut counts = SampleCounts::default();
        for bucket in self.buckets.values() {
            counts.samples += bucket.files;
            counts.bytes += bucket.bytes;
            counts.skipped += bucket.skipped;
            counts.skipped_example =
                counts.skipped_example.or_else(|| bucket.skipped_example.clone());
            counts.labels.other += bucket.other;
            for (class, count) in &bucket.objects {
                counts.labels.add(&self.classes[usize::from(*class)], *count);
            }
        }
        counts
    }
}

/// The number of `class`. Adds it if there are fewer than [`MAX_LABELS`] classes.
fn class_number(classes: &mut Vec<String>, class: String) -> Option<u16> {
    let known = classes.iter().position(|known| *known == class);
    let number = known.or_else(|| (classes.len() < MAX_LABELS).then_some(classes.len()))?;
    if known.is_none() {
        classes.push(class);
    }
    u16::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(n: u32, bytes: u64) -> FileFingerprint {
        FileFingerprint::new(Path::new(&format!("{n}.xml")), 1, bytes, (0, 0))
    }

    /// Updates `known` to `files`. Returns the number of files that had to be read.
    fn scan(known: &mut AnnotationIndex, files: &[FileFingerprint]) -> usize {
        let mut now = BucketDigests::default();
        for file in files {
            now.add(file);
        }
        let changed = known.remove_changed(&now);
        let read: Vec<_> = files.iter().filter(|file| file.is_in(&changed)).collect();
        for file in &read {
            known.add(
                file,
                Ok(vec![if file.bytes % 2 == 0 { "even".into() } else { "odd".into() }]),
            );
        }
        read.len()
    }

    #[test]
    fn only_changed_buckets_are_read_again() {
        let mut files: Vec<_> = (0..20_000).map(|n| fingerprint(n, u64::from(n))).collect();
        let mut known = AnnotationIndex::default();
        assert_eq!(scan(&mut known, &files), 20_000);
        assert_eq!(scan(&mut known, &files), 0);

        files[7] = fingerprint(7, 8);
        files.swap_remove(100);
        files.push(fingerprint(20_000, 1));
        let read = scan(&mut known, &files);
        assert!((1..200).contains(&read), "{read} files were read again");

        let mut from_scratch = AnnotationIndex::default();
        scan(&mut from_scratch, &files);
        assert_eq!(known.counts(), from_scratch.counts());
        assert_eq!(known.counts().samples, 20_000);

        assert_eq!(scan(&mut known, &[]), 0);
        assert_eq!(known.counts(), SampleCounts::default());
    }

    #[test]
    fn unreadable_file_is_skipped_with_its_reason() {
        let mut known = AnnotationIndex::default();
        known.add(&fingerprint(1, 10), Err("1.xml: empty".into()));
        known.add(&fingerprint(2, 10), Ok(vec![]));
        let counts = known.counts();
        assert_eq!((counts.samples, counts.skipped, counts.bytes), (1, 1, 10));
        assert_eq!(counts.skipped_example.as_deref(), Some("1.xml: empty"));
    }

    #[test]
    fn number_of_classes_is_limited() {
        let mut known = AnnotationIndex::default();
        known.add(&fingerprint(1, 1), Ok((0..MAX_LABELS + 5).map(|n| n.to_string()).collect()));
        assert_eq!(
            (known.counts().labels.by_name.len(), known.counts().labels.other),
            (MAX_LABELS, 5)
        );
    }
}
