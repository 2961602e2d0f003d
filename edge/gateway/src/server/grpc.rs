//! Answers of gRPC: one message with its status after it, or a status alone.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::{
    HeaderMap, Response, StatusCode,
    body::{Body, Frame},
    header::{CONTENT_TYPE, HeaderName, HeaderValue},
};
use tonic::{Code, Status};

use super::{answer::Answer, body::boxed};
use crate::protocol::grpc::prefix;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// A message in its frame, and the status after it, which requests do not have.
#[derive(Debug)]
pub struct GrpcBody {
    pieces: [Option<Bytes>; 2],
    trailers: Option<HeaderMap>,
}

impl GrpcBody {
    /// The body of a request. A message that is too long for gRPC has no frame, and is refused.
    pub fn request(message: Bytes) -> Self {
        Self { pieces: [prefix(message.len()), Some(message)], trailers: None }
    }
}

impl Body for GrpcBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.pieces.iter_mut().find_map(Option::take).map(Frame::data);
        let frame = piece.or_else(|| self.trailers.take().map(Frame::trailers));
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.iter().all(Option::is_none) && self.trailers.is_none()
    }
}

/// An answer with a message. Its other trailers are those of the edge.
pub fn grpc_answer(message: Bytes, mut trailers: HeaderMap) -> Answer {
    trailers.insert(STATUS, HeaderValue::from_static("0"));
    let pieces = [prefix(message.len()), Some(message)];
    let mut answer = Response::new(boxed(GrpcBody { pieces, trailers: Some(trailers) }));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    answer
}

/// An answer with a status alone. The status of HTTP is for metrics, until [`finished`].
pub fn grpc_error(status: StatusCode, message: &str) -> Answer {
    let mut answer = grpc_status(HeaderMap::new());
    // Fails only for metadata, of which there is none.
    let _ = Status::new(code_of(status), message).add_header(answer.headers_mut());
    *answer.status_mut() = status;
    answer
}

/// An answer without a message, with a status among these headers.
pub fn grpc_status(mut headers: HeaderMap) -> Answer {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let mut answer = Response::new(boxed(GrpcBody { pieces: [None, None], trailers: None }));
    *answer.headers_mut() = headers;
    answer
}

/// The answer as gRPC sends it: the status of HTTP is always OK.
pub fn finished(mut answer: Answer) -> Answer {
    *answer.status_mut() = StatusCode::OK;
    answer
}

const fn code_of(status: StatusCode) -> Code {
    match status.as_u16() {
        400 => Code::InvalidArgument,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        408 | 504 => Code::DeadlineExceeded,
        413 | 429 => Code::ResourceExhausted,
        501 => Code::Unimplemented,
        502 | 503 => Code::Unavailable,
        508 => Code::FailedPrecondition,
        _ => Code::Unknown,
    }
}

/// The status of HTTP with the meaning of a code, for metrics.
pub const fn status_of(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
            StatusCode::BAD_REQUEST
        }
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Cancelled | Code::Unknown | Code::Internal | Code::DataLoss => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}
