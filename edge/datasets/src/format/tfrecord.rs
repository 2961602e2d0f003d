//! Counts the records of a `TFRecord` file, and verifies all checksums. Pure.
//!
//! A record is: length (u64, little endian), masked CRC-32C of the length (u32), the data, masked
//! CRC-32C of the data.

use serde::{Deserialize, Serialize};

use crate::error::DatasetError;

/// Size of the length and its checksum, in bytes.
const HEADER: usize = 12;
/// Size of the checksum of the data, in bytes.
const FOOTER: usize = 4;
/// Constant of the format: stored checksums are masked, because the checksum of data that contains
/// checksums is weak.
const MASK_DELTA: u32 = 0xa282_ead8;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TfRecord {
    records: u64,
    /// Start of the current record, in bytes.
    offset: u64,
    part: RecordPart,
    /// The bytes of an incomplete header or footer.
    partial: Vec<u8>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
enum RecordPart {
    #[default]
    Header,
    Data {
        length: u64,
        left: u64,
        crc: u32,
    },
    Footer {
        length: u64,
        crc: u32,
    },
}

impl TfRecord {
    pub(crate) fn feed(&mut self, mut chunk: &[u8]) -> Result<(), DatasetError> {
        while !chunk.is_empty() {
            match self.part {
                RecordPart::Header => {
                    if let Some(header) = self.gather::<HEADER>(&mut chunk) {
                        self.part = self.parse_header(header)?;
                    }
                }
                RecordPart::Data { length, left, crc } => {
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
                    let (data, rest) = chunk.split_at(here);
                    let (left, crc) = (left - here as u64, crc32c::crc32c_append(crc, data));
                    chunk = rest;
                    self.part = if left == 0 {
                        RecordPart::Footer { length, crc }
                    } else {
                        RecordPart::Data { length, left, crc }
                    };
                }
                RecordPart::Footer { length, crc } => {
                    if let Some(footer) = self.gather::<FOOTER>(&mut chunk) {
                        if u32::from_le_bytes(footer) != masked(crc) {
                            return Err(self.corrupt("checksum of the data does not match"));
                        }
                        self.records += 1;
                        self.offset += (HEADER + FOOTER) as u64 + length;
                        self.part = RecordPart::Header;
                    }
                }
            }
        }
        Ok(())
    }

    pub(crate) fn samples(&self) -> u64 {
        self.records
    }

    /// Whether the data ends within a record. That record is not counted.
    pub(crate) fn unfinished(&self) -> bool {
        self.part != RecordPart::Header || !self.partial.is_empty()
    }

    fn parse_header(&self, header: [u8; HEADER]) -> Result<RecordPart, DatasetError> {
        let (length, crc) = header.split_at(8);
        if crc != masked(crc32c::crc32c(length)).to_le_bytes() {
            return Err(self.corrupt("checksum of the length does not match"));
        }
        let length = u64::from_le_bytes(length.try_into().expect("split at eight"));
        // The limit keeps offsets within u64. No file is that large.
        if length > u64::MAX / 2 {
            return Err(self.corrupt("length is too large"));
        }
        Ok(if length == 0 {
            RecordPart::Footer { length, crc: 0 }
        } else {
            RecordPart::Data { length, left: length, crc: 0 }
        })
    }

    /// Takes bytes from `chunk` until there are `N`. `None` while some are missing.
    fn gather<const N: usize>(&mut self, chunk: &mut &[u8]) -> Option<[u8; N]> {
        let here = (N - self.partial.len()).min(chunk.len());
        let (head, rest) = chunk.split_at(here);
        *chunk = rest;
        self.partial.extend_from_slice(head);
        let whole = <[u8; N]>::try_from(self.partial.as_slice()).ok()?;
        self.partial.clear();
        Some(whole)
    }

    fn corrupt(&self, reason: &'static str) -> DatasetError {
        DatasetError::CorruptRecord { offset: self.offset, reason }
    }
}

fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(MASK_DELTA)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn record(data: &[u8]) -> Vec<u8> {
        let length = (data.len() as u64).to_le_bytes();
        let mut bytes = length.to_vec();
        bytes.extend(masked(crc32c::crc32c(&length)).to_le_bytes());
        bytes.extend(data);
        bytes.extend(masked(crc32c::crc32c(data)).to_le_bytes());
        bytes
    }

    #[test]
    fn record_with_the_published_checksum_is_counted() {
        let bytes = record(b"abc");
        assert_eq!((bytes.len(), &bytes[..8]), (19, &[3, 0, 0, 0, 0, 0, 0, 0][..]));
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        let mut count = TfRecord::default();
        count.feed(&bytes).unwrap();
        assert_eq!((count.samples(), count.unfinished()), (1, false));
    }

    #[test]
    fn count_does_not_depend_on_chunks_and_omits_a_partial_record() {
        let bytes = [record(b""), record(&[7; 100]), record(b"xyz")].concat();
        for cut in 0..=bytes.len() {
            let mut count = TfRecord::default();
            count.feed(&bytes[..cut]).unwrap();
            let (before, unfinished) = (count.samples(), count.unfinished());
            count.feed(&bytes[cut..]).unwrap();
            assert_eq!((count.samples(), count.unfinished()), (3, false), "cut at {cut}");
            let ends = [0, 16, 132, 151];
            assert_eq!(unfinished, !ends.contains(&cut), "cut at {cut}");
            assert_eq!(
                before,
                ends[1..].iter().filter(|end| **end <= cut).count() as u64,
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn flipped_byte_is_reported_with_the_offset_of_its_record() {
        let bytes = [record(b"first"), record(b"second")].concat();
        let second = record(b"first").len();
        for at in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 0x40;
            let error = TfRecord::default().feed(&broken).unwrap_err();
            let expected = if at < second { 0 } else { second as u64 };
            assert!(
                matches!(error, DatasetError::CorruptRecord { offset, .. } if offset == expected),
                "{at}: {error}"
            );
        }
    }
}
