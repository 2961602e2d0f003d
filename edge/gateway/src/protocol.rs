//! The protocols, without I/O: which requests are decided, the confidences in an answer, and how a
//! batch is split and merged.

pub mod batch;
pub mod completion;
pub mod edge_error;
mod error;
pub mod frames;
pub mod grpc;
pub mod json;
pub mod numbers;
pub mod oip;
pub mod path;
mod payload;
mod row_text;
mod scores;
mod tensor;
pub mod tfserving;

pub use self::{
    error::{Malformed, MergeError},
    payload::Payload,
    scores::Scores,
};
