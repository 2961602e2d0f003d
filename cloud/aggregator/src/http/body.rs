//! Reads request bodies with limits of size and time.

use std::time::Duration;

use axum::{
    body::Body,
    http::{Response, StatusCode},
};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::response::problem;

/// How long a client may take to send the next bytes.
const IDLE: Duration = Duration::from_secs(60);
/// How long a client may take to send a whole body: 8 MiB at 80 kbit/s.
const TOTAL: Duration = Duration::from_mins(15);

/// Reads a body.
///
/// # Errors
/// The response for a body that is too large, too slow, or cut.
pub async fn read(body: Body, limit: usize) -> Result<Bytes, Response<Body>> {
    let slow = |_| problem(StatusCode::REQUEST_TIMEOUT, "TooSlow", "the body was not sent in time");
    timeout(TOTAL, read_frames(body, limit)).await.map_err(slow).flatten()
}

async fn read_frames(mut body: Body, limit: usize) -> Result<Bytes, Response<Body>> {
    let mut bytes = BytesMut::new();
    loop {
        let frame = timeout(IDLE, body.frame()).await.map_err(|_| {
            problem(StatusCode::REQUEST_TIMEOUT, "TooSlow", "the body was not sent in time")
        })?;
        let Some(frame) = frame else { return Ok(bytes.freeze()) };
        let frame = frame.map_err(|error| {
            problem(StatusCode::BAD_REQUEST, "InvalidRequest", error.to_string())
        })?;
        if let Some(data) = frame.data_ref() {
            if bytes.len() + data.len() > limit {
                let text = format!("the body exceeds {limit} bytes");
                return Err(problem(StatusCode::PAYLOAD_TOO_LARGE, "InvalidRequest", text));
            }
            bytes.extend_from_slice(data);
        }
    }
}

/// Reads a body of JSON.
///
/// # Errors
/// As [`read`], and for JSON that is not of this type.
pub async fn read_json<T: DeserializeOwned>(body: Body, limit: usize) -> Result<T, Response<Body>> {
    let bytes = read(body, limit).await?;
    serde_json::from_slice(&bytes)
        .map_err(|error| problem(StatusCode::BAD_REQUEST, "InvalidRequest", error.to_string()))
}
