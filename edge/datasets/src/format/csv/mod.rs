//! Counts the records of a csv. Pure. `grammar` defines what a record is, `block` counts fast.
//!
//! If there is a header, it is the first record and its names are kept. A byte order mark at the
//! start is skipped.

mod block;
mod fields;
mod grammar;

use neptune_sources::FormatOptions;
use serde::{Deserialize, Serialize};

use self::{
    fields::{CsvHeader, LabelColumn},
    grammar::{ByteKind, CsvPosition},
};
use crate::{
    counts::{LabelCounts, SampleCounts},
    error::DatasetError,
};

const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Csv {
    delimiter: u8,
    #[serde(rename = "at")]
    position: CsvPosition,
    /// Number of complete records, including the header.
    ended: u64,
    /// Number of bytes of a byte order mark read so far. `None` once it is known whether the data
    /// starts with one.
    mark: Option<usize>,
    header: Option<CsvHeader>,
    labels: Option<LabelColumn>,
}

impl Csv {
    pub(crate) fn new(options: &FormatOptions) -> Result<Self, DatasetError> {
        Ok(Self {
            delimiter: options.delimiter_byte()?,
            position: CsvPosition::default(),
            ended: 0,
            mark: Some(0),
            header: options.header.then(CsvHeader::default),
            labels: options.label_column.clone().map(LabelColumn::new),
        })
    }

    pub(crate) fn feed(&mut self, chunk: &[u8]) -> Result<(), DatasetError> {
        let chunk = self.skip_mark(chunk)?;
        self.count(chunk)
    }

    pub(crate) fn counts(&self) -> SampleCounts {
        let open = u64::from(self.is_in_record());
        let header = u64::from(self.header.is_some());
        SampleCounts {
            samples: (self.ended + open).saturating_sub(header),
            columns: self
                .header
                .as_ref()
                .map(|header| header.names(self.ended == 0 && open == 1))
                .unwrap_or_default(),
            labels: self.labels.as_ref().map_or_else(LabelCounts::default, |labels| {
                labels.counts(open == 1 && self.ended >= header)
            }),
            unfinished: self.position == CsvPosition::Quoted,
            ..SampleCounts::default()
        }
    }

    /// Whether a record has started and not ended.
    fn is_in_record(&self) -> bool {
        self.position != CsvPosition::RecordStart || self.mark.is_some_and(|read| read > 0)
    }

    fn skip_mark<'a>(&mut self, mut chunk: &'a [u8]) -> Result<&'a [u8], DatasetError> {
        while let (Some(read), Some((first, rest))) = (self.mark, chunk.split_first()) {
            if *first != BYTE_ORDER_MARK[read] {
                self.mark = None;
                self.count(&BYTE_ORDER_MARK[..read])?;
                break;
            }
            chunk = rest;
            self.mark = (read + 1 < BYTE_ORDER_MARK.len()).then_some(read + 1);
        }
        Ok(chunk)
    }

    fn count(&mut self, mut chunk: &[u8]) -> Result<(), DatasetError> {
        while !chunk.is_empty() {
            if self.header.is_some() && self.ended == 0 {
                chunk = self.read_header(chunk)?;
            } else if self.labels.is_some() {
                self.count_labels(chunk);
                break;
            } else {
                let ended;
                (ended, self.position) = block::count(chunk, self.position, self.delimiter);
                self.ended += ended;
                break;
            }
        }
        Ok(())
    }

    /// Reads the column names. Returns the bytes after them.
    fn read_header<'a>(&mut self, chunk: &'a [u8]) -> Result<&'a [u8], DatasetError> {
        let header = self.header.as_mut().expect("only called if there is a header");
        for (n, byte) in chunk.iter().enumerate() {
            let kind;
            (self.position, kind) = self.position.step(*byte, self.delimiter);
            header.add_byte(*byte, kind);
            if kind == ByteKind::RecordEnd {
                self.ended = 1;
                if let Some(labels) = &mut self.labels {
                    labels.find(&header.names(false))?;
                }
                return Ok(&chunk[n + 1..]);
            }
        }
        Ok(&[])
    }

    fn count_labels(&mut self, chunk: &[u8]) {
        let labels = self.labels.as_mut().expect("only called if there is a label column");
        for byte in chunk {
            let kind;
            (self.position, kind) = self.position.step(*byte, self.delimiter);
            labels.add_byte(*byte, kind);
            self.ended += u64::from(kind == ByteKind::RecordEnd);
        }
    }
}

#[cfg(test)]
mod tests;
