//! What is known of a directory of annotations, in bounded memory. Pure.
//!
//! Remembering each of a million files would take as much memory as the files. Instead they are spread over
//! [`BUCKETS`] buckets by their path; a bucket has the sum of its files' digests and the totals of what they hold. When
//! a digest changes, the files of that bucket are read again: one file of up to a thousand, a thousand of a million.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
};

use serde::{Deserialize, Serialize};

use crate::tally::{MAX_LABELS, Tally};

/// 1,024 buckets take about 100 KiB with twenty classes, and at most 6 MiB with as many classes as are kept.
pub(crate) const BUCKETS: u64 = 1024;

/// A directory of annotations that was counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Annotations {
    /// Classes by number; a class keeps its number.
    classes: Vec<String>,
    /// Those that have files.
    buckets: BTreeMap<u16, Bucket>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Bucket {
    digest: u64,
    files: u64,
    bytes: u64,
    /// Objects by the number of their class.
    objects: BTreeMap<u16, u64>,
    other: u64,
    skipped: u64,
    skipped_example: Option<String>,
}

/// The digests of all buckets, as a directory is now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Digests(BTreeMap<u16, u64>);

impl Digests {
    pub(crate) fn add(&mut self, file: &Facts) {
        let digest = self.0.entry(file.bucket).or_default();
        *digest = digest.wrapping_add(file.digest);
    }
}

/// What tells a file from another, and from itself after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    bucket: u16,
    digest: u64,
    bytes: u64,
}

impl Facts {
    /// `changed`: the time of the last change of the inode, seconds and nanoseconds.
    pub(crate) fn new(path: &Path, inode: u64, bytes: u64, changed: (i64, i64)) -> Self {
        let mut hasher = DefaultHasher::new();
        path.hash(&mut hasher);
        let bucket =
            u16::try_from(hasher.finish() % BUCKETS).expect("fewer buckets than a u16 has numbers");
        (inode, bytes, changed).hash(&mut hasher);
        Self { bucket, digest: hasher.finish(), bytes }
    }

    /// `buckets`: in order.
    pub(crate) fn is_in(&self, buckets: &[u16]) -> bool {
        buckets.binary_search(&self.bucket).is_ok()
    }
}

impl Annotations {
    /// Forgets the buckets that are no longer as `now` has them. Returns, in order, those to be filled again.
    pub(crate) fn forget_changed(&mut self, now: &Digests) -> Vec<u16> {
        self.buckets.retain(|number, bucket| now.0.get(number) == Some(&bucket.digest));
        now.0.keys().filter(|number| !self.buckets.contains_key(number)).copied().collect()
    }

    /// A file of a bucket that is being filled: its classes, or why it has none.
    pub(crate) fn add(&mut self, file: &Facts, read: Result<Vec<String>, String>) {
        let bucket = self.buckets.entry(file.bucket).or_default();
        bucket.digest = bucket.digest.wrapping_add(file.digest);
        match read {
            Ok(classes) => {
                bucket.files += 1;
                bucket.bytes += file.bytes;
                for class in classes {
                    match number(&mut self.classes, class) {
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

    pub(crate) fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for bucket in self.buckets.values() {
            tally.samples += bucket.files;
            tally.bytes += bucket.bytes;
            tally.skipped += bucket.skipped;
            tally.skipped_example =
                tally.skipped_example.or_else(|| bucket.skipped_example.clone());
            tally.labels.other += bucket.other;
            for (class, count) in &bucket.objects {
                tally.labels.add(&self.classes[usize::from(*class)], *count);
            }
        }
        tally
    }
}

fn number(classes: &mut Vec<String>, class: String) -> Option<u16> {
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

    fn facts(n: u32, bytes: u64) -> Facts {
        Facts::new(Path::new(&format!("{n}.xml")), 1, bytes, (0, 0))
    }

    /// Counts `files` on from what `known` has; returns how many had to be read.
    fn scan(known: &mut Annotations, files: &[Facts]) -> usize {
        let mut now = Digests::default();
        for file in files {
            now.add(file);
        }
        let changed = known.forget_changed(&now);
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
    fn only_buckets_with_a_change_are_read_again_and_the_result_is_that_of_reading_all() {
        let mut files: Vec<_> = (0..20_000).map(|n| facts(n, u64::from(n))).collect();
        let mut known = Annotations::default();
        assert_eq!(scan(&mut known, &files), 20_000);
        assert_eq!(scan(&mut known, &files), 0);

        files[7] = facts(7, 8);
        files.swap_remove(100);
        files.push(facts(20_000, 1));
        let read = scan(&mut known, &files);
        assert!((1..200).contains(&read), "{read} files were read again");

        let mut anew = Annotations::default();
        scan(&mut anew, &files);
        assert_eq!(known.tally(), anew.tally());
        assert_eq!(known.tally().samples, 20_000);

        assert_eq!(scan(&mut known, &[]), 0);
        assert_eq!(known.tally(), Tally::default());
    }

    #[test]
    fn what_cannot_be_read_is_skipped_and_told() {
        let mut known = Annotations::default();
        known.add(&facts(1, 10), Err("1.xml: empty".into()));
        known.add(&facts(2, 10), Ok(vec![]));
        let tally = known.tally();
        assert_eq!((tally.samples, tally.skipped, tally.bytes), (1, 1, 10));
        assert_eq!(tally.skipped_example.as_deref(), Some("1.xml: empty"));
    }

    #[test]
    fn classes_are_bounded() {
        let mut known = Annotations::default();
        known.add(&facts(1, 1), Ok((0..MAX_LABELS + 5).map(|n| n.to_string()).collect()));
        assert_eq!(
            (known.tally().labels.by_name.len(), known.tally().labels.other),
            (MAX_LABELS, 5)
        );
    }
}
