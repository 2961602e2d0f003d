//! Counting the records of a csv 64 bytes at a time. Pure, and the reason that a csv is counted as fast as it is read.
//!
//! One bit a byte: where the quotes are, a running exclusive-or of their bits tells what lies within quotes, and the
//! ends of lines outside of them are the ends of records. That holds as long as every quote belongs to the notation;
//! a block with one that stands for itself is left to the grammar, byte by byte.

use fearless_simd::{Level, dispatch, prelude::*, u8x64};

use super::machine::{At, Step};

const BLOCK: usize = 64;

/// The number of records that end in `bytes`, and where in the grammar they leave off.
pub(crate) fn count(bytes: &[u8], at: At, delimiter: u8) -> (u64, At) {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    // The instructions that this processor has; found out once.
    let (records, at) = dispatch!(Level::new(), simd => count_blocks(simd, blocks, at, delimiter));
    let (ends, at) = count_slowly(rest, at, delimiter);
    (records + ends, at)
}

fn count_slowly(bytes: &[u8], mut at: At, delimiter: u8) -> (u64, At) {
    let mut records = 0;
    for byte in bytes {
        let step;
        (at, step) = at.step(*byte, delimiter);
        records += u64::from(step == Step::RecordEnd);
    }
    (records, at)
}

#[expect(
    clippy::inline_always,
    reason = "else it is not compiled for the instructions that were found"
)]
#[inline(always)]
fn count_blocks<S: Simd>(simd: S, blocks: &[[u8; BLOCK]], at: At, delimiter: u8) -> (u64, At) {
    let mut records = 0;
    let mut before = Before::of(at);
    for block in blocks {
        if let Some((ends, after)) = count_block(simd, block, before, delimiter) {
            records += ends;
            before = after;
        } else {
            let (ends, at) = count_slowly(block, before.at(), delimiter);
            records += ends;
            before = Before::of(at);
        }
    }
    (records, before.at())
}

/// Where in the grammar a block begins, as bits that are ready for use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Before {
    /// All bits are set within quotes.
    within: u64,
    /// The lowest bit is set where a quote would belong to the notation: in turn because the byte before ended a
    /// record, ended a field, or was a quote itself.
    after_break: u64,
    after_delimiter: u64,
    after_quote: u64,
}

impl Before {
    fn of(at: At) -> Self {
        Self {
            within: if at == At::Quoted { u64::MAX } else { 0 },
            after_break: u64::from(at == At::RecordStart),
            after_delimiter: u64::from(at == At::FieldStart),
            after_quote: u64::from(at == At::QuoteInQuoted),
        }
    }

    fn at(self) -> At {
        match self {
            Self { within: 1.., .. } => At::Quoted,
            Self { after_break: 1.., .. } => At::RecordStart,
            Self { after_delimiter: 1.., .. } => At::FieldStart,
            Self { after_quote: 1.., .. } => At::QuoteInQuoted,
            _ => At::Unquoted,
        }
    }
}

/// None if a quote of the block does not belong to the notation.
#[expect(
    clippy::inline_always,
    reason = "else it is not compiled for the instructions that were found"
)]
#[inline(always)]
fn count_block<S: Simd>(
    simd: S,
    block: &[u8; BLOCK],
    before: Before,
    delimiter: u8,
) -> Option<(u64, Before)> {
    let bytes = u8x64::from_slice(simd, block);
    let quotes = bytes.simd_eq(b'"').to_bitmask();
    // Put together before they become bits: that is the dear step.
    let breaks = bytes.simd_eq(b'\n') | bytes.simd_eq(b'\r');
    let separators = breaks | bytes.simd_eq(delimiter);
    let breaks = breaks.to_bitmask();
    if quotes | before.within == 0 {
        let records = breaks & !(breaks << 1 | before.after_break);
        let after = Before {
            within: 0,
            after_break: breaks >> (BLOCK - 1),
            after_delimiter: u64::from(block[BLOCK - 1] == delimiter),
            after_quote: 0,
        };
        return Some((u64::from(records.count_ones()), after));
    }
    // Set from an opening quote on, up to the byte before the closing one.
    let within = running_xor(quotes) ^ before.within;
    let (breaks, closing) = (breaks & !within, quotes & !within);
    let separators = separators.to_bitmask() & !within;
    let may_open = (separators | closing) << 1
        | before.after_break
        | before.after_delimiter
        | before.after_quote;
    if quotes & within & !may_open != 0 {
        return None;
    }
    let records = breaks & !(breaks << 1 | before.after_break);
    let after = Before {
        within: 0_u64.wrapping_sub(within >> (BLOCK - 1)),
        after_break: breaks >> (BLOCK - 1),
        after_delimiter: (separators & !breaks) >> (BLOCK - 1),
        after_quote: closing >> (BLOCK - 1),
    };
    Some((u64::from(records.count_ones()), after))
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
        /// Few characters, so that every meeting of them comes up.
        #[test]
        fn blocks_and_the_grammar_agree_on_any_bytes(
            bytes in proptest::collection::vec(prop::sample::select(&b"a,\"\n\r;"[..]), 0..400),
            start in prop::sample::select(
                &[At::RecordStart, At::FieldStart, At::Unquoted, At::Quoted, At::QuoteInQuoted][..]),
        ) {
            prop_assert_eq!(count(&bytes, start, b','), count_slowly(&bytes, start, b','));
        }

        /// Well-formed, so that the fast way is taken.
        #[test]
        fn blocks_and_the_grammar_agree_on_quoted_fields(
            fields in proptest::collection::vec(("[a,\n\r]{0,40}", 0..3u8), 0..40),
        ) {
            let mut bytes = Vec::new();
            for (text, end) in fields {
                bytes.extend(format!("\"{}\"", text.replace('a', "\"\"")).bytes());
                bytes.extend([&b","[..], b"\n", b"\r\n"][usize::from(end)]);
            }
            prop_assert_eq!(count(&bytes, At::RecordStart, b','), count_slowly(&bytes, At::RecordStart, b','));
        }
    }

    #[test]
    fn quotes_that_stand_for_themselves_are_left_to_the_grammar() {
        let mut block = [b'a'; BLOCK];
        (block[10], block[20]) = (b'"', b'\n');
        let counted = |block| dispatch!(Level::new(), simd => count_block(simd, &block, Before::of(At::RecordStart), b','));
        assert_eq!(counted(block), None);
        block[9] = b',';
        assert_eq!(counted(block), Some((0, Before::of(At::Quoted))));
    }
}
