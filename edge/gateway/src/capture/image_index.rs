//! Which segments refer to which files of binary values. Pure.
//!
//! A file counts to the size of the newest segment that refers to it: it goes when that one does.

use std::collections::HashMap;

/// The files, by name.
#[derive(Debug, Default)]
pub struct ImageIndex(HashMap<String, Image>);

#[derive(Debug)]
struct Image {
    bytes: u64,
    /// The segments that refer to it, the newest last.
    segments: Vec<u64>,
}

/// What follows from a change: bytes that count to another segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Number of bytes that count to another segment.
    pub bytes: u64,
    /// The segment to which they counted; `None` for a new file.
    pub from: Option<u64>,
    /// The segment to which they count from now on.
    pub to: u64,
}

impl ImageIndex {
    /// Whether a segment refers to the file.
    pub fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// A record of the segment, which is the newest one, refers to the file.
    pub fn refer(&mut self, name: &str, bytes: u64, segment: u64) -> Moved {
        let image = self.0.entry(name.to_owned());
        let image = image.or_insert(Image { bytes, segments: Vec::new() });
        let from = image.segments.last().copied();
        if from != Some(segment) {
            image.segments.push(segment);
        }
        Moved { bytes: image.bytes, from, to: segment }
    }

    /// A segment is gone. Returns the files that nothing refers to any more, and those that count to
    /// an older segment now.
    pub fn remove_segment(&mut self, segment: u64) -> (Vec<String>, Vec<Moved>) {
        let (mut gone, mut moved) = (Vec::new(), Vec::new());
        self.0.retain(|name, image| {
            let counted = image.segments.last().copied();
            image.segments.retain(|other| *other != segment);
            let Some(to) = image.segments.last().copied() else {
                gone.push(name.clone());
                return false;
            };
            if counted != Some(to) {
                moved.push(Moved { bytes: image.bytes, from: None, to });
            }
            true
        });
        (gone, moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_counts_to_the_newest_segment_and_goes_with_the_last() {
        let mut index = ImageIndex::default();
        let moved = |from, to| Moved { bytes: 5, from, to };
        assert_eq!(index.refer("a", 5, 1), moved(None, 1));
        assert_eq!(index.refer("a", 5, 1), moved(Some(1), 1));
        assert_eq!(index.refer("a", 5, 2), moved(Some(1), 2));
        index.refer("b", 5, 2);
        // Somebody removes the newest one.
        assert_eq!(index.remove_segment(2), (vec!["b".to_owned()], vec![moved(None, 1)]));
        assert_eq!(index.remove_segment(1), (vec!["a".to_owned()], Vec::new()));
        assert!(!index.contains("a"));
        index.refer("a", 5, 3);
        index.refer("a", 5, 4);
        assert_eq!(index.remove_segment(3), (Vec::new(), Vec::new()));
        assert!(index.contains("a"));
    }
}
