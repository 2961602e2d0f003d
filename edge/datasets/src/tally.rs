//! The result of counting, and the bound on how many labels it may carry.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// So many different labels are counted by name, the first seen; samples of all others are added up as `other`.
/// A status stays small with it, and a column of free text taken for labels does no harm.
pub const MAX_LABELS: usize = 256;
/// Longer labels and names of columns are cut after so many bytes.
pub const MAX_NAME: usize = 128;

/// What is known of a dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tally {
    pub samples: u64,
    /// Bytes of the files that were counted.
    pub bytes: u64,
    /// csv with a header: the names of the columns, at most 1,024.
    pub columns: Vec<String>,
    /// xml: objects by class. csv with a label column: samples by its value.
    pub labels: Labels,
    /// The data ends within a sample: it is being written, or was cut.
    pub unfinished: bool,
    /// Files of a directory that could not be counted.
    pub skipped: u64,
    /// One of them, with the reason.
    pub skipped_example: Option<String>,
}

/// Counts by label, of at most [`MAX_LABELS`] labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Labels {
    pub by_name: BTreeMap<String, u64>,
    pub other: u64,
}

impl Labels {
    pub(crate) fn add(&mut self, label: &str, count: u64) {
        if let Some(known) = self.by_name.get_mut(label) {
            *known += count;
        } else if self.by_name.len() < MAX_LABELS {
            self.by_name.insert(label.to_owned(), count);
        } else {
            self.other += count;
        }
    }
}

/// `bytes` as a name: invalid UTF-8 replaced, white space around it removed.
pub(crate) fn name_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_beyond_the_bound_are_added_up_as_other_and_known_ones_go_on() {
        let mut labels = Labels::default();
        for n in 0..MAX_LABELS + 10 {
            labels.add(&format!("label-{n:04}"), 2);
        }
        labels.add("label-0000", 1);
        assert_eq!((labels.by_name.len(), labels.other), (MAX_LABELS, 20));
        assert_eq!(labels.by_name["label-0000"], 3);
    }
}
