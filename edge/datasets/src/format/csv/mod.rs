//! Counting the records of a csv: what a record is says `machine`, `block` makes it fast. Pure.
//!
//! The first record is the header if there is one; its names are kept. A byte order mark at the beginning is skipped.

mod block;
mod fields;
mod machine;

use serde::{Deserialize, Serialize};

use self::{
    fields::{Header, LabelColumn},
    machine::{At, Step},
};
use crate::{
    error::Error,
    options::Options,
    tally::{Labels, Tally},
};

const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Csv {
    delimiter: u8,
    at: At,
    /// Records that have ended, the header among them.
    ended: u64,
    /// Bytes of a byte order mark that were seen; none once it is decided whether there is one.
    mark: Option<usize>,
    header: Option<Header>,
    labels: Option<LabelColumn>,
}

impl Csv {
    pub(crate) fn new(options: &Options) -> Result<Self, Error> {
        Ok(Self {
            delimiter: options.delimiter_byte()?,
            at: At::default(),
            ended: 0,
            mark: Some(0),
            header: options.header.then(Header::default),
            labels: options.label_column.clone().map(LabelColumn::new),
        })
    }

    pub(crate) fn feed(&mut self, chunk: &[u8]) -> Result<(), Error> {
        let chunk = self.skip_mark(chunk)?;
        self.count(chunk)
    }

    pub(crate) fn tally(&self) -> Tally {
        let open = u64::from(self.open());
        let header = u64::from(self.header.is_some());
        Tally {
            samples: (self.ended + open).saturating_sub(header),
            columns: self
                .header
                .as_ref()
                .map(|header| header.names(self.ended == 0 && open == 1))
                .unwrap_or_default(),
            labels: self.labels.as_ref().map_or_else(Labels::default, |labels| {
                labels.tally(open == 1 && self.ended >= header)
            }),
            unfinished: self.at == At::Quoted,
            ..Tally::default()
        }
    }

    /// A record has begun and not ended.
    fn open(&self) -> bool {
        self.at != At::RecordStart || self.mark.is_some_and(|seen| seen > 0)
    }

    fn skip_mark<'a>(&mut self, mut chunk: &'a [u8]) -> Result<&'a [u8], Error> {
        while let (Some(seen), Some((first, rest))) = (self.mark, chunk.split_first()) {
            if *first != BYTE_ORDER_MARK[seen] {
                self.mark = None;
                self.count(&BYTE_ORDER_MARK[..seen])?;
                break;
            }
            chunk = rest;
            self.mark = (seen + 1 < BYTE_ORDER_MARK.len()).then_some(seen + 1);
        }
        Ok(chunk)
    }

    fn count(&mut self, mut chunk: &[u8]) -> Result<(), Error> {
        while !chunk.is_empty() {
            if self.header.is_some() && self.ended == 0 {
                chunk = self.read_header(chunk)?;
            } else if self.labels.is_some() {
                self.count_labels(chunk);
                break;
            } else {
                let ended;
                (ended, self.at) = block::count(chunk, self.at, self.delimiter);
                self.ended += ended;
                break;
            }
        }
        Ok(())
    }

    /// The names of the columns; returns what comes after them.
    fn read_header<'a>(&mut self, chunk: &'a [u8]) -> Result<&'a [u8], Error> {
        let header = self.header.as_mut().expect("only called where there is a header");
        for (n, byte) in chunk.iter().enumerate() {
            let step;
            (self.at, step) = self.at.step(*byte, self.delimiter);
            header.take(*byte, step);
            if step == Step::RecordEnd {
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
        let labels = self.labels.as_mut().expect("only called where there is a label column");
        for byte in chunk {
            let step;
            (self.at, step) = self.at.step(*byte, self.delimiter);
            labels.take(*byte, step);
            self.ended += u64::from(step == Step::RecordEnd);
        }
    }
}

#[cfg(test)]
mod tests;
