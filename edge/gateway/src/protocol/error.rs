//! What is wrong with requests, and why answers cannot be merged.

use neptune_cascade::rows::RowsError;

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The inputs have different numbers of rows.
    #[error(transparent)]
    Rows(RowsError),
    /// The data of an input do not fit its shape.
    #[error("input {name:?}: {problem}")]
    Tensor {
        /// The input.
        name: String,
        /// What is wrong.
        problem: RowsError,
    },
    /// The header is not a number.
    #[error("Inference-Header-Content-Length {0:?} is not a number of bytes")]
    HeaderText(String),
    /// The header is beyond the end of the body.
    #[error("Inference-Header-Content-Length is {length}, but the body has {body} bytes")]
    Header {
        /// Its value.
        length: usize,
        /// Bytes of the body.
        body: usize,
    },
    /// A size that is no number of bytes.
    #[error("input {name:?} has the binary_data_size {size}, which is not a number of bytes")]
    Size {
        /// The input.
        name: String,
        /// Its size, as JSON.
        size: String,
    },
    /// The data end before the input.
    #[error(
        "input {name:?} has a binary_data_size of {size}, but {left} bytes of the body are left"
    )]
    Short {
        /// The input.
        name: String,
        /// Its size.
        size: u64,
        /// Bytes that no input before it has.
        left: usize,
    },
    /// Data that belong to no input.
    #[error(
        "the inputs have {used} bytes of binary data, but {found} bytes follow the JSON of the body"
    )]
    Long {
        /// Bytes of all inputs.
        used: usize,
        /// Bytes after the JSON.
        found: usize,
    },
    /// Two representations of one input.
    #[error("input {0:?} has data and a binary_data_size; give one of them")]
    Both(String),
    /// A message of gRPC that cannot be read.
    #[error("the message is no ModelInferRequest: {0}")]
    Message(String),
    /// Raw contents for another number of inputs.
    #[error("raw_input_contents has {raw} entries for {inputs} inputs")]
    RawCount {
        /// Entries.
        raw: usize,
        /// Inputs.
        inputs: usize,
    },
    /// Raw and typed contents in one request.
    #[error("input {0:?} has contents, and the request has raw_input_contents; give one of them")]
    Mixed(String),
    /// Typed contents of another type.
    #[error("the contents of input {name:?} are not {datatype}")]
    Contents {
        /// The input.
        name: String,
        /// Its data type.
        datatype: String,
    },
}

/// Why answers cannot be merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// Names, types or shapes of the outputs differ.
    #[error(
        "outputs of the two models differ (edge {edge}, cloud {cloud}): a request is answered by one of them as a whole"
    )]
    Outputs {
        /// Those of the edge.
        edge: String,
        /// Those of the cloud.
        cloud: String,
    },
    /// An answer has no outputs.
    #[error("the answer of the {0} has no outputs")]
    Unreadable(&'static str),
    /// The numbers of rows do not fit.
    #[error(transparent)]
    Rows(#[from] RowsError),
}
