//! Counts the records of a csv 64 bytes at a time. Pure. This makes counting as fast as reading.
//!
//! A bit mask per block marks the quotes. The running exclusive-or of its bits marks the bytes
//! within quotes. The line ends outside quotes are the ends of records. This holds as long as every
//! quote opens or closes a field. A block with a quote that is content is counted by `grammar`,
//! byte by byte.

use fearless_simd::{Level, dispatch, prelude::*, u8x64};

use super::grammar::{ByteKind, CsvPosition};

const BLOCK: usize = 64;

/// The number of records that end in `bytes`, and the position after the last byte.
pub(crate) fn count(bytes: &[u8], at: CsvPosition, delimiter: u8) -> (u64, CsvPosition) {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    // `Level::new` detects the instruction set of the processor once per process.
    let (records, at) = dispatch!(Level::new(), simd => count_blocks(simd, blocks, at, delimiter));
    let (ends, at) = count_bytewise(rest, at, delimiter);
    (records + ends, at)
}

fn count_bytewise(bytes: &[u8], mut at: CsvPosition, delimiter: u8) -> (u64, CsvPosition) {
    let mut records = 0;
    for byte in bytes {
        let kind;
        (at, kind) = at.step(*byte, delimiter);
        records += u64::from(kind == ByteKind::RecordEnd);
    }
    (records, at)
}

#[expect(
    clippy::inline_always,
    reason = "otherwise it is not compiled for the detected instruction set"
)]
#[inline(always)]
fn count_blocks<S: Simd>(
    simd: S,
    blocks: &[[u8; BLOCK]],
    at: CsvPosition,
    delimiter: u8,
) -> (u64, CsvPosition) {
    let mut records = 0;
    let mut start = BlockStart::from_position(at);
    for block in blocks {
        if let Some((ends, next)) = count_block(simd, block, start, delimiter) {
            records += ends;
            start = next;
        } else {
            let (ends, at) = count_bytewise(block, start.at(), delimiter);
            records += ends;
            start = BlockStart::from_position(at);
        }
    }
    (records, start.at())
}

/// The position in the grammar at the start of a block, as bit masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BlockStart {
    /// All bits are set if the block starts within quotes.
    within: u64,
    /// The lowest bit is set if the byte before the block ended a record. A quote may then open a
    /// field.
    after_break: u64,
    /// The lowest bit is set if the byte before the block ended a field.
    after_delimiter: u64,
    /// The lowest bit is set if the byte before the block was a quote within quotes.
    after_quote: u64,
}

impl BlockStart {
    fn from_position(at: CsvPosition) -> Self {
        Self {
            within: if at == CsvPosition::Quoted { u64::MAX } else { 0 },
            after_break: u64::from(at == CsvPosition::RecordStart),
            after_delimiter: u64::from(at == CsvPosition::FieldStart),
            after_quote: u64::from(at == CsvPosition::QuoteInQuoted),
        }
    }

    fn at(self) -> CsvPosition {
        match self {
            Self { within: 1.., .. } => CsvPosition::Quoted,
            Self { after_break: 1.., .. } => CsvPosition::RecordStart,
            Self { after_delimiter: 1.., .. } => CsvPosition::FieldStart,
            Self { after_quote: 1.., .. } => CsvPosition::QuoteInQuoted,
            _ => CsvPosition::Unquoted,
        }
    }
}

/// The number of records that end in `block`, and the start of the next block. `None` if a quote of
/// the block is content.
#[expect(
    clippy::inline_always,
    reason = "otherwise it is not compiled for the detected instruction set"
)]
#[inline(always)]
fn count_block<S: Simd>(
    simd: S,
    block: &[u8; BLOCK],
    start: BlockStart,
    delimiter: u8,
) -> Option<(u64, BlockStart)> {
    let bytes = u8x64::from_slice(simd, block);
    let quotes = bytes.simd_eq(b'"').to_bitmask();
    // The vectors are combined before the conversion to bits, because the conversion is expensive.
    let breaks = bytes.simd_eq(b'\n') | bytes.simd_eq(b'\r');
    let separators = breaks | bytes.simd_eq(delimiter);
    let breaks = breaks.to_bitmask();
    if quotes | start.within == 0 {
        let records = breaks & !(breaks << 1 | start.after_break);
        let next = BlockStart {
            within: 0,
            after_break: breaks >> (BLOCK - 1),
            after_delimiter: u64::from(block[BLOCK - 1] == delimiter),
            after_quote: 0,
        };
        return Some((u64::from(records.count_ones()), next));
    }
    // Set from an opening quote up to the byte before the closing quote.
    let within = running_xor(quotes) ^ start.within;
    let (breaks, closing) = (breaks & !within, quotes & !within);
    let separators = separators.to_bitmask() & !within;
    let may_open =
        (separators | closing) << 1 | start.after_break | start.after_delimiter | start.after_quote;
    if quotes & within & !may_open != 0 {
        return None;
    }
    let records = breaks & !(breaks << 1 | start.after_break);
    let next = BlockStart {
        within: 0_u64.wrapping_sub(within >> (BLOCK - 1)),
        after_break: breaks >> (BLOCK - 1),
        after_delimiter: (separators & !breaks) >> (BLOCK - 1),
        after_quote: closing >> (BLOCK - 1),
    };
    Some((u64::from(records.count_ones()), next))
}

/// Bit n of the result is the exclusive-or of the bits 0 to n.
#[inline]
fn running_xor(mut bits: u64) -> u64 {
    for shift in [1, 2, 4, 8, 16, 32] {
        bits ^= bits << shift;
    }
    bits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The alphabet is small, so that all combinations occur.
        #[test]
        fn block_count_equals_bytewise_count_for_any_bytes(
            bytes in proptest::collection::vec(prop::sample::select(&b"a,\"\n\r;"[..]), 0..400),
            start in prop::sample::select(
                &[CsvPosition::RecordStart, CsvPosition::FieldStart, CsvPosition::Unquoted, CsvPosition::Quoted, CsvPosition::QuoteInQuoted][..]),
        ) {
            prop_assert_eq!(count(&bytes, start, b','), count_bytewise(&bytes, start, b','));
        }

        /// The input is well-formed, so that the bit masks are used.
        #[test]
        fn block_count_equals_bytewise_count_for_quoted_fields(
            fields in proptest::collection::vec(("[a,\n\r]{0,40}", 0..3u8), 0..40),
        ) {
            let mut bytes = Vec::new();
            for (text, end) in fields {
                bytes.extend(format!("\"{}\"", text.replace('a', "\"\"")).bytes());
                bytes.extend([&b","[..], b"\n", b"\r\n"][usize::from(end)]);
            }
            prop_assert_eq!(count(&bytes, CsvPosition::RecordStart, b','), count_bytewise(&bytes, CsvPosition::RecordStart, b','));
        }
    }

    #[test]
    fn block_with_a_literal_quote_is_not_counted_by_bits() {
        let mut block = [b'a'; BLOCK];
        (block[10], block[20]) = (b'"', b'\n');
        let counted = |block| dispatch!(Level::new(), simd => count_block(simd, &block, BlockStart::from_position(CsvPosition::RecordStart), b','));
        assert_eq!(counted(block), None);
        block[9] = b',';
        assert_eq!(counted(block), Some((0, BlockStart::from_position(CsvPosition::Quoted))));
    }
}
