//! A call of the cloud, over REST or gRPC, and its answer.

use std::sync::Arc;

use hyper::{HeaderMap, header::HeaderValue};

use super::{deadline::Deadline, failure::CloudError, path::Upper};
use crate::{
    protocol::Payload,
    server::{Hold, Wire},
};

/// A request to the cloud.
#[derive(Debug, Clone)]
pub struct CloudRequest {
    /// Whether the call is made over REST or gRPC.
    pub wire: Wire,
    /// The path at a server without a base path.
    pub path: String,
    /// The headers of the request, without the token.
    pub headers: HeaderMap,
    /// The body of the request.
    pub body: Payload,
    /// Time at which the whole answer has to be there.
    pub deadline: Deadline,
    /// Counts the bytes of the answer.
    pub held: Option<Arc<dyn Hold>>,
}

impl CloudRequest {
    /// Counts bytes of the answer.
    ///
    /// # Errors
    /// There is no room.
    pub(super) fn hold(&self, read: usize, more: usize) -> Result<(), CloudError> {
        let is_held = self.held.as_ref().is_none_or(|held| held.grow(read, more));
        if is_held { Ok(()) } else { Err(CloudError::NoRoom) }
    }
}

/// A whole answer of the cloud.
#[derive(Debug, Clone)]
pub struct CloudAnswer {
    /// The body of the answer.
    pub payload: Payload,
    /// What the answer shows of the gateways above.
    pub upper: Upper,
}

/// Returns the token in the value of `Authorization`.
pub(super) fn bearer(authorization: Option<&HeaderValue>) -> Option<&str> {
    authorization?.to_str().ok()?.strip_prefix("Bearer ")
}
