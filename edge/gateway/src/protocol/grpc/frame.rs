//! The frame of a message in a body: a flag of compression, and the length.

use bytes::{Buf as _, Bytes};

/// Bytes before a message.
const PREFIX: usize = 5;

/// Why a body is not one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The message is compressed.
    #[error("the message is compressed, without grpc-encoding")]
    Compressed,
    /// The length in the frame is not that of the message.
    #[error("the message has {claimed} bytes by its frame, but {actual} bytes follow")]
    Length {
        /// Length of the message according to the frame, in bytes.
        claimed: u32,
        /// Number of bytes after the frame.
        actual: usize,
    },
    /// The body ends within the frame.
    #[error("the body has {0} bytes; the frame of a message has 5")]
    Short(usize),
}

/// The frame of a message of this length; `None` if gRPC has no such messages.
pub fn prefix(length: usize) -> Option<Bytes> {
    let [a, b, c, d] = u32::try_from(length).ok()?.to_be_bytes();
    Some(Bytes::copy_from_slice(&[0, a, b, c, d]))
}

/// The message in a body, which is a slice of it.
///
/// # Errors
/// The body is not one message.
pub fn message(mut body: Bytes) -> Result<Bytes, FrameError> {
    if body.len() < PREFIX {
        return Err(FrameError::Short(body.len()));
    }
    let flag = body.get_u8();
    let claimed = body.get_u32();
    if usize::try_from(claimed) != Ok(body.len()) {
        return Err(FrameError::Length { claimed, actual: body.len() });
    }
    if flag == 0 { Ok(body) } else { Err(FrameError::Compressed) }
}
