//! The csv grammar, one byte at a time: RFC 4180 and common deviations from it. Pure.
//!
//! - Records end with LF, CRLF or CR. Empty lines are not records.
//! - A quote opens a quoted field only as the first byte of a field. Elsewhere outside quotes it is
//!   content. Within quotes, `""` is one quote.
//! - Bytes between a closing quote and the delimiter belong to the field.
//! - A file that ends within quotes ends with one long record.
//!
//! These are the rules of the `csv` crate. The tests compare with it.

use serde::{Deserialize, Serialize};

/// Position of the next byte in the grammar.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CsvPosition {
    #[default]
    RecordStart,
    FieldStart,
    Unquoted,
    Quoted,
    /// The position after a quote within quotes. It is the closing quote, unless another quote
    /// follows.
    QuoteInQuoted,
}

/// What a byte means to the count of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteKind {
    /// The byte is part of the value of a field.
    Content,
    /// A quote that is not content, or an empty line.
    Syntax,
    FieldEnd,
    /// The end of a record and of its last field.
    RecordEnd,
}

impl CsvPosition {
    pub(crate) fn step(self, byte: u8, delimiter: u8) -> (Self, ByteKind) {
        match (self, byte) {
            (Self::Quoted, b'"') => (Self::QuoteInQuoted, ByteKind::Syntax),
            (Self::Quoted, _) | (Self::QuoteInQuoted, b'"') => (Self::Quoted, ByteKind::Content),
            (Self::RecordStart, b'\n' | b'\r') => (Self::RecordStart, ByteKind::Syntax),
            (_, b'\n' | b'\r') => (Self::RecordStart, ByteKind::RecordEnd),
            (_, byte) if byte == delimiter => (Self::FieldStart, ByteKind::FieldEnd),
            (Self::RecordStart | Self::FieldStart, b'"') => (Self::Quoted, ByteKind::Syntax),
            _ => (Self::Unquoted, ByteKind::Content),
        }
    }
}
