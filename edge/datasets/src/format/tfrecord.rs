//! Counting the records of a `TFRecord` file, and checking every byte of it against its checksums. Pure.
//!
//! A record is: length (u64, little endian), masked CRC-32C of the length (u32), the data, masked CRC-32C of the data.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Length and its checksum.
const HEADER: usize = 12;
const FOOTER: usize = 4;
/// From the format: a CRC of data that holds CRCs is weak, so the stored ones are masked.
const MASK_DELTA: u32 = 0xa282_ead8;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TfRecord {
    records: u64,
    /// Where the record that is being read begins, in bytes.
    offset: u64,
    part: Part,
    /// What is there of a header or footer that is not complete.
    partial: Vec<u8>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Part {
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
    pub(crate) fn feed(&mut self, mut chunk: &[u8]) -> Result<(), Error> {
        while !chunk.is_empty() {
            match self.part {
                Part::Header => {
                    if let Some(header) = self.gather::<HEADER>(&mut chunk) {
                        self.part = self.begin(header)?;
                    }
                }
                Part::Data { length, left, crc } => {
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
                    let (data, rest) = chunk.split_at(here);
                    let (left, crc) = (left - here as u64, crc32c::crc32c_append(crc, data));
                    chunk = rest;
                    self.part = if left == 0 {
                        Part::Footer { length, crc }
                    } else {
                        Part::Data { length, left, crc }
                    };
                }
                Part::Footer { length, crc } => {
                    if let Some(footer) = self.gather::<FOOTER>(&mut chunk) {
                        if u32::from_le_bytes(footer) != masked(crc) {
                            return Err(self.corrupt("the checksum of the data is wrong"));
                        }
                        self.records += 1;
                        self.offset += (HEADER + FOOTER) as u64 + length;
                        self.part = Part::Header;
                    }
                }
            }
        }
        Ok(())
    }

    pub(crate) fn samples(&self) -> u64 {
        self.records
    }

    /// A record has begun and is not complete; it is not counted.
    pub(crate) fn unfinished(&self) -> bool {
        self.part != Part::Header || !self.partial.is_empty()
    }

    fn begin(&self, header: [u8; HEADER]) -> Result<Part, Error> {
        let (length, crc) = header.split_at(8);
        if crc != masked(crc32c::crc32c(length)).to_le_bytes() {
            return Err(self.corrupt("the checksum of the length is wrong"));
        }
        let length = u64::from_le_bytes(length.try_into().expect("split at eight"));
        // Offsets stay within u64; no file is that long.
        if length > u64::MAX / 2 {
            return Err(self.corrupt("the length is impossible"));
        }
        Ok(if length == 0 {
            Part::Footer { length, crc: 0 }
        } else {
            Part::Data { length, left: length, crc: 0 }
        })
    }

    /// Takes bytes from `chunk` until there are `N`; none while some are missing.
    fn gather<const N: usize>(&mut self, chunk: &mut &[u8]) -> Option<[u8; N]> {
        let here = (N - self.partial.len()).min(chunk.len());
        let (head, rest) = chunk.split_at(here);
        *chunk = rest;
        self.partial.extend_from_slice(head);
        let whole = <[u8; N]>::try_from(self.partial.as_slice()).ok()?;
        self.partial.clear();
        Some(whole)
    }

    fn corrupt(&self, reason: &'static str) -> Error {
        Error::CorruptRecord { offset: self.offset, reason }
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
    fn a_record_is_counted_and_the_checksum_is_the_published_one() {
        let bytes = record(b"abc");
        assert_eq!((bytes.len(), &bytes[..8]), (19, &[3, 0, 0, 0, 0, 0, 0, 0][..]));
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        let mut count = TfRecord::default();
        count.feed(&bytes).unwrap();
        assert_eq!((count.samples(), count.unfinished()), (1, false));
    }

    #[test]
    fn every_split_gives_the_same_and_a_cut_record_is_not_counted() {
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
    fn every_flipped_byte_is_found_and_told_with_the_offset_of_its_record() {
        let bytes = [record(b"first"), record(b"second")].concat();
        let second = record(b"first").len();
        for at in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 0x40;
            let error = TfRecord::default().feed(&broken).unwrap_err();
            let expected = if at < second { 0 } else { second as u64 };
            assert!(
                matches!(error, Error::CorruptRecord { offset, .. } if offset == expected),
                "{at}: {error}"
            );
        }
    }
}
