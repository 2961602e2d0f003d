//! Open Inference Protocol, version 2, over gRPC: messages and their frames, confidences, and
//! batches split by row.

mod answer;
mod contents;
mod frame;
#[allow(missing_docs, clippy::pedantic, reason = "generated from proto/inference.proto")]
#[rustfmt::skip]
pub mod inference;
mod request;
#[cfg(test)]
mod tests;

pub use self::{
    answer::Answer,
    frame::{FrameError, message, prefix},
    request::{Request, Target, renamed},
};

/// The path of the one method that is decided.
pub const MODEL_INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// Path of the service of the protocol.
const SERVICE: &str = "/inference.GRPCInferenceService/";
/// The methods of the service with one message each way. Others may be streams.
const UNARY: [&str; 6] =
    ["ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer"];

/// The name of a method in messages: without the service, if it is that of the protocol.
pub fn method(path: &str) -> &str {
    path.strip_prefix(SERVICE).unwrap_or(path)
}

/// Whether a method has one message each way.
pub fn is_unary(path: &str) -> bool {
    path.strip_prefix(SERVICE).is_some_and(|method| UNARY.contains(&method))
}

/// Whether a method computes samples.
pub fn is_inference(path: &str) -> bool {
    matches!(path.strip_prefix(SERVICE), Some("ModelInfer" | "ModelStreamInfer"))
}

/// Whether a method shows whether the server works, and nothing else: it needs no key.
pub fn is_health(path: &str) -> bool {
    matches!(path.strip_prefix(SERVICE), Some("ServerLive" | "ServerReady"))
        || path == "/grpc.health.v1.Health/Check"
}

/// Whether a method is of Triton's shared memory, which one of two servers cannot have alone.
pub fn is_shared_memory(path: &str) -> bool {
    path.strip_prefix(SERVICE).is_some_and(|method| method.contains("SharedMemory"))
}
