//! A call that a model server refused.

/// How a model server refused a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedCall {
    /// The address of the server for calls of this kind.
    pub url: String,
    /// The status of HTTP, also for gRPC.
    pub status: u16,
    /// The status and the text of the answer.
    pub reason: String,
}
