//! The dataset formats, by the names that a Dataset resource uses for them.

use std::{fmt, path::Path, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::error::FormatError;

/// The format of a dataset. It defines what one sample is. A dataset is a file of the format, or a
/// directory with files of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DatasetFormat {
    /// Comma-separated values. A sample is a record, except the header.
    Csv,
    /// Text. A sample is a line, also an empty one.
    Txt,
    /// A directory of Pascal VOC annotations. A sample is an annotation file.
    Xml,
    /// JSON. A sample is an element of the top-level array, or of one member's array.
    Json,
    /// One JSON value per line. A sample is a line that is not blank.
    Jsonl,
    /// A directory of images. A sample is an image file.
    Images,
    /// `TFRecord`. A sample is a record.
    TfRecord,
}

impl DatasetFormat {
    /// All known formats, in the order in which messages list them.
    pub const ALL: [Self; 7] =
        [Self::Csv, Self::Txt, Self::Xml, Self::Json, Self::Jsonl, Self::Images, Self::TfRecord];

    /// Name of the format in a Dataset resource.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Txt => "txt",
            Self::Xml => "xml",
            Self::Json => "json",
            Self::Jsonl => "jsonl",
            Self::Images => "images",
            Self::TfRecord => "tfrecord",
        }
    }

    /// Whether a dataset of this format is always a directory, because a file is at most one sample.
    pub const fn needs_directory(self) -> bool {
        matches!(self, Self::Xml | Self::Images)
    }

    /// Whether a file of a directory has a name of this format: one of its extensions, in any letter
    /// case. `TFRecord` files also have the names of shards, such as `train.tfrecord-00000-of-00010`.
    #[must_use]
    pub fn has_file_name(self, path: &Path) -> bool {
        let extensions: &[&str] = match self {
            Self::Csv => &["csv", "tsv"],
            Self::Txt => &["txt"],
            Self::Xml => &["xml"],
            Self::Json => &["json"],
            Self::Jsonl => &["jsonl", "ndjson"],
            // Those that cameras and labelling tools write.
            Self::Images => &[
                "jpg", "jpeg", "png", "bmp", "gif", "tif", "tiff", "webp", "ppm", "pgm", "pbm",
                "heic", "avif",
            ],
            Self::TfRecord => &["tfrecord", "tfrecords", "tfrec"],
        };
        let extension = path.extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| {
            let extension = extension.to_ascii_lowercase();
            let is_shard = self == Self::TfRecord && extension.starts_with("tfrecord-");
            is_shard || extensions.contains(&extension.as_str())
        })
    }

    fn known() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }
}

impl fmt::Display for DatasetFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for DatasetFormat {
    type Err = FormatError;

    /// Parses the name of a format in upper or lower case.
    fn from_str(given: &str) -> Result<Self, FormatError> {
        Self::ALL.into_iter().find(|format| format.as_str().eq_ignore_ascii_case(given)).ok_or_else(
            || FormatError::UnknownFormat {
                given: given.chars().take(64).collect(),
                known: Self::known(),
            },
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn format_name_round_trips_in_any_letter_case() {
        for format in DatasetFormat::ALL {
            assert_eq!(format.to_string().parse::<DatasetFormat>().unwrap(), format);
            assert_eq!(format.to_string().to_uppercase().parse::<DatasetFormat>().unwrap(), format);
        }
    }

    #[test]
    fn files_of_a_format_are_recognized_by_their_extension() {
        for (format, name, expected) in [
            (DatasetFormat::Txt, "a.TXT", true),
            (DatasetFormat::Txt, "a.csv", false),
            (DatasetFormat::Csv, "README", false),
            (DatasetFormat::TfRecord, "train.tfrecord-00000-of-00010", true),
            (DatasetFormat::TfRecord, "train.tfrecord.index", false),
        ] {
            assert_eq!(format.has_file_name(Path::new(name)), expected, "{format} {name}");
        }
    }

    #[test]
    fn file_is_not_enough_for_annotations_and_images() {
        let of_directories: Vec<_> =
            DatasetFormat::ALL.into_iter().filter(|format| format.needs_directory()).collect();
        assert_eq!(of_directories, [DatasetFormat::Xml, DatasetFormat::Images]);
    }

    #[test]
    fn unknown_format_error_lists_the_known_formats() {
        let error = "parquet".parse::<DatasetFormat>().unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown format \"parquet\"; known formats: csv, txt, xml, json, jsonl, images, tfrecord"
        );
    }
}
