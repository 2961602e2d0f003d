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
        /// Name of the input.
        name: String,
        /// How data and shape differ.
        problem: RowsError,
    },
    /// The header is not a number.
    #[error("Inference-Header-Content-Length {0:?} is not a number of bytes")]
    HeaderText(String),
    /// The header is beyond the end of the body.
    #[error("Inference-Header-Content-Length is {length}, but the body has {body} bytes")]
    Header {
        /// The value of the header.
        length: usize,
        /// Bytes of the body.
        body: usize,
    },
    /// The size of an input is not a number of bytes.
    #[error("input {name:?} has the binary_data_size {size}, which is not a number of bytes")]
    Size {
        /// Name of the input.
        name: String,
        /// The size in the request, as JSON.
        size: String,
    },
    /// The binary data end before the input does.
    #[error(
        "input {name:?} has a binary_data_size of {size}, but {left} bytes of the body are left"
    )]
    Short {
        /// Name of the input.
        name: String,
        /// The size in the request, in bytes.
        size: u64,
        /// Bytes of the body that no input before it has.
        left: usize,
    },
    /// The body has binary data that belong to no input.
    #[error(
        "the inputs have {used} bytes of binary data, but {actual} bytes follow the \
         JSON of the body"
    )]
    Long {
        /// Bytes of all inputs.
        used: usize,
        /// Bytes after the JSON.
        actual: usize,
    },
    /// An input has its data twice: as JSON and as binary data.
    #[error("input {0:?} has data and a binary_data_size; give one of them")]
    Both(String),
    /// The message of gRPC cannot be decoded.
    #[error("the message is no ModelInferRequest: {0}")]
    Message(String),
    /// The number of raw contents is not that of the inputs.
    #[error("raw_input_contents has {raw} entries for {inputs} inputs")]
    RawCount {
        /// Number of raw contents of the request.
        raw: usize,
        /// Number of inputs of the request.
        inputs: usize,
    },
    /// One request has raw and typed contents.
    #[error("input {0:?} has contents, and the request has raw_input_contents; give one of them")]
    Mixed(String),
    /// The typed contents of an input have another type.
    #[error("the contents of input {name:?} are not {datatype}")]
    Contents {
        /// Name of the input.
        name: String,
        /// The data type that the request states.
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
        /// Names, types and shapes of the edge's outputs.
        edge: String,
        /// Names, types and shapes of the cloud's outputs.
        cloud: String,
    },
    /// An answer has no outputs.
    #[error("the answer of the {0} has no outputs")]
    Unreadable(&'static str),
    /// The numbers of rows do not fit.
    #[error(transparent)]
    Rows(#[from] RowsError),
}
