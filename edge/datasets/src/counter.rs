//! Counting the samples of data that comes in chunks, in any format of one file. Pure: it sees bytes, not files.
//!
//! Where a chunk ends makes no difference, so a counter that is kept goes on with data that was appended later.

use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    format::{
        Format,
        csv::Csv,
        json::Json,
        lines::{Jsonl, Txt},
        tfrecord::TfRecord,
    },
    options::Options,
    tally::Tally,
};

/// The state of counting: what was found, and where in the format the next byte stands. A few hundred bytes,
/// and with a label column or a header as much as these hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    bytes: u64,
    state: State,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Csv(Csv),
    Txt(Txt),
    Jsonl(Jsonl),
    Json(Json),
    TfRecord(TfRecord),
}

impl Counter {
    /// # Errors
    /// `BadOption`, also for a format that is a directory and no sequence of bytes.
    pub fn new(format: Format, options: &Options) -> Result<Self, Error> {
        options.check(format)?;
        let state = match format {
            Format::Csv => State::Csv(Csv::new(options)?),
            Format::Txt => State::Txt(Txt::default()),
            Format::Jsonl => State::Jsonl(Jsonl::default()),
            Format::Json => State::Json(Json::new(options.member.clone())),
            Format::TfRecord => State::TfRecord(TfRecord::default()),
            Format::Xml | Format::Images => {
                let reason = format!("{format} is a directory of files");
                return Err(Error::BadOption { option: "format", reason });
            }
        };
        Ok(Self { bytes: 0, state })
    }

    /// Counts on with the bytes that follow those of earlier calls.
    ///
    /// # Errors
    /// The data is not of the format. What the counter says afterwards means nothing.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<(), Error> {
        self.bytes += chunk.len() as u64;
        match &mut self.state {
            State::Csv(csv) => csv.feed(chunk)?,
            State::Txt(txt) => txt.feed(chunk),
            State::Jsonl(jsonl) => jsonl.feed(chunk),
            State::Json(json) => json.feed(chunk)?,
            State::TfRecord(records) => records.feed(chunk)?,
        }
        Ok(())
    }

    /// Bytes fed so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the data holds if nothing follows.
    pub fn tally(&self) -> Tally {
        let bytes = self.bytes;
        match &self.state {
            State::Csv(csv) => Tally { bytes, ..csv.tally() },
            State::Txt(txt) => Tally { samples: txt.samples(), bytes, ..Tally::default() },
            State::Jsonl(jsonl) => Tally { samples: jsonl.samples(), bytes, ..Tally::default() },
            State::Json(json) => Tally {
                samples: json.samples(),
                bytes,
                unfinished: json.unfinished(),
                ..Tally::default()
            },
            State::TfRecord(records) => Tally {
                samples: records.samples(),
                bytes,
                unfinished: records.unfinished(),
                ..Tally::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_counter_that_was_stored_goes_on_where_it_was() {
        for format in Format::ALL.into_iter().filter(|format| !format.is_directory()) {
            let (head, tail) = match format {
                Format::Json => ("[1,\"a", "b\",3]"),
                Format::TfRecord => ("\0\0\0", "\0"),
                _ => ("a,\"b", "c\"\nd,e"),
            };
            let mut counter = Counter::new(format, &Options::default()).unwrap();
            counter.feed(head.as_bytes()).unwrap();
            let mut stored: Counter =
                serde_json::from_str(&serde_json::to_string(&counter).unwrap()).unwrap();
            assert_eq!(stored, counter);
            counter.feed(tail.as_bytes()).unwrap();
            stored.feed(tail.as_bytes()).unwrap();
            assert_eq!(
                (stored.tally(), stored.bytes()),
                (counter.tally(), (head.len() + tail.len()) as u64)
            );
        }
    }

    #[test]
    fn a_directory_format_has_no_counter_of_bytes() {
        assert!(matches!(
            Counter::new(Format::Images, &Options::default()),
            Err(Error::BadOption { .. })
        ));
    }
}
