//! Why a file is not a usable file of weights.

use std::io;

/// Why a file of weights cannot be used. The text continues "weights.npz: ...".
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The file of weights cannot be read.
    #[error(transparent)]
    Io(io::Error),
    /// The file is neither of the two formats.
    #[error("neither a safetensors file nor a .npz file (numpy.savez)")]
    UnknownFormat,
    /// The file breaks the rules of its format.
    #[error("malformed {format}: {problem}")]
    Malformed {
        /// Name of the format.
        format: &'static str,
        /// The part that is malformed, and how.
        problem: String,
    },
    /// A part of the file exceeds a limit.
    #[error("{what}: {value} exceeds the limit of {limit}")]
    TooLarge {
        /// The part that exceeds the limit.
        what: &'static str,
        /// The size or the number that is too large.
        value: u64,
        /// The largest permitted value.
        limit: u64,
    },
    /// The file needs what is refused on purpose.
    #[error("tensor \"{tensor}\": {problem}")]
    Unsupported {
        /// Name of the refused tensor.
        tensor: String,
        /// What is refused, and what to do instead.
        problem: String,
    },
}

impl From<io::Error> for WeightsError {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        let problem = match error.kind() {
            UnexpectedEof => "the data ends early".to_owned(),
            // Of flate2.
            InvalidData | InvalidInput => error.to_string(),
            _ => return Self::Io(error),
        };
        Self::Malformed { format: "file", problem }
    }
}

impl WeightsError {
    pub(super) fn safetensors(problem: impl Into<String>) -> Self {
        Self::Malformed { format: "safetensors file", problem: problem.into() }
    }

    pub(super) fn npz(problem: impl Into<String>) -> Self {
        Self::Malformed { format: ".npz file", problem: problem.into() }
    }
}
