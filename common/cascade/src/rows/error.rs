//! Why a batch cannot be split or merged.

use std::fmt;

/// Why a batch cannot be split or merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowsError {
    /// The shape has no first dimension, a negative one, or too many elements.
    Shape(Vec<i64>),
    /// The list has another length than its shape.
    Length {
        /// The length that the shape requires: bytes, or elements of a list.
        expected: usize,
        /// The length of the list.
        actual: usize,
    },
    /// A `BYTES` tensor ends within an element, or has too many elements.
    Bytes,
    /// Two inputs have different numbers of rows.
    Unequal {
        /// Name and number of rows of the first input.
        first: (String, usize),
        /// Name and number of rows of the one that differs.
        other: (String, usize),
    },
    /// The selection is one of another number of rows.
    Selection {
        /// The rows of the list.
        rows: usize,
        /// The rows of the selection.
        selection: usize,
    },
    /// The cloud answered another number of rows than it was sent.
    Answered {
        /// Number of rows that were sent.
        sent: usize,
        /// Number of rows that the cloud answered.
        answered: usize,
    },
    /// A row of the cloud has another number of elements than one of the edge: the outputs of the
    /// two models cannot be mixed.
    RowLength {
        /// Elements per row of the edge.
        edge: usize,
        /// Elements per row of the cloud.
        cloud: usize,
    },
}

impl fmt::Display for RowsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape(shape) => write!(f, "the shape {shape:?} has no rows"),
            Self::Length { expected, actual } => {
                write!(f, "the data have length {actual}, but their shape requires {expected}")
            }
            Self::Bytes => {
                f.write_str("the elements of a BYTES tensor do not match its shape and length")
            }
            Self::Unequal { first, other } => write!(
                f,
                "input {:?} has {} rows, {:?} has {}: they have to be equal",
                first.0, first.1, other.0, other.1
            ),
            Self::Selection { rows, selection } => {
                write!(f, "{selection} rows were decided, but the data have {rows}")
            }
            Self::Answered { sent, answered } => {
                write!(f, "the cloud answered {answered} rows instead of {sent}")
            }
            Self::RowLength { edge, cloud } => write!(
                f,
                "a row has {edge} elements at the edge and {cloud} in the cloud: \
                 a request is answered by one of them as a whole"
            ),
        }
    }
}

impl std::error::Error for RowsError {}
