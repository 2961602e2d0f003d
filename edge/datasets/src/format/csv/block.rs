//! Counting the records of a csv 64 bytes at a time. Pure, and the reason that a csv is counted as fast as it is read.
//!
//! One bit a byte: where the quotes are, a running exclusive-or of their bits tells what lies within quotes, and the
//! ends of lines outside of them are the ends of records. That holds as long as every quote belongs to the notation;
//! a block with one that stands for itself is left to the grammar, byte by byte.

use wide::u8x16;

use super::machine::At;

const BLOCK: usize = 64;

/// The number of records that end in `bytes`, and where in the grammar they leave off.
pub(crate) fn count(bytes: &[u8], mut at: At, delimiter: u8) -> (u64, At) {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    let mut records = 0;
    for block in blocks {
        let ends;
        (ends, at) =
            count_block(block, at, delimiter).unwrap_or_else(|| count_slowly(block, at, delimiter));
        records += ends;
    }
    let (ends, at) = count_slowly(rest, at, delimiter);
    (records + ends, at)
}

fn count_slowly(bytes: &[u8], mut at: At, delimiter: u8) -> (u64, At) {
    let mut records = 0;
    for byte in bytes {
        let step;
        (at, step) = at.step(*byte, delimiter);
        records += u64::from(step == super::machine::Step::RecordEnd);
    }
    (records, at)
}

/// None if a quote of the block does not belong to the notation.
#[inline]
fn count_block(block: &[u8; BLOCK], at: At, delimiter: u8) -> Option<(u64, At)> {
    let (lanes, _) = block.as_chunks::<16>();
    let lanes = [lanes[0], lanes[1], lanes[2], lanes[3]].map(u8x16::new);
    let quotes = bits(lanes, |lane| lane.simd_eq(u8x16::splat(b'"')));
    if quotes == 0 && at == At::Quoted {
        return Some((0, At::Quoted));
    }
    let breaks =
        bits(lanes, |lane| lane.simd_eq(u8x16::splat(b'\n')) | lane.simd_eq(u8x16::splat(b'\r')));
    let delimiters =
        if quotes == 0 { 0 } else { bits(lanes, |lane| lane.simd_eq(u8x16::splat(delimiter))) };

    // Set from an opening quote on, up to the byte before the closing one.
    let within = running_xor(quotes) ^ if at == At::Quoted { u64::MAX } else { 0 };
    let breaks = breaks & !within;
    let may_open = (breaks | (delimiters & !within) | (quotes & !within)) << 1
        | u64::from(matches!(at, At::RecordStart | At::FieldStart | At::QuoteInQuoted));
    if quotes & within & !may_open != 0 {
        return None;
    }

    let after_break = breaks << 1 | u64::from(at == At::RecordStart);
    let records = u64::from((breaks & !after_break).count_ones());
    let end = match block[BLOCK - 1] {
        _ if within >> 63 == 1 => At::Quoted,
        b'"' => At::QuoteInQuoted,
        b'\n' | b'\r' => At::RecordStart,
        byte if byte == delimiter => At::FieldStart,
        _ => At::Unquoted,
    };
    Some((records, end))
}

/// Bit n of the result tells of byte n.
#[inline]
fn bits(lanes: [u8x16; 4], matches: impl Fn(u8x16) -> u8x16) -> u64 {
    let [a, b, c, d] = lanes.map(|lane| u64::from(matches(lane).to_bitmask()));
    a | b << 16 | c << 32 | d << 48
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
        assert_eq!(count_block(&block, At::RecordStart, b','), None);
        block[9] = b',';
        assert_eq!(count_block(&block, At::RecordStart, b','), Some((0, At::Quoted)));
    }
}
