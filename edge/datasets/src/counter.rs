//! Counts the samples in a stream of bytes, for every format that is a stream. Pure.

use neptune_sources::{DatasetFormat, FormatError, FormatOptions};
use serde::{Deserialize, Serialize};

use crate::{
    counts::SampleCounts,
    error::DatasetError,
    format::{
        csv::Csv,
        json::Json,
        lines::{Jsonl, Txt},
        tfrecord::TfRecord,
    },
};

/// Counts the samples in a stream of bytes that arrives in chunks.
///
/// The result does not depend on the chunk boundaries. A counter can be stored and resumed when the
/// data has grown. It takes a few hundred bytes, plus the labels and column names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleCounter {
    bytes: u64,
    #[serde(rename = "state")]
    parser: Parser,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Parser {
    Csv(Csv),
    Txt(Txt),
    Jsonl(Jsonl),
    Json(Json),
    TfRecord(TfRecord),
}

impl SampleCounter {
    /// Creates a counter for the start of the data.
    ///
    /// # Errors
    /// [`DatasetError::Format`] if `options` do not fit the format, or if the format is a
    /// directory of files.
    pub fn new(format: DatasetFormat, options: &FormatOptions) -> Result<Self, DatasetError> {
        options.check(format)?;
        let parser = match format {
            DatasetFormat::Csv => Parser::Csv(Csv::new(options)?),
            DatasetFormat::Txt => Parser::Txt(Txt::default()),
            DatasetFormat::Jsonl => Parser::Jsonl(Jsonl::default()),
            DatasetFormat::Json => Parser::Json(Json::new(options.member.clone())),
            DatasetFormat::TfRecord => Parser::TfRecord(TfRecord::default()),
            DatasetFormat::Xml | DatasetFormat::Images => {
                let reason = format!("{format} is a directory of files");
                return Err(FormatError::InvalidOption { option: "format", reason }.into());
            }
        };
        Ok(Self { bytes: 0, parser })
    }

    /// Counts the bytes that follow those of earlier calls.
    ///
    /// # Errors
    /// [`DatasetError::CorruptRecord`], [`DatasetError::MalformedJson`],
    /// [`DatasetError::NoSuchMember`] or [`DatasetError::NoSuchColumn`] if the data does not have
    /// the format. The counter must not be used after an error.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<(), DatasetError> {
        self.bytes += chunk.len() as u64;
        match &mut self.parser {
            Parser::Csv(csv) => csv.feed(chunk)?,
            Parser::Txt(txt) => txt.feed(chunk),
            Parser::Jsonl(jsonl) => jsonl.feed(chunk),
            Parser::Json(json) => json.feed(chunk)?,
            Parser::TfRecord(records) => records.feed(chunk)?,
        }
        Ok(())
    }

    /// Number of bytes fed so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The counts if the data ends here.
    pub fn counts(&self) -> SampleCounts {
        let bytes = self.bytes;
        match &self.parser {
            Parser::Csv(csv) => SampleCounts { bytes, ..csv.counts() },
            Parser::Txt(txt) => {
                SampleCounts { samples: txt.samples(), bytes, ..SampleCounts::default() }
            }
            Parser::Jsonl(jsonl) => {
                SampleCounts { samples: jsonl.samples(), bytes, ..SampleCounts::default() }
            }
            Parser::Json(json) => SampleCounts {
                samples: json.samples(),
                bytes,
                unfinished: json.unfinished(),
                ..SampleCounts::default()
            },
            Parser::TfRecord(records) => SampleCounts {
                samples: records.samples(),
                bytes,
                unfinished: records.unfinished(),
                ..SampleCounts::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn stored_counter_resumes_where_it_stopped() {
        for format in DatasetFormat::ALL.into_iter().filter(|format| !format.needs_directory()) {
            let (head, tail) = match format {
                DatasetFormat::Json => ("[1,\"a", "b\",3]"),
                DatasetFormat::TfRecord => ("\0\0\0", "\0"),
                _ => ("a,\"b", "c\"\nd,e"),
            };
            let mut counter = SampleCounter::new(format, &FormatOptions::default()).unwrap();
            counter.feed(head.as_bytes()).unwrap();
            let mut stored: SampleCounter =
                serde_json::from_str(&serde_json::to_string(&counter).unwrap()).unwrap();
            assert_eq!(stored, counter);
            counter.feed(tail.as_bytes()).unwrap();
            stored.feed(tail.as_bytes()).unwrap();
            assert_eq!(
                (stored.counts(), stored.bytes()),
                (counter.counts(), (head.len() + tail.len()) as u64)
            );
        }
    }

    #[test]
    fn directory_format_has_no_byte_counter() {
        assert!(matches!(
            SampleCounter::new(DatasetFormat::Images, &FormatOptions::default()),
            Err(DatasetError::Format(FormatError::InvalidOption { .. }))
        ));
    }
}
