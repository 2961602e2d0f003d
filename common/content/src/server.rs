//! Answers the requests of an upload: `HEAD` for what is here, `PATCH` for the next block. Who may
//! upload, and what a complete content is worth, is the caller's decision.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::json;

use crate::{
    headers::{Block, Progress, UPLOAD_LIMIT, UPLOAD_OFFSET},
    uploads::{MAX_BLOCK, Received, UploadError, UploadId, Uploads},
};

/// What a server does after it received a block.
#[derive(Debug)]
pub enum Next {
    /// The server sends this response.
    Respond(Response<Bytes>),
    /// The content is complete in this file: the response depends on what it is worth.
    Judge(std::path::PathBuf),
}

/// Answers `HEAD`: 204 with the offset, also if nothing is here.
pub async fn head(uploads: &Arc<Uploads>, id: UploadId) -> Response<Bytes> {
    let (uploads, limit) = (Arc::clone(uploads), limits(uploads));
    let progress = tokio::task::spawn_blocking(move || match uploads.complete(&id.content) {
        Some(path) => {
            let offset = std::fs::metadata(path).map_or(0, |it| it.len());
            Ok(Progress { offset, is_complete: true })
        }
        None => uploads.offset(&id).map(|offset| Progress { offset, is_complete: false }),
    });
    let mut response = match joined(progress.await) {
        Ok(progress) => {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response.headers_mut().extend(progress.headers());
            response
        }
        Err(error) => refusal(&error),
    };
    response.headers_mut().insert(UPLOAD_LIMIT, limit);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Handles `PATCH` with one block, whose body was read whole.
pub async fn patch(uploads: &Arc<Uploads>, id: UploadId, headers: &HeaderMap, body: Bytes) -> Next {
    let block = match Block::parse(headers) {
        Ok(block) => block,
        Err(error) => {
            let body = json!({"title": error.to_string()});
            return Next::Respond(problem(StatusCode::BAD_REQUEST, &body));
        }
    };
    let uploads = Arc::clone(uploads);
    let received = tokio::task::spawn_blocking(move || uploads.append(&id, block, &body));
    match joined(received.await) {
        Ok(Received::Complete(path)) => Next::Judge(path),
        Ok(Received::Partial(offset)) => {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = StatusCode::NO_CONTENT;
            let progress = Progress { offset, is_complete: false };
            response.headers_mut().extend(progress.headers());
            Next::Respond(response)
        }
        Err(error) => {
            tracing::debug!(%error, purpose = %id.purpose, content = %id.content, "block refused");
            Next::Respond(refusal(&error))
        }
    }
}

fn joined<T>(
    result: Result<Result<T, UploadError>, tokio::task::JoinError>,
) -> Result<T, UploadError> {
    result.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(error) => Err(UploadError::Io {
            path: std::path::PathBuf::new(),
            error: std::io::Error::other(error),
        }),
    })
}

fn limits(uploads: &Uploads) -> HeaderValue {
    let text = format!("max-size={}, max-append-size={MAX_BLOCK}", uploads.max_bytes());
    HeaderValue::try_from(text).expect("it is ASCII")
}

fn refusal(error: &UploadError) -> Response<Bytes> {
    let title = error.to_string();
    match error {
        UploadError::Offset { expected, provided } => {
            let body = json!({
                "type": "https://iana.org/assignments/http-problem-types#mismatching-upload-offset",
                "title": title, "expected-offset": expected, "provided-offset": provided,
            });
            let mut response = problem(StatusCode::CONFLICT, &body);
            response.headers_mut().insert(UPLOAD_OFFSET, HeaderValue::from(*expected));
            response
        }
        UploadError::BlockDigest | UploadError::Length(_) => {
            problem(StatusCode::BAD_REQUEST, &json!({"title": title}))
        }
        UploadError::TooLarge { .. } => {
            problem(StatusCode::PAYLOAD_TOO_LARGE, &json!({"title": title}))
        }
        UploadError::ContentDigest(_) => {
            let body = json!({"title": title, "reason": "DigestMismatch", "detail": title});
            problem(StatusCode::UNPROCESSABLE_ENTITY, &body)
        }
        UploadError::Io { error, .. } => {
            let is_full = matches!(
                error.kind(),
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
            );
            tracing::warn!(%title, "an upload cannot be stored");
            let title = "the content cannot be stored";
            if is_full {
                let body =
                    json!({"title": title, "reason": "DiskFull", "detail": "the disk is full"});
                problem(StatusCode::INSUFFICIENT_STORAGE, &body)
            } else {
                problem(StatusCode::INTERNAL_SERVER_ERROR, &json!({"title": title}))
            }
        }
    }
}

/// Returns a response with a problem (RFC 9457).
pub fn problem(status: StatusCode, body: &serde_json::Value) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    let media_type = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, media_type);
    response
}
