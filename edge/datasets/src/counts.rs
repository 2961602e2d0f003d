//! The result of a count, and the limit on the number of labels in it. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Maximum number of labels that are counted by name. The first labels in the data are kept.
/// Samples of all other labels are added up in [`LabelCounts::other`].
///
/// The limit keeps a status small, also when a column of free text is configured as label column.
pub const MAX_LABELS: usize = 256;
/// Maximum length of a label or a column name, in bytes. Longer names are truncated.
pub const MAX_NAME: usize = 128;

/// The result of counting one dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SampleCounts {
    /// Number of samples. What one sample is depends on the
    /// [`DatasetFormat`](neptune_sources::DatasetFormat).
    pub samples: u64,
    /// Total size of the counted files, in bytes.
    pub bytes: u64,
    /// Column names of a csv with a header, at most 1,024. Empty for other formats.
    pub columns: Vec<String>,
    /// xml: number of objects per class. csv with a label column: number of samples per value.
    pub labels: LabelCounts,
    /// Whether the data ends within a sample, because it is being written or is truncated.
    pub unfinished: bool,
    /// Number of files in a directory that could not be counted.
    pub skipped: u64,
    /// Path of one skipped file, with the reason.
    pub skipped_example: Option<String>,
}

/// Number of samples or objects per label, for at most [`MAX_LABELS`] labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LabelCounts {
    /// Number of samples or objects per label.
    pub by_name: BTreeMap<String, u64>,
    /// Sum over all labels beyond [`MAX_LABELS`].
    pub other: u64,
}

impl LabelCounts {
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

/// Converts `bytes` to a name: replaces invalid UTF-8 and trims white space.
pub(crate) fn name_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_beyond_the_limit_are_summed_as_other() {
        let mut labels = LabelCounts::default();
        for n in 0..MAX_LABELS + 10 {
            labels.add(&format!("label-{n:04}"), 2);
        }
        labels.add("label-0000", 1);
        assert_eq!((labels.by_name.len(), labels.other), (MAX_LABELS, 20));
        assert_eq!(labels.by_name["label-0000"], 3);
    }
}
