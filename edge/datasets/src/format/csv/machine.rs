//! The grammar of a csv, a byte at a time: RFC 4180 and what programs really write beside it. Pure.
//!
//! Records end with LF, CRLF or CR; empty lines are no records. A quote opens a quoted field only as its first byte,
//! anywhere else outside quotes it stands for itself; within quotes `""` is one quote. What follows a closing quote up
//! to the delimiter belongs to the field. A file that ends within quotes ends with one long record.
//! The same decisions as those of the `csv` crate, which the tests compare with.

use serde::{Deserialize, Serialize};

/// Where in the grammar the next byte stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum At {
    #[default]
    RecordStart,
    FieldStart,
    Unquoted,
    Quoted,
    /// After a quote within quotes: it closes them, unless another follows.
    QuoteInQuoted,
}

/// What a byte was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Part of the value of a field.
    Content,
    /// A quote that belongs to the notation, or an empty line.
    Syntax,
    FieldEnd,
    /// The end of a record, and of its last field.
    RecordEnd,
}

impl At {
    pub(crate) fn step(self, byte: u8, delimiter: u8) -> (Self, Step) {
        match (self, byte) {
            (Self::Quoted, b'"') => (Self::QuoteInQuoted, Step::Syntax),
            (Self::Quoted, _) | (Self::QuoteInQuoted, b'"') => (Self::Quoted, Step::Content),
            (Self::RecordStart, b'\n' | b'\r') => (Self::RecordStart, Step::Syntax),
            (_, b'\n' | b'\r') => (Self::RecordStart, Step::RecordEnd),
            (_, byte) if byte == delimiter => (Self::FieldStart, Step::FieldEnd),
            (Self::RecordStart | Self::FieldStart, b'"') => (Self::Quoted, Step::Syntax),
            _ => (Self::Unquoted, Step::Content),
        }
    }
}
