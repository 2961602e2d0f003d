//! Decides which file of the capture takes a record and which ones go, and where a file ends that a
//! kill cut. Pure; `store.rs` does the I/O.

use std::collections::VecDeque;

use super::image_index::Moved;

/// The maximum size of a segment and of a record, in bytes.
pub const SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// The segments that a small bound is divided into, so that removing the oldest one keeps most
/// samples.
const PARTS: u64 = 8;
const PREFIX: &str = "samples-";
const SUFFIX: &str = ".jsonl";

/// The bounds of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of all segments.
    pub max_bytes: u64,
    /// Samples of all segments; 0 for no bound.
    pub max_samples: u64,
}

impl Bounds {
    fn segment_bytes(&self) -> u64 {
        (self.max_bytes / PARTS).clamp(1, SEGMENT_BYTES)
    }

    fn segment_samples(&self) -> u64 {
        if self.max_samples == 0 { u64::MAX } else { (self.max_samples / PARTS).max(1) }
    }

    fn permits(&self, bytes: u64, samples: u64) -> bool {
        bytes <= self.max_bytes && (self.max_samples == 0 || samples <= self.max_samples)
    }
}

/// One file with records of the capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Milliseconds since 1970 at which the segment began. It is part of the file name and gives
    /// the order.
    pub id: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Size of the files of binary values that count to the segment, in bytes.
    pub images: u64,
    /// Number of samples; 0 for segments of earlier processes while there is no bound of samples.
    pub samples: u64,
}

impl Segment {
    fn size(&self) -> u64 {
        self.bytes + self.images
    }
}

/// The segments of a directory, the oldest first. Only the last one grows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segments {
    bounds: Bounds,
    all: VecDeque<Segment>,
    /// Whether the last one takes records.
    is_open: bool,
    /// The greatest id that was used.
    last_id: u64,
}

/// What to do before a record is appended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct Placement {
    /// The segment to create, if the record does not go to the open one.
    pub create: Option<u64>,
    /// The segments to remove, the oldest first.
    pub remove: Vec<u64>,
}

/// A record that is larger than a segment, or than the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge;

impl Segments {
    /// The segments that a directory has. The newest one is open.
    pub fn new(bounds: Bounds, mut segments: Vec<Segment>) -> Self {
        segments.sort_unstable_by_key(|segment| segment.id);
        let last_id = segments.last().map_or(0, |segment| segment.id);
        Self { bounds, is_open: !segments.is_empty(), all: segments.into(), last_id }
    }

    /// The place of a record of this size, with its files of binary values. `now` are milliseconds since 1970.
    ///
    /// # Errors
    /// It fits no segment.
    pub fn place(&self, bytes: u64, now: u64) -> Result<Placement, TooLarge> {
        if bytes > SEGMENT_BYTES.min(self.bounds.max_bytes) {
            return Err(TooLarge);
        }
        let fits = |open: &Segment| {
            open.size() + bytes <= self.bounds.segment_bytes()
                && open.samples < self.bounds.segment_samples()
        };
        // A record that is larger than a segment of a small bound has one of its own.
        let has_room = self.is_open && self.all.back().is_some_and(|o| o.bytes == 0 || fits(o));
        let mut left = (self.bytes() + bytes, self.samples() + 1);
        let mut remove = Vec::new();
        for oldest in &self.all {
            if self.bounds.permits(left.0, left.1) {
                break;
            }
            left = (left.0 - oldest.size(), left.1 - oldest.samples);
            remove.push(oldest.id);
        }
        let is_kept = has_room && remove.len() < self.all.len();
        let create = (!is_kept).then(|| now.max(self.last_id + 1));
        Ok(Placement { create, remove })
    }

    /// A segment was created. Records go there from now on.
    pub fn created(&mut self, id: u64) {
        self.all.push_back(Segment { id, bytes: 0, images: 0, samples: 0 });
        self.last_id = self.last_id.max(id);
        self.is_open = true;
    }

    /// A record was appended to the open segment.
    pub fn appended(&mut self, bytes: u64) {
        if let Some(open) = self.all.back_mut() {
            open.bytes += bytes;
            open.samples += 1;
        }
    }

    /// Files count to a segment that did not, or counted to another one.
    pub fn moved(&mut self, moved: Moved) {
        for segment in &mut self.all {
            if moved.from == Some(segment.id) {
                segment.images -= moved.bytes;
            }
            if moved.to == segment.id {
                segment.images += moved.bytes;
            }
        }
    }

    /// A segment does not exist any more.
    pub fn removed(&mut self, id: u64) {
        self.is_open &= self.open() != Some(id);
        self.all.retain(|segment| segment.id != id);
    }

    /// The open segment takes no more records.
    pub const fn seal(&mut self) {
        self.is_open = false;
    }

    /// The segment that takes records.
    pub fn open(&self) -> Option<u64> {
        self.all.back().filter(|_| self.is_open).map(|segment| segment.id)
    }

    /// Returns all segments, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.all.iter()
    }

    /// The size of all segments and their files.
    pub fn bytes(&self) -> u64 {
        self.all.iter().map(Segment::size).sum()
    }

    fn samples(&self) -> u64 {
        self.all.iter().map(|segment| segment.samples).sum()
    }
}

/// The name of a segment's file. The order of the names is that of the ids.
pub fn file_name(id: u64) -> String {
    format!("{PREFIX}{id:016}{SUFFIX}")
}

/// The id in the name of a segment's file; `None` for every other file.
pub fn id_of(name: &str) -> Option<u64> {
    let id = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()?;
    (file_name(id) == name).then_some(id)
}

/// The length of the complete records among the last bytes of a file: up to and with the last line
/// feed. `None` if there is none.
pub fn complete(last_bytes: &[u8]) -> Option<usize> {
    last_bytes.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    /// The files that a placement leaves.
    #[derive(Debug, Default)]
    struct Disk(std::collections::BTreeMap<u64, (u64, u64)>);

    impl Disk {
        fn put(&mut self, segments: &mut Segments, bytes: u64, now: u64) -> bool {
            let Ok(placement) = segments.place(bytes, now) else { return false };
            for id in placement.remove {
                assert_eq!(self.0.keys().next(), Some(&id), "the oldest goes first");
                self.0.remove(&id);
                segments.removed(id);
            }
            if let Some(id) = placement.create {
                assert!(self.0.keys().all(|known| *known < id), "{id} is not the newest");
                self.0.insert(id, (0, 0));
                segments.created(id);
            }
            let file = self.0.get_mut(&segments.open().unwrap()).unwrap();
            *file = (file.0 + bytes, file.1 + 1);
            segments.appended(bytes);
            true
        }

        fn sums(&self) -> (u64, u64) {
            self.0.values().fold((0, 0), |sum, file| (sum.0 + file.0, sum.1 + file.1))
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn bounds_hold_and_the_newest_records_stay(
            max_bytes in 1_u64..200_000, max_samples in 0_u64..50,
            records in prop::collection::vec((1_u64..5_000, -5_i64..5), 0..200),
            restarts in prop::collection::btree_set(0_usize..200, 0..4),
        ) {
            let bounds = Bounds { max_bytes, max_samples };
            let mut segments = Segments::new(bounds, Vec::new());
            let mut disk = Disk::default();
            let mut now = 1_000_u64;
            for (index, (bytes, passed)) in records.into_iter().enumerate() {
                if restarts.contains(&index) {
                    let kept = segments.iter().copied().collect();
                    segments = Segments::new(bounds, kept);
                }
                // The clock may jump back.
                now = now.saturating_add_signed(passed);
                let before = disk.sums();
                let is_taken = disk.put(&mut segments, bytes, now);
                prop_assert_eq!(is_taken, bytes <= max_bytes);
                let after = disk.sums();
                prop_assert!(after.0 <= max_bytes && (max_samples == 0 || after.1 <= max_samples));
                prop_assert_eq!(after.0, segments.bytes());
                if before.0 + bytes <= max_bytes && (max_samples == 0 || before.1 < max_samples) {
                    prop_assert_eq!(after.1, before.1 + u64::from(is_taken), "nothing had to go");
                }
            }
        }

        #[test]
        fn cut_file_is_repaired_to_its_complete_records(
            records in prop::collection::vec("[a-z{}]{0,12}", 0..6), cut in 0_usize..80,
        ) {
            let whole: String = records.iter().flat_map(|it| [it.as_str(), "\n"]).collect();
            let cut = cut.min(whole.len());
            let kept = complete(&whole.as_bytes()[..cut]).unwrap_or(0);
            prop_assert!(kept <= cut);
            let read: Vec<&str> = whole[..kept].lines().collect();
            prop_assert_eq!(&read[..], &records[..read.len()]);
            // The next record, if there is one, does not end before the cut.
            let next: usize = records[..read.len().saturating_add(1).min(records.len())]
                .iter().map(|record| record.len() + 1).sum();
            prop_assert!(read.len() == records.len() || next > cut);
        }
    }

    #[test]
    fn segment_of_a_large_bound_has_16_mebibytes() {
        let bounds = Bounds { max_bytes: 1 << 30, max_samples: 0 };
        let mut segments = Segments::new(bounds, Vec::new());
        let mut disk = Disk::default();
        for _ in 0..3_000 {
            assert!(disk.put(&mut segments, 1 << 20, 5));
        }
        assert_eq!(disk.0.len(), 64);
        assert!(disk.0.values().all(|(bytes, _)| *bytes <= SEGMENT_BYTES));
        assert_eq!(segments.place(SEGMENT_BYTES + 1, 5), Err(TooLarge));
    }

    #[test]
    fn names_are_ordered_and_foreign_files_are_none() {
        assert_eq!(file_name(1_795_400_000_000), "samples-0001795400000000.jsonl");
        assert_eq!(id_of(&file_name(7)), Some(7));
        assert!(file_name(9) < file_name(10));
        for name in ["samples-7.jsonl", "hard.jsonl", "samples-0000000000000007.json", "samples-"] {
            assert_eq!(id_of(name), None, "{name}");
        }
    }
}
