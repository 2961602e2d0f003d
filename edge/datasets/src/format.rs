//! The formats that can be counted, by the names that a resource uses for them.

pub(crate) mod csv;
pub(crate) mod json;
pub(crate) mod lines;
pub(crate) mod tfrecord;
pub(crate) mod voc;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// How a dataset lies on disk. What one sample is in each: see the module of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    Csv,
    Txt,
    Xml,
    Json,
    Jsonl,
    Images,
    TfRecord,
}

impl Format {
    pub const ALL: [Self; 7] =
        [Self::Csv, Self::Txt, Self::Xml, Self::Json, Self::Jsonl, Self::Images, Self::TfRecord];

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

    /// Whether the dataset is a directory of files, and not one file.
    pub const fn is_directory(self) -> bool {
        matches!(self, Self::Xml | Self::Images)
    }

    /// The known names, for messages.
    pub fn known() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Format {
    type Err = Error;

    /// Upper and lower case are the same.
    fn from_str(given: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|format| format.as_str().eq_ignore_ascii_case(given))
            .ok_or_else(|| Error::UnknownFormat { given: given.chars().take(64).collect() })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_format_is_read_back_from_its_name_in_any_case() {
        for format in Format::ALL {
            assert_eq!(format.to_string().parse::<Format>().unwrap(), format);
            assert_eq!(format.to_string().to_uppercase().parse::<Format>().unwrap(), format);
        }
    }

    #[test]
    fn an_unknown_format_is_told_with_the_known_ones() {
        let error = "parquet".parse::<Format>().unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown format \"parquet\"; known formats: csv, txt, xml, json, jsonl, images, tfrecord"
        );
    }
}
